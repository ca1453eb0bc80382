"""Decode whatever engines and relays put on the wire. Raises nothing but ``DecodeError``.

The usual path is one typed msgspec decode, and one more for the legacy form. Only when both fail
are events taken one at a time, and those that are of an unknown kind or malformed are skipped and
counted: the rest of the batch is still true.
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

import msgspec

from kvevents_core.errors import DecodeError
from kvevents_core.events import KVCacheEvent, KVEventBatch
from kvevents_core.wire.lenient import read_event
from kvevents_core.wire.positional import PositionalBatch

_NIL: Final = b"\xc0"
_SHOWN_BYTES: Final = 16


class DecodedBatch(msgspec.Struct, frozen=True, gc=False):
    """One batch and what of it could not be read."""

    batch: KVEventBatch
    """Its events are ``KVCacheEvent`` structs; ``dp_rank`` is None if the sender gave none."""
    skipped_events: int = 0
    """Events of unknown kind, or malformed. They may have been removals: see ``Mirror``."""


class _Frame(msgspec.Struct, array_like=True):
    """A batch whose parts are well-formed msgpack and not looked at yet."""

    ts: msgspec.Raw
    events: list[msgspec.Raw]
    rank: msgspec.Raw = msgspec.Raw(_NIL)


class _MapFrame(msgspec.Struct):
    """The same as a map, as in one development version of vLLM (read at its commit 0181ea317)."""

    ts: msgspec.Raw
    events: list[msgspec.Raw]
    data_parallel_rank: msgspec.Raw = msgspec.Raw(_NIL)

    @property
    def rank(self) -> msgspec.Raw:
        return self.data_parallel_rank


class BatchDecoder:
    """Decodes payloads of any dialect, mixed. One thread at a time."""

    def __init__(self) -> None:
        self._batch = msgspec.msgpack.Decoder(KVEventBatch)
        self._positional = msgspec.msgpack.Decoder(PositionalBatch)
        self._frame = msgspec.msgpack.Decoder(_Frame)
        self._map_frame = msgspec.msgpack.Decoder(_MapFrame)
        self._event: msgspec.msgpack.Decoder[KVCacheEvent] = msgspec.msgpack.Decoder(KVCacheEvent)
        self._any = msgspec.msgpack.Decoder()

    def decode(self, payload: bytes) -> DecodedBatch:
        """Return the batch in ``payload``.

        A timestamp that is no finite number reads as 0.0, a rank that is no int as None: neither
        makes the events untrue.

        Raises:
            DecodeError: The bytes are not one batch: ``[ts, events, ...]``, or a map of the same.
        """
        try:
            batch = self._batch.decode(payload)
        except Exception:
            return self._decode_otherwise(payload)
        if not isfinite(batch.ts):
            batch.ts = 0.0
        return DecodedBatch(batch)

    def _decode_otherwise(self, payload: bytes) -> DecodedBatch:
        try:
            batch = self._positional.decode(payload).as_ours()
        except Exception:
            return self._decode_leniently(payload)
        if not isfinite(batch.ts):
            batch.ts = 0.0
        return DecodedBatch(batch)

    def _decode_leniently(self, payload: bytes) -> DecodedBatch:
        frame = self._frame_of(payload)
        read = [self._decode_event(raw) for raw in frame.events]
        events = [event for event in read if event is not None]
        ts, rank = self._anything(frame.ts), self._anything(frame.rank)
        batch = KVEventBatch(
            ts=float(ts) if type(ts) in (int, float) and isfinite(ts) else 0.0,
            events=events,
            dp_rank=rank if type(rank) is int else None,
        )
        return DecodedBatch(batch, len(read) - len(events))

    def _frame_of(self, payload: bytes) -> _Frame | _MapFrame:
        try:
            return self._frame.decode(payload)
        except Exception as exc:
            try:
                return self._map_frame.decode(payload)
            except Exception:
                raise DecodeError(_complaint(payload, exc)) from exc

    def _decode_event(self, raw: msgspec.Raw) -> KVCacheEvent | None:
        try:
            return self._event.decode(raw)
        except Exception:
            return read_event(self._anything(raw))

    def _anything(self, raw: msgspec.Raw) -> Any:
        try:
            return self._any.decode(raw)
        except Exception:
            return None


def _complaint(payload: object, cause: Exception) -> str:
    if not isinstance(payload, bytes | bytearray | memoryview):
        return f"a payload must be bytes, not {type(payload).__name__}"
    start = bytes(payload[:_SHOWN_BYTES]).hex(" ")
    return (
        f"{len(payload)} bytes, starting with {start or 'nothing'}, are not a KV event batch"
        f" [ts, events, rank]: {cause}"
    )
