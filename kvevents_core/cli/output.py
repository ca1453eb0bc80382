"""How every command speaks: text for people, one line of JSON for programs, errors in one line.

Exit codes, the same for all commands: 0 ok, 1 the check failed, 2 bad usage or configuration.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

from rich.console import Console

OK: Final = 0
FAILED: Final = 1
BAD_USAGE: Final = 2

_WIDE: Final = 200
"""Columns where nobody looks, so that no line of a table is broken for a program that reads it."""


class UsageError(Exception):
    """The command line asks for something impossible; the message says what to type instead."""


class _Console(Console):
    """Leaves a reader that has gone away to ``app.run``, as plain prints do."""

    def on_broken_pipe(self) -> None:
        """Raise what rich caught."""
        raise BrokenPipeError


def console() -> Console:
    """Return a console on today's standard output; plain and wide where it is no terminal."""
    width = None if sys.stdout.isatty() else _WIDE
    return _Console(highlight=False, soft_wrap=True, width=width)


def print_json(value: dict[str, Any]) -> None:
    """Print one object on one line and flush, so that a pipe sees it now."""
    print(json.dumps(value, default=str), flush=True)


def print_error(message: str) -> None:
    """Print one line for people on standard error."""
    print(f"kvevents: {' '.join(message.split())}", file=sys.stderr, flush=True)
