"""The ``kvevents`` command: one file per command, a user of the public API like any other.

``main`` is the console script. typer and rich come with the extra ``cli``; without them it says so
in one line.
"""

from __future__ import annotations

import sys

_NEEDED = frozenset({"typer", "rich"})


def main() -> int:
    """Run the command line; 0 ok, 1 the check failed, 2 bad usage or configuration."""
    try:
        from kvevents_core.cli.app import run
    except ModuleNotFoundError as exc:
        missing = (exc.name or "").partition(".")[0]
        if missing not in _NEEDED:
            raise
        print(
            f"kvevents: the command line needs {missing}, not installed; "
            "run: pip install 'kvevents[cli]'",
            file=sys.stderr,
        )
        return 2
    return run(sys.argv[1:])
