"""What a reader remembers of one stream, and what it says about the records it drops.

``stream_reader`` keeps one per stream. Does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvevents_core.backend import Record
from kvevents_core.items import Conflict
from kvevents_core.naming import StreamId
from kvevents_core.sequence import StreamSequence, Verdict


def fingerprint(payload: bytes) -> tuple[int, bytes]:
    """Tell batches of one number apart; their time stamps are in the first bytes."""
    return len(payload), payload[:24]


@dataclass(slots=True)
class StreamState:
    """One stream of a subscription."""

    stream: StreamId
    sequence: StreamSequence
    channel: int
    heard_at: float
    is_silent: bool = False
    is_checked: bool = True
    """History was asked since the last live record whether something followed it."""
    former_next_seq: int | None = None
    """Where the former life stood: what it had sent may still wait in the socket."""
    told_conflicts: set[object] = field(default_factory=set)

    def restart(self, epoch: int | None) -> None:
        """Begin a new life."""
        self.former_next_seq = self.sequence.next_seq
        self.sequence.restart(epoch)
        self.told_conflicts.clear()

    def is_leftover(self, record: Record, peers: int) -> bool:
        """Return whether ``record``, which is to be dropped, goes on where the former life stood."""
        former = self.former_next_seq
        if record.epoch is not None or former is None or record.seq < former or peers > 1:
            return False
        self.former_next_seq = record.seq + 1
        return True

    def conflict(self, record: Record, verdict: Verdict, peers: int) -> Conflict | None:
        """Return what to say of ``record``, which is dropped; None if it was said before."""
        told = record.epoch if verdict is Verdict.STALE else "same number"
        if told in self.told_conflicts:
            return None
        self.told_conflicts.add(told)
        owner = f"epoch {self.sequence.epoch}"
        detail = (
            f"a publisher of epoch {record.epoch} goes on under a stream owned by {owner}"
            if verdict is Verdict.STALE
            else f"batch {record.seq} came twice with different bytes ({owner}, "
            f"{peers} publishers connected)"
        )
        return Conflict(self.stream, record.epoch, record.seq, detail)
