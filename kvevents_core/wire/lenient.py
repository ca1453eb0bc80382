"""Read one event that is not quite in today's form: positional, with nils, or Mooncake's map.

Skips an event rather than guess what it says. Never raises.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from kvevents_core.wire.positional import FIELDS

_STRUCTS: Final[dict[str, type[KVCacheEvent]]] = {
    "BlockStored": BlockStored,
    "BlockRemoved": BlockRemoved,
    "AllBlocksCleared": AllBlocksCleared,
}

_RFC_TAGS: Final = {
    "stored": "BlockStored",
    "removed": "BlockRemoved",
    "cleared": "AllBlocksCleared",
}
"""``event_type`` of kvcache-ai/Mooncake#1527, where ``type`` is absent."""

_RFC_NAMES: Final = {
    "block_hashes": "seq_hashes",
    "parent_block_hash": "parent_hash",
    "cache_salt": "additional_salt",
}
"""The same proposal's names of fields that it does not call as the engines do."""


def read_event(form: Any) -> KVCacheEvent | None:
    """Return the event that ``form``, a decoded msgpack value, stands for; None if unreadable."""
    try:
        tag, fields = _fields_of(form)
        return _build(tag, fields)
    except Exception:
        return None


def _fields_of(form: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(form, list):
        tag = form[0]
        return tag, dict(zip(FIELDS[tag], form[1:], strict=False))
    tag = form.get("type") or _RFC_TAGS[form["event_type"]]
    fields = {name: form[name] for name in FIELDS[tag] if name in form}
    for name in FIELDS[tag]:
        if name not in fields and _RFC_NAMES.get(name) in form:
            fields[name] = form[_RFC_NAMES[name]]
    return tag, fields


def _build(tag: str, fields: dict[str, Any]) -> KVCacheEvent:
    if fields.get("token_ids", ()) is None:
        del fields["token_ids"]
    medium = fields.get("medium")
    if medium is not None and not isinstance(medium, str):
        fields["medium"] = str(medium)
    return msgspec.convert(fields, _STRUCTS[tag])
