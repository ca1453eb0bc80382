"""What a process holds: threads and file descriptors, to compare before and after."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import NamedTuple


class Resources(NamedTuple):
    """Threads by identity and open descriptors by what they lead to."""

    threads: frozenset[str]
    files: frozenset[str]

    def beyond(self, before: Resources) -> list[str]:
        """Return what is held now and was not held ``before``."""
        return sorted((self.threads - before.threads) | (self.files - before.files))


def held() -> Resources:
    """Return what this process holds now; no descriptors where the system does not list them."""
    threads = frozenset(f"thread {t.name} ({t.ident})" for t in threading.enumerate())
    native = Path("/proc/self/task")
    if native.exists():  # threads of C libraries too
        threads |= {f"native thread {task.name}" for task in native.iterdir()}
    return Resources(threads, frozenset(_files()))


def left_over(before: Resources, patience_s: float) -> list[str]:
    """Return what is still held beyond ``before`` when patience ends; empty as soon as nothing."""
    deadline = time.monotonic() + patience_s
    while True:
        more = held().beyond(before)
        if not more or time.monotonic() > deadline:
            return more
        time.sleep(0.01)


def _files() -> list[str]:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        return []
    found = []
    for entry in folder.iterdir():
        try:
            found.append(f"descriptor {entry.name} -> {os.readlink(entry)}")  # noqa: PTH115
        except FileNotFoundError:  # the listing's own
            continue
    return found
