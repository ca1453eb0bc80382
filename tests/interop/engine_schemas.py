"""What SGLang 0.5.23 and vLLM 0.33.0 put on the wire, restated for tests; no engine's code.

Only keys, their order, their types and which are left out when None (docs/reference/wire.md): the
batch is an array, the events are maps tagged by ``type``.
"""

from typing import Any

import msgspec

TAG = "type"


class VllmStored(msgspec.Struct, tag="BlockStored", tag_field=TAG, omit_defaults=True):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class VllmRemoved(msgspec.Struct, tag="BlockRemoved", tag_field=TAG, omit_defaults=True):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class VllmCleared(msgspec.Struct, tag="AllBlocksCleared", tag_field=TAG, omit_defaults=True):
    pass


class VllmBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[VllmStored | VllmRemoved | VllmCleared]
    data_parallel_rank: int | None = None


class SglangStored(msgspec.Struct, tag="BlockStored", tag_field=TAG, omit_defaults=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int] | list[tuple[int, int]]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    lora_name: str | None = None
    session_id: str | None = None
    cache_salt: str | None = None


class SglangRemoved(msgspec.Struct, tag="BlockRemoved", tag_field=TAG, omit_defaults=True):
    block_hashes: list[int]
    medium: str | None = None


class SglangCleared(msgspec.Struct, tag="AllBlocksCleared", tag_field=TAG, omit_defaults=True):
    pass


class SglangBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]
    attn_dp_rank: int | None = None


class SglangReadBatch(msgspec.Struct, array_like=True):
    """What SGLang's own reader expects: it does not decode its own token pairs."""

    ts: float
    events: list["SglangReadStored | SglangRemoved | SglangCleared"]
    attn_dp_rank: int | None = None


class SglangReadStored(msgspec.Struct, tag="BlockStored", tag_field=TAG):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
