"""What a KV cache says about itself: the events and batches of SGLang and vLLM in one schema.

The structs are a superset of both engines' (SGLang 0.5.23 ``sglang/srt/disaggregation/kv_events.py``,
vLLM 0.33.0 ``vllm/distributed/kv_events.py``). They only grow: a new field comes last and has a
default, and no type ever changes. This module never touches bytes; ``wire`` does.

msgspec leaves a field off the wire when it equals its plain default (``omit_defaults``), and always
writes one whose default comes from a factory. So ``default_factory`` below marks the keys that
vllm-router 0.1.17 requires in every event, and a plain ``None`` those that it rejects when nil.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

BlockHash: TypeAlias = int | bytes
"""Opaque name of one block: a signed (SGLang) or unsigned (vLLM) 64-bit int, or a whole digest."""

TokenIds: TypeAlias = Sequence[Any]
"""Ints, or pairs of ints under EAGLE (SGLang); numpy arrays and ``array.array`` are accepted too."""


def _no_tokens() -> TokenIds:
    return ()


class BlockStored(
    msgspec.Struct, tag="BlockStored", tag_field="type", omit_defaults=True, gc=False
):
    """Blocks entered the cache as one chain: block *i* has block *i - 1* as its parent."""

    block_hashes: list[BlockHash]
    """One hash per block, in chain order."""
    parent_block_hash: BlockHash | None = msgspec.field(default_factory=NoneType)
    """Parent of the first block; only None means root, 0 does not."""
    token_ids: TokenIds = msgspec.field(default_factory=_no_tokens)
    """Tokens of all the blocks; may be empty (CPU tier, or left out on purpose)."""
    block_size: int | None = msgspec.field(default_factory=int)
    """Tokens per block (SGLang: ``page_size * dcp_size``); 0 or None on a mere change of tier."""
    lora_id: int | None = msgspec.field(default_factory=NoneType)
    """Deprecated by both engines in favour of ``lora_name``."""
    medium: str | None = msgspec.field(default_factory=NoneType)
    """Tier, raw: ``GPU``, ``CPU``, ``CPU_PINNED``, ``DISK``, ``STORAGE``, ``EXTERNAL``."""
    lora_name: str | None = msgspec.field(default_factory=NoneType)
    extra_keys: list[Any] | None = None
    """One tuple or None per block (vLLM): LoRA name, image identities, salt."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    """``LOCAL`` or ``REMOTE`` (vLLM)."""
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[Any] | None = None
    """New in vLLM 0.33.0."""
    cache_salt: str | None = None
    """SGLang; vLLM carries the salt in ``extra_keys``."""


class BlockRemoved(
    msgspec.Struct, tag="BlockRemoved", tag_field="type", omit_defaults=True, gc=False
):
    """Blocks left one tier of the cache."""

    block_hashes: list[BlockHash]
    medium: str | None = msgspec.field(default_factory=NoneType)
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class AllBlocksCleared(
    msgspec.Struct, tag="AllBlocksCleared", tag_field="type", omit_defaults=True, gc=False
):
    """The cache of this stream is empty, or one tier of it when ``medium`` says so."""

    medium: str | None = None


KVCacheEvent: TypeAlias = BlockStored | BlockRemoved | AllBlocksCleared

if TYPE_CHECKING:
    EventList: TypeAlias = list[Any]
else:
    # What the decoder builds in one pass. Publishing takes an engine's own structs as well, and
    # msgspec encodes whatever it finds, so the annotation binds the decoder only.
    EventList = list[KVCacheEvent]


class KVEventBatch(msgspec.Struct, array_like=True, gc=False):
    """The events of one engine step, in order: ``[ts, events, dp_rank]`` on the wire."""

    ts: float
    """Unix seconds when the engine made the batch."""
    events: EventList
    """``KVCacheEvent`` structs, or an engine's own event structs when publishing."""
    dp_rank: int | None = None
    """Stream rank, 0..dp-1; None until the publisher stamps it."""
