"""Gather facts by name: what a step returned, or the error it ended in."""

from __future__ import annotations

import logging
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
