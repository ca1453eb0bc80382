"""The legacy positional form of an event: ``[tag, field, field, ...]``, in the structs' field order.

vLLM (until vllm-project/vllm#42892) and SGLang (until sgl-project/sglang#37482) wrote events like
this; AIBrix, kthena and llm-d's SGLang adapter still read nothing else, and ROCm ATOM still writes
it. The order is that of the fields in ``events``, which only grow at their end. Positions after
``locality`` were never agreed on by anybody: they are filled only when there is a value, rather
than losing what tells two blocks apart.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final

import msgspec

from kvevents_core.errors import EncodeError
from kvevents_core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
)

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    struct.__name__: struct.__struct_fields__
    for struct in (BlockStored, BlockRemoved, AllBlocksCleared)
}
"""Field names by tag, in positional order."""

_LEAST_ITEMS: Final = {"BlockStored": 6, "BlockRemoved": 2, "AllBlocksCleared": 1}
"""Items that are always written, the tag included: those that every release of both engines wrote
while they sent arrays (up to ``lora_id``; SGLang at 612d579090), so readers may count on them."""

_OURS: Final[dict[type, Callable[[Any], Any]]] = {
    BlockStored: attrgetter(*BlockStored.__struct_fields__),
    BlockRemoved: attrgetter(*BlockRemoved.__struct_fields__),
}


def tag_of(event: Any) -> str:
    """Return the ``type`` an event carries on the wire: its struct's tag, else its class's name."""
    config = getattr(type(event), "__struct_config__", None)
    tag = getattr(config, "tag", None)
    return tag if isinstance(tag, str) else type(event).__name__


def to_positional(event: Any) -> list[Any]:
    """Return an event of ours or of an engine as its positional form, trailing None trimmed.

    Raises:
        EncodeError: The event is of a kind that has no positional form.
    """
    tag = tag_of(event)
    names = FIELDS.get(tag)
    if names is None:
        raise EncodeError(f"an event of type {tag!r} has no form in dialect 'array'")
    read = _OURS.get(type(event))
    values = read(event) if read else [getattr(event, name, None) for name in names]
    items = [tag, *values]
    least = _LEAST_ITEMS[tag]
    while len(items) > least and items[-1] is None:
        items.pop()
    if tag == "BlockStored" and items[3] is None:
        items[3] = []
    return items


class _Stored(BlockStored, array_like=True, tag="BlockStored", gc=False):
    pass


class _Removed(BlockRemoved, array_like=True, tag="BlockRemoved", gc=False):
    pass


class _Cleared(AllBlocksCleared, array_like=True, tag="AllBlocksCleared", gc=False):
    pass


class PositionalBatch(msgspec.Struct, array_like=True, gc=False):
    """A batch whose events are all positional, for a typed decoder; fields as ``KVEventBatch``."""

    ts: float
    events: list[_Stored | _Removed | _Cleared]
    dp_rank: int | None = None

    def as_ours(self) -> KVEventBatch:
        """Return the batch with events of the public classes."""
        events = [_PUBLIC[type(event)](*msgspec.structs.astuple(event)) for event in self.events]
        return KVEventBatch(self.ts, events, self.dp_rank)


_PUBLIC: Final[dict[type, type[KVCacheEvent]]] = {
    _Stored: BlockStored,
    _Removed: BlockRemoved,
    _Cleared: AllBlocksCleared,
}
