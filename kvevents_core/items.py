"""What a reader is told about a stream, one frozen struct per kind of news.

``subscriber`` makes them; ``mirror`` and the reader's own code take them. They are msgspec structs
since one ``Batch`` is made for every batch read, and a frozen dataclass takes seven times as long.
This module does nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from kvevents_core.naming import StreamId


class Batch(msgspec.Struct, frozen=True):
    """One batch, in order: its seq is one above the last batch or gap of this stream and epoch."""

    stream: StreamId
    epoch: int | None
    """Life of the stream; None where the transport does not tell (a stock engine over ZMQ)."""
    seq: int
    ts: float
    """Unix seconds when the engine made the batch."""
    events: list[Any]
    """``BlockStored``, ``BlockRemoved``, ``AllBlocksCleared``, in order; empty is a heartbeat."""
    skipped_events: int = 0
    """Events of this batch that the decoder did not know or could not read."""
    replayed: bool = False
    """It came from history (replay ring or broker log), not from live traffic."""


class Gap(msgspec.Struct, frozen=True):
    """Batches ``first_seq..last_seq`` are lost to this reader and were not recovered."""

    stream: StreamId
    epoch: int | None
    first_seq: int
    last_seq: int
    reason: str
    """Why, in a few words."""


class Restarted(msgspec.Struct, frozen=True):
    """The publisher began a new life: whatever the stream said before no longer holds."""

    stream: StreamId
    previous_epoch: int | None
    epoch: int | None


class Conflict(msgspec.Struct, frozen=True):
    """Somebody else publishes under this stream's name; what it sent was dropped."""

    stream: StreamId
    epoch: int | None
    """Epoch of the batch that was dropped."""
    seq: int
    detail: str
    """Both identities, as far as known."""


class Silent(msgspec.Struct, frozen=True):
    """Nothing came from this stream, not even a heartbeat, for ``seconds``."""

    stream: StreamId
    seconds: float


Item: TypeAlias = Batch | Gap | Restarted | Conflict | Silent
