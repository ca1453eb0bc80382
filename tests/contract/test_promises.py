"""The page and the tests: no promise without a test that cites it, no test without a promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from contract.faults.planting import planted

from kvevents_core.testing import BackendConformance
from kvevents_core.testing.plugin import promise_of

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "contract.md"
ROW = re.compile(r"^\| (C\d+) \| .+ \| ([a-z, ]+) \|$", re.MULTILINE)
PROCESS_WIDE = {"C21", "C24"}
"""Their faults need a process of their own: ``test_planted_process_faults``."""


def promised() -> dict[str, set[str]]:
    """Return the promises of the page, and who keeps each."""
    rows = ROW.findall(PAGE.read_text())
    assert len({number for number, _ in rows}) == len(rows), "a number stands twice"
    return {number: set(keepers.split(", ")) for number, keepers in rows}


def cited_by_kit() -> set[str]:
    """Return the promises that the kit's tests cite."""
    tests = [getattr(BackendConformance, n) for n in dir(BackendConformance) if n[:5] == "test_"]
    found = {promise_of(test.__doc__) for test in tests}
    assert None not in found, "a test of the kit cites no promise"
    return {number for number in found if number}


def cited_elsewhere() -> dict[str, set[str]]:
    """Return the promises that the project's other tests cite, and where."""
    found: dict[str, set[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                number = promise_of(ast.get_docstring(node))
                if number and node.name.startswith("test_"):
                    found.setdefault(number, set()).add(f"{path.name}::{node.name}")
    return found


def test_the_kit_tests_exactly_what_backends_promise() -> None:
    """The kit's numbers are the page's promises kept by backends."""
    assert cited_by_kit() == {number for number, who in promised().items() if "backend" in who}


def test_every_promise_of_core_is_tested() -> None:
    """A promise kept by core is cited by a test of this project."""
    core = {number for number, who in promised().items() if "core" in who}
    assert core - set(cited_elsewhere()) == set()


def test_no_test_cites_a_promise_that_is_not_on_the_page() -> None:
    """A number leads to a sentence."""
    unknown = {n: where for n, where in cited_elsewhere().items() if n not in promised()}
    assert unknown == {}


def test_every_promise_of_a_backend_has_a_planted_fault() -> None:
    """So that no test of the kit passes whatever the backend does."""
    assert cited_by_kit() - {fault.promise for fault in planted()} == PROCESS_WIDE


def test_keepers_are_backend_and_core() -> None:
    """Every row says who keeps the promise, and numbers run without a hole."""
    assert all(who <= {"backend", "core"} for who in promised().values())
    numbers = sorted(int(number[1:]) for number in promised())
    assert numbers == list(range(1, len(numbers) + 1))
