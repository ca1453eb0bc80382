"""What has arrived and was not yet received: a bounded queue from the loop thread to the reader."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final

from kvevents_core.backend import Arrival, Record

MAX_RECORDS: Final = 4096
MAX_BYTES: Final = 32 * 1024 * 1024
_PORTION: Final = 1024


class Arrivals:
    """A queue of arrivals, each with the log position that reading it stands for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._queue: deque[tuple[Arrival, int | None]] = deque()
        self._bytes = 0
        self._seen = 0
        self._seen_bytes = 0
        self.position: int | None = None
        """Everything up to this log seq was handed to the reader."""

    def put(self, arrival: Arrival, position: int | None = None) -> None:
        """Append ``arrival``. Loop thread."""
        with self._lock:
            self._queue.append((arrival, position))
            if isinstance(arrival, Record):
                self._bytes += len(arrival.payload)
                self._seen += 1
                self._seen_bytes += len(arrival.payload)
            self._filled.notify()

    def is_full(self) -> bool:
        """Return whether nothing more should be put."""
        return len(self._queue) >= MAX_RECORDS or self._bytes >= MAX_BYTES

    def room(self) -> int:
        """Return for about how many records there is room, judging by those seen so far."""
        average = max(1, self._seen_bytes // max(1, self._seen))
        by_bytes = (MAX_BYTES - self._bytes) // average
        return max(0, min(MAX_RECORDS - len(self._queue), by_bytes))

    def take(self, timeout_s: float) -> list[Arrival]:
        """Return what waits, at most some hundreds, waiting for the first. Reader's thread."""
        with self._lock:
            if not self._queue and timeout_s > 0:
                self._filled.wait(timeout_s)
            taken: list[Arrival] = []
            while self._queue and len(taken) < _PORTION:
                arrival, position = self._queue.popleft()
                if isinstance(arrival, Record):
                    self._bytes -= len(arrival.payload)
                if position is not None:
                    self.position = position
                taken.append(arrival)
            return taken

    def wake(self) -> None:
        """Let a waiting ``take`` return."""
        with self._lock:
            self._filled.notify_all()
