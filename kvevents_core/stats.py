"""Counters of one publisher with a frozen snapshot of them, and of one subscription.

Each counter has one writer (the sender thread, or the engine's thread for what it drops), so plain
ints are enough and the engine takes no lock for them. The Prometheus exporter reads snapshots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

OVERFLOW = "overflow"
"""The outbox was full."""
ENCODE = "encode"
"""A batch or event that msgpack cannot hold."""
TOO_LARGE = "too_large"
"""An event above the transport's limit that cannot be cut."""
REJECTED = "rejected"
"""The transport refused the record for good."""
SUPERSEDED = "superseded"
"""Another publisher owns the stream; nothing of ours may be sent."""
CLOSED = "closed"
"""Published after ``shutdown``."""
FORKED = "forked"
"""Published in a forked child, which has no sender."""
SENDER_DIED = "sender_died"
"""With a sender process that died: delivered or not, nobody can say."""
UNSENT_AT_CLOSE = "unsent_at_close"
"""Still waiting when the deadline of ``shutdown`` passed."""
UNCONFIRMED_AT_CLOSE = "unconfirmed_at_close"
"""Sent, but not confirmed when the deadline passed: delivered or not, nobody can say."""


@dataclass(frozen=True, slots=True)
class PublisherStats:
    """One publisher at one moment. Counts start at 0 with the publisher."""

    published_batches: int = 0
    """Numbered batches the sink took (confirmed, where the transport confirms), the opening batch,
    heartbeats and the parts of a split batch included."""
    published_events: int = 0
    published_bytes: int = 0
    """Payload bytes of ``published_batches``."""
    lost: dict[str, int] = field(default_factory=dict)
    """Batches lost, by reason. Those lost before ``shutdown`` are holes in the numbering."""
    lost_events: dict[str, int] = field(default_factory=dict)
    """Events lost, by reason."""
    queued_batches: int = 0
    queued_bytes: int = 0
    """Estimated memory of the outbox."""
    in_flight_batches: int = 0
    """Numbered, or on the way to a sender process, but not yet taken or confirmed by the transport."""
    in_flight_bytes: int = 0
    replay_batches: int = 0
    replay_bytes: int = 0
    sender_errors: int = 0
    """Exceptions the sender thread survived; any above 0 is a fault worth a report."""
    sender_alive: bool = False
    epoch: int | None = None
    next_seq: int = 0
    connected: bool = False
    superseded_by: int | None = None
    error: str | None = None
    """The transport's last trouble in one line; None while all is well."""
    alarms: tuple[str, ...] = ()
    """Codes of what an operator should look at although nothing failed; see ``alarms``."""

    @property
    def lost_batches(self) -> int:
        """All batches lost, whatever the reason."""
        return sum(self.lost.values())


@dataclass(slots=True)
class SenderCounters:
    """What the sender thread counts; nobody else writes it."""

    published_batches: int = 0
    published_events: int = 0
    published_bytes: int = 0
    sender_errors: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    lost_events: Counter[str] = field(default_factory=Counter)

    def lose(self, reason: str, batches: int, events: int) -> None:
        """Count a loss."""
        if batches or events:
            self.lost[reason] += batches
            self.lost_events[reason] += events


def add(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of ``counts`` by reason, without the zeros."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {reason: count for reason, count in sorted(total.items()) if count}


@dataclass(slots=True)
class ReaderStats:
    """What one subscription counted so far."""

    batches: int = 0
    events: int = 0
    replayed_batches: int = 0
    duplicates: int = 0
    """Records dropped because they had been handed out before."""
    gaps: int = 0
    lost_batches: int = 0
    """Numbers covered by the gaps."""
    restarts: int = 0
    conflicts: int = 0
    """Records dropped because another publisher owns their stream."""
    undecodable: int = 0
    """Batches that are not in any dialect; each is a gap of its number."""
    skipped_events: int = 0
    """Events of decoded batches that the decoder did not know or could not read."""
    outdated: int = 0
    """Records of a former life that were read after the new one was known; dropped."""
    malformed: int = 0
    """Arrivals that were no records at all."""
    troubles: int = 0
    last_trouble: str | None = None
    lag_s: float = 0.0
    """Reader's clock minus the ``ts`` of the last live batch."""
