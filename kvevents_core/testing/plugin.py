"""pytest plugin of the kit: says at the end which promise each failed or skipped test stands for.

Load it with ``pytest_plugins = ["kvevents_core.testing.plugin"]``. It is no ``pytest11`` entry point:
that would import kvevents into every pytest run of an environment that merely has it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

import pytest

CITED: Final = re.compile(r"C(\d+):")


def promise_of(doc: str | None) -> str | None:
    """Return the promise that a test's docstring cites first (``C7``), or None."""
    found = CITED.match(doc or "")
    return f"C{found[1]}" if found else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Note the promise of each test with the test."""
    for item in items:
        promise = promise_of(getattr(getattr(item, "function", None), "__doc__", None))
        if promise:
            item.user_properties.append(("promise", promise))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each promise that was broken."""
    broken: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.stats.get("failed", []):
        for name, value in report.user_properties:
            if name == "promise":
                broken[value].append(report.nodeid)
    for promise, tests in sorted(broken.items(), key=lambda entry: int(entry[0][1:])):
        terminalreporter.write_line(
            f"promise {promise} is broken (docs/reference/contract.md): {', '.join(tests)}",
            red=True,
        )
