"""Records between numbering and confirmation: what waits for the sink and what waits for a receipt.

Bounded here, for every transport alike, because client libraries' own buffers are not. Sender
thread only; ``size`` from any thread. Does no I/O.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from kvevents_core.backend import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvevents_core.backend import Receipt


class Settled(msgspec.Struct, gc=False):
    """A record that left the window."""

    record: Record
    events: int
    rejected: str | None
    """None: delivered, as far as the transport says. Else why it is lost."""


class InFlight:
    """The window of one stream.

    Args:
        confirms: Whether records leave by receipt, or as soon as the sink took them.
        max_batches: Most records waiting for a receipt.
        max_bytes: Most payload bytes waiting for a receipt.
    """

    def __init__(self, *, confirms: bool, max_batches: int, max_bytes: int) -> None:
        self._confirms = confirms
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._pending: deque[Record] = deque()
        self._pending_bytes = 0
        self._unconfirmed: dict[int, Record] = {}
        self._unconfirmed_bytes = 0
        self._events_of: dict[int, int] = {}

    def add(self, record: Record, events: int) -> None:
        """Queue ``record``, which carries ``events`` events, behind all others."""
        self._pending.append(record)
        self._pending_bytes += len(record.payload)
        self._events_of[record.seq] = events

    def extend(self, records: Sequence[Record], events: Iterable[int]) -> None:
        """Queue ``records`` with as many counts of events behind all others."""
        self._pending.extend(records)
        self._pending_bytes += sum([len(record.payload) for record in records])
        self._events_of.update(zip([record.seq for record in records], events, strict=True))

    @property
    def pending(self) -> deque[Record]:
        """Records the sink has not taken, in seq order; not to be changed."""
        return self._pending

    def is_empty(self) -> bool:
        """Return whether nothing waits, neither for the sink nor for a receipt."""
        return not self._pending and not self._unconfirmed

    def size(self) -> tuple[int, int]:
        """Return (records, payload bytes) in the window. Any thread."""
        records = len(self._pending) + len(self._unconfirmed)
        return records, self._pending_bytes + self._unconfirmed_bytes

    def offer(self) -> list[Record]:
        """Return the records the sink may be offered now."""
        if not self._confirms:
            return list(self._pending)
        room = self._max_batches - len(self._unconfirmed)
        room_bytes = self._max_bytes - self._unconfirmed_bytes
        offer: list[Record] = []
        for record in self._pending:
            room_bytes -= len(record.payload)
            # A record above the byte bound may travel alone, or it would never leave.
            if len(offer) >= room or (room_bytes < 0 and (offer or self._unconfirmed)):
                break
            offer.append(record)
        return offer

    def take(self, count: int) -> list[Settled]:
        """Note that the sink took the first ``count`` records; return those that are settled."""
        settled: list[Settled] = []
        taken_bytes = 0
        # A sink that claims more than it was offered must not upset the counters.
        for _ in range(min(count, len(self._pending))):
            record = self._pending.popleft()
            taken_bytes += len(record.payload)
            if self._confirms:
                self._unconfirmed[record.seq] = record
            else:
                settled.append(Settled(record, self._events_of.pop(record.seq, 0), None))
        self._pending_bytes -= taken_bytes
        self._unconfirmed_bytes += taken_bytes if self._confirms else 0
        return settled

    def settle(self, receipts: Iterable[Receipt]) -> list[Settled]:
        """Apply ``receipts``; a receipt for what is not waiting is ignored."""
        settled: list[Settled] = []
        for receipt in receipts:
            for seq in self._waiting_between(receipt.first_seq, receipt.last_seq):
                record = self._unconfirmed.pop(seq)
                self._unconfirmed_bytes -= len(record.payload)
                events = self._events_of.pop(seq, 0)
                settled.append(Settled(record, events, receipt.rejected))
        return settled

    def _waiting_between(self, first_seq: int, last_seq: int) -> list[int]:
        if last_seq - first_seq < len(self._unconfirmed):
            return [s for s in range(first_seq, last_seq + 1) if s in self._unconfirmed]
        return [s for s in self._unconfirmed if first_seq <= s <= last_seq]

    def take_back(self) -> None:
        """Put everything unconfirmed before what waits, in seq order: it must be sent again."""
        again = sorted(self._unconfirmed.values(), key=lambda record: record.seq)
        self._pending.extendleft(reversed(again))
        self._pending_bytes += self._unconfirmed_bytes
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0

    def drop_unconfirmed(self) -> tuple[int, int]:
        """Forget what waits for a receipt; return (records, events)."""
        count = len(self._unconfirmed)
        events = sum(self._events_of.pop(seq, 0) for seq in self._unconfirmed)
        self._unconfirmed.clear()
        self._unconfirmed_bytes = 0
        return count, events

    def drop_pending(self) -> tuple[int, int]:
        """Forget what the sink has not taken; return (records, events)."""
        count = len(self._pending)
        events = sum(self._events_of.pop(record.seq, 0) for record in self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        return count, events
