"""Cut what is too large for a transport into parts, between events or between blocks.

One event may hold a whole prompt and alone exceed a broker's limit, so a store is cut at block
boundaries: the parts are one chain, each later part having the last hash of the one before as its
parent. Never cuts where it would have to guess which tokens belong to which block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from kvevents_core.wire.positional import tag_of
from kvevents_core.wire.rebuild import with_fields

_PER_BLOCK_LISTS: Final = ("extra_keys", "lookahead_token_ids")


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """One batch as several payloads, in order, and what is in none of them."""

    payloads: list[bytes]
    """Each a whole batch of at most ``max_message_bytes``; empty if nothing could be kept."""
    too_large_events: int
    """Events that exceed the limit and cannot be cut."""
    unencodable_events: int
    """Events that msgpack cannot hold."""


@dataclass(slots=True)
class Packing:
    """Encoded events in groups, one group per payload, while they are being packed."""

    room_bytes: int
    """What is left of ``max_message_bytes`` after the envelope of a batch without events."""
    groups: list[list[bytes]] = field(default_factory=list)
    too_large_events: int = 0
    unencodable_events: int = 0
    _used_bytes: int = 0

    def add(self, event: Any, encode_event: Callable[[Any], bytes | None]) -> None:
        """Put ``event`` into the last group it fits in, in parts if need be, or count it."""
        chunk = encode_event(event)
        if chunk is None:
            self.unencodable_events += 1
            return
        chunks = fitting_parts(event, chunk, self.room_bytes, encode_event)
        if chunks is None:
            self.too_large_events += 1
            return
        for part in chunks:
            self._append(part)

    def _append(self, chunk: bytes) -> None:
        used_bytes = self._used_bytes + len(chunk)
        if not self.groups or used_bytes + _growth(len(self.groups[-1]) + 1) > self.room_bytes:
            self.groups.append([])
            used_bytes = len(chunk)
        self.groups[-1].append(chunk)
        self._used_bytes = used_bytes


def _growth(events: int) -> int:
    """Bytes that the header of a msgpack array takes beyond that of an empty one."""
    if events <= 0xF:
        return 0
    return 2 if events <= 0xFFFF else 4


def fitting_parts(
    event: Any, chunk: bytes, room_bytes: int, encode_event: Callable[[Any], bytes | None]
) -> list[bytes] | None:
    """Return ``event``, encoded as ``chunk``, in encoded parts of at most ``room_bytes`` each.

    None if it is too large and cannot be cut small enough: all of it or nothing, since blocks
    behind a missing part would have a parent nobody knows.
    """
    if len(chunk) <= room_bytes:
        return [chunk]
    if room_bytes <= 0:
        return None
    try:
        pieces = list(cut(event, -(-len(chunk) // room_bytes)))
    except Exception:  # lists without a length or slices: cut would have to guess
        return None
    parts: list[bytes] = []
    for piece in pieces:
        encoded = encode_event(piece)
        fitting = encoded and fitting_parts(piece, encoded, room_bytes, encode_event)
        if not fitting:
            return None
        parts += fitting
    return parts or None


def cut(event: Any, parts: int) -> Iterator[Any]:
    """Yield ``event`` as at most ``parts`` smaller events; nothing if it cannot be cut."""
    lengths = _items_per_block(event)
    blocks = len(event.block_hashes) if lengths else 0
    if blocks < 2:
        return
    step = -(-blocks // parts)
    for first in range(0, blocks, step):
        changes = {
            name: getattr(event, name)[first * items : (first + step) * items]
            for name, items in lengths.items()
        }
        if first and hasattr(event, "parent_block_hash"):
            changes["parent_block_hash"] = event.block_hashes[first - 1]
        yield with_fields(event, **changes)


def _items_per_block(event: Any) -> dict[str, int]:
    """Return how many items of each list belong to one block; empty if that cannot be told."""
    tag = tag_of(event)
    if tag == "BlockRemoved":
        return {"block_hashes": 1}
    if tag != "BlockStored":
        return {}
    lengths = {"block_hashes": 1}
    blocks = len(event.block_hashes)
    tokens = len(event.token_ids)
    if tokens and tokens == blocks * (event.block_size or 0):
        lengths["token_ids"] = event.block_size
    elif tokens:
        return {}
    for name in _PER_BLOCK_LISTS:
        value = getattr(event, name, None)
        if value and len(value) == blocks:
            lengths[name] = 1
        elif value:
            return {}
    return lengths
