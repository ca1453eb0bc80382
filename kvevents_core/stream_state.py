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
    last_before_reconnect: int = -1
    """Seq of this life's last record when the connection was found to be a new one; -1: none."""
    is_verified: bool = True
    """The first live record after a beginning was looked up in history: what a former life had sent
    may still wait in the socket."""
    told_conflicts: set[object] = field(default_factory=set)

    def restart(self, epoch: int | None) -> None:
        """Begin a new life."""
        self.sequence.restart(epoch)
        self.is_verified = False
        self.last_before_reconnect = -1
        self.told_conflicts.clear()

    def is_of_new_life(self, record: Record) -> bool:
        """Return whether ``record`` certainly belongs to another life than the one known."""
        known = self.sequence.epoch
        return None not in (known, record.epoch) and known != record.epoch

    def conflict(self, record: Record, verdict: Verdict, peers: int) -> Conflict | None:
        """Return what to say of ``record``, which is dropped; None if it was said before."""
        told = record.epoch if verdict is Verdict.STALE else "same number"
        if told in self.told_conflicts:
            return None
        self.told_conflicts.add(told)
        owner = f"epoch {self.sequence.epoch}"
        detail = (
            f"a publisher of epoch {record.epoch or 'unknown'} goes on under a stream owned by {owner}"
            if verdict is Verdict.STALE
            else f"batch {record.seq} came twice with different bytes ({owner}, "
            f"{peers} publishers connected)"
        )
        return Conflict(self.stream, record.epoch, record.seq, detail)
