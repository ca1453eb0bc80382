"""The replay ring: the last records of one stream, bounded in batches and in bytes.

The sender appends, a sink's replay thread reads. It never encodes, sends or waits.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvevents_core.backend import Record

RECORD_OVERHEAD_BYTES: Final = 185
"""Resident memory of a record beside its payload: tuple, int, bytes header, slot (CPython 3.11;
``bench.memory``)."""


class ReplayRing:
    """Holds the newest records that fit; implements ``backend.History``.

    Args:
        max_batches: Most records held; 0 holds none.
        max_bytes: Most memory held, overhead included.
    """

    def __init__(self, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._records: deque[Record] = deque()
        self._bytes = 0
        self._next_seq = 0
        self._lock = threading.Lock()

    def append(self, record: Record) -> None:
        """Add ``record`` (seq above all before it) and forget the oldest beyond the bounds."""
        self.extend((record,))

    def extend(self, records: Sequence[Record]) -> None:
        """Add ``records``, in seq order, under one lock, and forget the oldest beyond the bounds."""
        size = sum([len(record.payload) for record in records])
        held = self._records
        with self._lock:
            self._next_seq = records[-1].seq + 1
            held.extend(records)
            self._bytes += size + RECORD_OVERHEAD_BYTES * len(records)
            while held and (len(held) > self._max_batches or self._bytes > self._max_bytes):
                self._bytes -= len(held.popleft().payload) + RECORD_OVERHEAD_BYTES

    def read(self, first_seq: int, limit: int) -> list[Record]:
        """Return at most ``limit`` records with seq >= ``first_seq``, in seq order. Any thread."""
        with self._lock:
            start = self._index_of(first_seq)
            return list(islice(self._records, start, start + limit))

    def bounds(self) -> tuple[int, int]:
        """Return (seq of the oldest record held, seq of the next record); equal if empty."""
        with self._lock:
            first = self._records[0].seq if self._records else self._next_seq
            return first, self._next_seq

    def size(self) -> tuple[int, int]:
        """Return (batches, bytes) held. Any thread."""
        with self._lock:
            return len(self._records), self._bytes

    def _index_of(self, first_seq: int) -> int:
        low, high = 0, len(self._records)
        while low < high:
            middle = (low + high) // 2
            if self._records[middle].seq < first_seq:
                low = middle + 1
            else:
                high = middle
        return low
