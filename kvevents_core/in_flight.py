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
    """Records that left the window together."""

    records: list[Record]
    events: int
    """Events in all of them."""
    rejected: str | None
    """None: delivered, as far as the transport says. Else why they are lost."""


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
        self._pending_events: deque[int] = deque()  # of each of them
        self._pending_bytes = 0
        self._unconfirmed: dict[int, Record] = {}
        self._unconfirmed_events: dict[int, int] = {}
        self._unconfirmed_bytes = 0

    def add(self, record: Record, events: int) -> None:
        """Queue ``record``, which carries ``events`` events, behind all others."""
        self.extend((record,), (events,))

    def extend(self, records: Sequence[Record], events: Sequence[int]) -> None:
        """Queue ``records`` with as many counts of events behind all others."""
        self._pending.extend(records)
        self._pending_events.extend(events)
        self._pending_bytes += _payload_bytes(records)

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
        # A sink that claims more than it was offered must not upset the counters.
        count = min(count, len(self._pending))
        if count <= 0:
            return []
        records = [self._pending.popleft() for _ in range(count)]
        events = [self._pending_events.popleft() for _ in range(count)]
        size = _payload_bytes(records)
        self._pending_bytes -= size
        if not self._confirms:
            return [Settled(records, sum(events), None)]
        seqs = [record.seq for record in records]
        self._unconfirmed.update(zip(seqs, records, strict=True))
        self._unconfirmed_events.update(zip(seqs, events, strict=True))
        self._unconfirmed_bytes += size
        return []

    def settle(self, receipts: Iterable[Receipt]) -> list[Settled]:
        """Apply ``receipts``; a receipt for what is not waiting is ignored."""
        settled: list[Settled] = []
        for receipt in receipts:
            seqs = self._waiting_between(receipt.first_seq, receipt.last_seq)
            if seqs:
                records = [self._unconfirmed.pop(seq) for seq in seqs]
                events = sum([self._unconfirmed_events.pop(seq) for seq in seqs])
                self._unconfirmed_bytes -= _payload_bytes(records)
                settled.append(Settled(records, events, receipt.rejected))
        return settled

    def _waiting_between(self, first_seq: int, last_seq: int) -> list[int]:
        if last_seq - first_seq < len(self._unconfirmed):
            return [s for s in range(first_seq, last_seq + 1) if s in self._unconfirmed]
        return [s for s in self._unconfirmed if first_seq <= s <= last_seq]

    def take_back(self) -> None:
        """Put everything unconfirmed before what waits, in seq order: it must be sent again."""
        seqs = sorted(self._unconfirmed, reverse=True)
        self._pending.extendleft([self._unconfirmed[seq] for seq in seqs])
        self._pending_events.extendleft([self._unconfirmed_events[seq] for seq in seqs])
        self._pending_bytes += self._unconfirmed_bytes
        self._forget_unconfirmed()

    def drop_unconfirmed(self) -> tuple[int, int]:
        """Forget what waits for a receipt; return (records, events)."""
        dropped = len(self._unconfirmed), sum(self._unconfirmed_events.values())
        self._forget_unconfirmed()
        return dropped

    def drop_pending(self) -> tuple[int, int]:
        """Forget what the sink has not taken; return (records, events)."""
        dropped = len(self._pending), sum(self._pending_events)
        self._pending.clear()
        self._pending_events.clear()
        self._pending_bytes = 0
        return dropped

    def _forget_unconfirmed(self) -> None:
        self._unconfirmed.clear()
        self._unconfirmed_events.clear()
        self._unconfirmed_bytes = 0


def _payload_bytes(records: Iterable[Record]) -> int:
    return sum([len(record.payload) for record in records])
