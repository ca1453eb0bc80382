"""Copies of events and batches with some fields changed. Never alters what an engine handed over."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import msgspec

from kvevents_core.errors import EncodeError
from kvevents_core.wire.hashes import fit_int


def with_fields(thing: Any, **changes: Any) -> Any:
    """Return a copy of a struct, or of any object with attributes, with ``changes`` applied."""
    if isinstance(thing, msgspec.Struct):
        return msgspec.structs.replace(thing, **changes)
    copied = copy.copy(thing)
    for name, value in changes.items():
        setattr(copied, name, value)
    return copied


def without_tokens(event: Any) -> Any:
    """Return the event without prompt text: ``token_ids`` empty, ``*_token_ids`` None.

    Raises:
        EncodeError: The event is not a msgspec struct, so what it holds cannot be told.
    """
    if not isinstance(event, msgspec.Struct):
        kind = type(event).__name__
        raise EncodeError(f"omit_token_ids cannot tell what an event of type {kind} holds")
    names = _token_fields(type(event))
    changes: dict[str, Any] = {name: [] if name == "token_ids" else None for name in names}
    return msgspec.structs.replace(event, **changes) if changes else event


@lru_cache(maxsize=64)
def _token_fields(struct: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in struct.__struct_fields__ if name.endswith("token_ids"))


def repaired(event: Any) -> Any:
    """Return the event in a form msgpack can hold, as far as its meaning allows.

    Ints outside i64/u64 keep their low 64 bits, a ``medium`` of any type becomes its name
    (LMCache/LMCache#2441), strings that are not valid Unicode are escaped.
    """
    if not isinstance(event, msgspec.Struct):
        return _fitted(event)
    changes = {name: _fitted(getattr(event, name)) for name in event.__struct_fields__}
    if changes.get("medium") is not None:
        changes["medium"] = _medium_name(changes["medium"])
    return msgspec.structs.replace(event, **changes)


def _medium_name(medium: Any) -> str:
    return str(medium.value if isinstance(medium, Enum) else medium)


def _fitted(value: Any) -> Any:
    if isinstance(value, bool | Enum):
        return value
    if isinstance(value, int):
        return fit_int(int(value))
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list | tuple):
        return [_fitted(item) for item in value]
    if isinstance(value, dict):
        return {_fitted(key): _fitted(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        return _fitted(value.tolist())
    return value


def plain(value: Any) -> Any:
    """Return what msgspec can encode in place of a ``value`` it cannot (its ``enc_hook``).

    Arrays (numpy, ``array.array``, torch) become lists: for 4096 tokens that costs less than
    building minimal msgpack ints with numpy does (measured with numpy 2.4).

    Raises:
        TypeError: Nothing sensible can be encoded in its place.
    """
    if isinstance(value, str):
        return str.__str__(value)
    for exact in (int, float):
        if isinstance(value, exact):
            return exact(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"msgpack cannot hold a {type(value).__name__}")
