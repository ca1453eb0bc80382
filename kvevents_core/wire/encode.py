"""Encode batches, of ours or of an engine, in one of the dialects. Never alters an event.

The usual path is one call into msgspec. Only when that fails are events taken one at a time,
repaired where that is harmless, and the hopeless ones left out and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from kvevents_core.errors import EncodeError
from kvevents_core.events import AllBlocksCleared, KVEventBatch
from kvevents_core.wire.positional import to_positional
from kvevents_core.wire.rebuild import plain, repaired, with_fields, without_tokens
from kvevents_core.wire.split import Packing, SplitBatch

DIALECTS: Final = ("native", "array")

_KEPT_BYTES: Final = 1024 * 1024
"""A buffer that grew above this is not kept for the next batch."""
_RANK_FIELDS: Final = ("dp_rank", "attn_dp_rank", "data_parallel_rank")
"""Ours, SGLang 0.5.23's and vLLM 0.33.0's name of the third element of a batch."""


class BatchEncoder:
    """Encodes the batches of one stream. One thread at a time.

    Args:
        rank: Stream rank, stamped into the rank field of batches that leave it None. A rank that
            the batch already has stays (a relay's).
        dialect: ``native`` (events as they are: maps) or ``array`` (legacy positional events).
        omit_token_ids: Leave prompt tokens out; ``token_ids`` is then an empty list.
    """

    def __init__(
        self, rank: int, *, dialect: str = "native", omit_token_ids: bool = False
    ) -> None:
        if dialect not in DIALECTS:
            raise EncodeError(
                f"dialect {dialect!r} is unknown; it is one of {', '.join(DIALECTS)}"
            )
        self._rank = rank
        self._encode_into = msgspec.msgpack.Encoder(enc_hook=plain).encode_into
        self._buffer = bytearray()
        self._strip: Callable[[Any], Any] | None = without_tokens if omit_token_ids else None
        self._form: Callable[[Any], Any] | None = to_positional if dialect == "array" else None
        self._reshapes = self._strip is not None or self._form is not None
        self._rank_field_of: dict[type, str | None] = {}
        """Per batch class; None for one whose instances have to be rebuilt as ours."""

    def encode(self, batch: Any) -> bytes:
        """Return the payload of ``batch``, whole.

        The batch's rank field is stamped in place, as both engines' own publishers do.

        Raises:
            EncodeError: The batch, or at least one of its events, cannot be encoded.
        """
        try:
            # The usual batch in a few steps; ``_stamped`` does the same for every other.
            name = self._rank_field_of.get(type(batch))
            if name is not None and type(batch.ts) is float and type(batch.events) is list:
                if getattr(batch, name) is None:
                    setattr(batch, name, self._rank)
                whole = batch
            else:
                whole = self._stamped(batch)
            if self._reshapes:
                whole = with_fields(
                    whole, events=[self._reshaped(event) for event in whole.events]
                )
            return self._pack(whole)
        except Exception as exc:
            return self._encode_repaired(batch, exc)

    def _pack(self, whole: Any) -> bytes:
        # Copying out of one buffer costs nothing measurable. What ``encode`` returns was shrunk in
        # place, and for as long as it lives it holds up to twice its length (``bench.memory``).
        self._encode_into(whole, self._buffer)
        payload = bytes(self._buffer)
        if len(payload) > _KEPT_BYTES:
            self._buffer = bytearray()
        return payload

    def encode_surviving(self, batch: Any) -> tuple[bytes | None, int]:
        """Return the payload of the events that can be encoded, and how many cannot.

        (None, number of events) if the batch itself cannot be encoded. Never raises.
        """
        try:
            return self.encode(batch), 0
        except EncodeError:
            return self._encode_by_event(batch)

    def split(self, batch: Any, max_message_bytes: int) -> SplitBatch:
        """Return ``batch`` as payloads of at most ``max_message_bytes`` each. Never raises."""
        try:
            batch = self._stamped(batch)
            envelope = self._enclose(batch, [])
            events: Sequence[Any] = list(batch.events)
        except Exception:
            return SplitBatch([], 0, _count_events(batch))
        packing = Packing(max_message_bytes - len(envelope))
        for event in events:
            packing.add(self._stripped(event), self._encode_event)
        payloads = [self._enclose(batch, group) for group in packing.groups]
        if not events and packing.room_bytes >= 0:
            payloads = [envelope]
        return SplitBatch(payloads, packing.too_large_events, packing.unencodable_events)

    def heartbeat(self, ts: float) -> bytes:
        """Return an empty batch: the one heartbeat that every known consumer accepts."""
        return self._pack([float(ts), [], self._rank])

    def opening(self, ts: float) -> bytes:
        """Return the batch that opens an epoch: one ``AllBlocksCleared``."""
        return self.encode(KVEventBatch(ts, [AllBlocksCleared()], self._rank))

    def _encode_repaired(self, batch: Any, cause: Exception) -> bytes:
        payload, lost_events = self._encode_by_event(batch)
        if payload is None:
            kind = type(batch).__name__
            raise EncodeError(f"a {kind} is not a batch that can be encoded: {cause}") from cause
        if lost_events:
            raise EncodeError(
                f"{lost_events} of {len(batch.events)} events cannot be encoded: {cause}"
            ) from cause
        return payload

    def _encode_by_event(self, batch: Any) -> tuple[bytes | None, int]:
        try:
            batch = self._stamped(batch)
            chunks = [self._encode_event(self._stripped(event)) for event in batch.events]
            kept = [chunk for chunk in chunks if chunk is not None]
            return self._enclose(batch, kept), len(chunks) - len(kept)
        except Exception:
            return None, _count_events(batch)

    def _encode_event(self, event: Any) -> bytes | None:
        for attempt in (_unchanged, repaired):
            try:
                return self._pack(self._reshaped(attempt(event)))
            except Exception:  # noqa: S112 - the caller counts what no attempt could encode
                continue
        return None

    def _reshaped(self, event: Any) -> Any:
        if self._strip is not None:
            event = self._strip(event)
        return event if self._form is None else self._form(event)

    def _stripped(self, event: Any) -> Any:
        try:
            return event if self._strip is None else self._strip(event)
        except EncodeError:
            return event  # _encode_event strips again, fails again and so counts it

    def _enclose(self, batch: Any, chunks: list[bytes]) -> bytes:
        return self._pack(with_fields(batch, events=[msgspec.Raw(chunk) for chunk in chunks]))

    def _stamped(self, batch: Any) -> Any:
        kind = type(batch)
        if kind not in self._rank_field_of:
            self._rank_field_of[kind] = _rank_field(kind)
        name = self._rank_field_of[kind]
        if name is None:
            return self._as_ours(batch)
        if getattr(batch, name) is None:
            setattr(batch, name, self._rank)
        if type(batch.ts) is not float:
            batch.ts = float(batch.ts)  # AIBrix loses a batch whose timestamp is an int
        if type(batch.events) is not list:
            return with_fields(batch, events=list(batch.events))
        return batch

    def _as_ours(self, batch: Any) -> KVEventBatch:
        ranks = (getattr(batch, name, None) for name in _RANK_FIELDS)
        rank = next((rank for rank in ranks if rank is not None), self._rank)
        return KVEventBatch(float(batch.ts), list(batch.events), rank)


def _unchanged(event: Any) -> Any:
    return event


def _rank_field(kind: type) -> str | None:
    """Return the name of the rank field of a struct that encodes as an array and can be stamped."""
    config = getattr(kind, "__struct_config__", None)
    if config is None or not config.array_like or config.frozen:
        return None
    return next((name for name in _RANK_FIELDS if hasattr(kind, name)), None)


def _count_events(batch: Any) -> int:
    try:
        return len(batch.events)
    except Exception:
        return 0
