"""Gather facts by name: what a step returned, or the error it ended in."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any


def outcome(step: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what ``step`` returns, or ``TYPE: MESSAGE`` of what it raises."""
    try:
        return step(*arguments, **options)
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {error}"


def kind(thing: Any) -> str:
    """Return the full name of an object's class."""
    return f"{type(thing).__module__}.{type(thing).__name__}"


class Log(logging.Handler):
    """Keeps the lines that one logger and those below it write."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        logging.getLogger(name).addHandler(self)
        logging.getLogger(name).setLevel(logging.INFO)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


def read_here(flag: str) -> Callable[[list[list[int]]], bool]:
    """Subscribe in this process; the result tells whether the mirror comes to hold ``contents``."""
    from kvevents_core import Mirror, subscribe
    from kvevents_core.wire import normalise_hash

    subscription, mirror = subscribe(flag), Mirror()

    def read_until_equal(contents: list[list[int]]) -> bool:
        wanted = {
            rank: frozenset(normalise_hash(each) for each in content)
            for rank, content in enumerate(contents)
            if content
        }
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            for item in subscription.receive(0.1):
                mirror.apply(item)
            if {stream.rank: mirror.blocks(stream) for stream in mirror.streams()} == wanted:
                return True
        return False

    return read_until_equal
