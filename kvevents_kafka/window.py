"""The records a producer holds, and the receipts they turn into. Sender thread only; no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from kvevents_core import Receipt


class Sent(NamedTuple):
    """One record the producer took."""

    seq: int
    size_bytes: int
    future: Any
    """kafka-python's ``FutureRecordMetadata``."""


class Window:
    """What is under way, in seq order, and where in the partition our last records lie."""

    def __init__(self) -> None:
        self._sent: deque[Sent] = deque()
        self.confirmed = 0
        self.own_run = (0, 0)
        """(first, next) offset of the latest records in the log with none of others between."""

    def __len__(self) -> int:
        return len(self._sent)

    def add(self, sent: Sent) -> None:
        """Note what the producer took, behind all others."""
        self._sent.append(sent)

    def call_when_settled(self, done: Callable[[object], None]) -> None:
        """Have ``done`` called, on the client's thread, when the last record is confirmed."""
        if self._sent:
            self._sent[-1].future.add_callback(done)

    def is_settled(self) -> bool:
        """Return whether the broker answered for everything under way."""
        return all(sent.future.is_done for sent in self._sent)

    def first_seq(self) -> int | None:
        """Return the lowest seq under way."""
        return self._sent[0].seq if self._sent else None

    def take_confirmed(self) -> list[Receipt]:
        """Return receipts for what the broker confirmed, up to the first that it has not."""
        receipts: list[Receipt] = []
        sent = self._sent
        first = last = -1
        run_first, run_next = self.own_run
        while sent and sent[0].future.is_done and sent[0].future.exception is None:
            seq, _, future = sent.popleft()
            offset = future.value.offset
            if offset != run_next:
                run_first = offset
            run_next = offset + 1
            if seq != last + 1 or first < 0:
                if first >= 0:
                    receipts.append(Receipt(first, last))
                first = seq
            last = seq
            self.confirmed += 1
        if first >= 0:
            receipts.append(Receipt(first, last))
            self.own_run = (run_first, run_next)
        return receipts

    def failed(self) -> Sent | None:
        """Return the record at the head if it failed. Call after ``take_confirmed``."""
        if self._sent and self._sent[0].future.is_done:
            return self._sent[0]
        return None

    def drop_first(self) -> None:
        """Forget the record at the head."""
        self._sent.popleft()

    def clear(self) -> None:
        """Forget all: the producer is gone."""
        self._sent.clear()
