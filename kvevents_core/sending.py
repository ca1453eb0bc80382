"""What a publisher has behind its outbox, and what it asks of it: a thread, or a process."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec


class SendingFacts(msgspec.Struct, frozen=True):
    """Everything behind the outbox at one moment; ``PublisherStats`` says what each means."""

    published_batches: int = 0
    published_events: int = 0
    published_bytes: int = 0
    lost: dict[str, int] = {}
    lost_events: dict[str, int] = {}
    in_flight_batches: int = 0
    in_flight_bytes: int = 0
    replay_batches: int = 0
    replay_bytes: int = 0
    sender_errors: int = 0
    alive: bool = False
    epoch: int | None = None
    next_seq: int = 0
    connected: bool = False
    superseded_by: int | None = None
    error: str | None = None


class Sending(Protocol):
    """What empties the outbox of one stream into its sink."""

    def start(self) -> None:
        """Begin. Once, after construction, which has opened the stream's local address."""

    def abandon(self, timeout_s: float) -> None:
        """Free everything, instead of ``start``."""

    def stop(self, timeout_s: float) -> bool:
        """Send what fits ``timeout_s`` and end; True if it ended. Any thread."""

    def disown(self) -> None:
        """Let go, in a forked child, of what belongs to its parent."""

    def facts(self) -> SendingFacts:
        """Return how things stand. Any thread."""

    def describe(self) -> dict[str, Any]:
        """Return the sink's own facts, JSON-able and without secrets. Any thread."""
