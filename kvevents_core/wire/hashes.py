"""One canonical form for block hashes, and integers that msgpack can hold. Never interprets a hash."""

from __future__ import annotations

from typing import Final

from kvevents_core.events import BlockHash

U64_MASK: Final = (1 << 64) - 1
_I64_MIN: Final = -(1 << 63)


def normalise_hash(block_hash: BlockHash) -> BlockHash:
    """Return the key under which equal hashes compare equal.

    SGLang writes 64-bit hashes signed, vLLM unsigned: -5 and 2**64 - 5 are one hash, and the u64
    form is canonical. ``bytes`` (vLLM's whole digest with
    ``VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0``) stay as they are, because consumers do not agree
    which 8 of the 32 bytes the int form would be.
    """
    return block_hash & U64_MASK if isinstance(block_hash, int) else block_hash


def fit_int(value: int) -> int:
    """Return ``value`` unchanged if msgpack can hold it, else its low 64 bits."""
    return value if _I64_MIN <= value <= U64_MASK else value & U64_MASK
