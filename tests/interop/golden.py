"""Payloads of SGLang 0.5.23 and vLLM 0.33.0, byte for byte, in one table that is used both ways.

The bytes are frozen: an encoder that changes them no longer speaks the engine's language.
"""

from typing import Any

from interop.engine_schemas import (
    SglangBatch,
    SglangCleared,
    SglangRemoved,
    SglangStored,
    VllmBatch,
    VllmCleared,
    VllmRemoved,
    VllmStored,
)

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

GOLDEN: list[tuple[str, Any, KVEventBatch, str]] = [
    (
        "vllm-prefill",
        VllmBatch(
            1796097367.97,
            [
                VllmStored(
                    block_hashes=[14256682060930877746, 13100441626626336604],
                    parent_block_hash=None,
                    token_ids=[9707, 11, 151644, 0],
                    block_size=2,
                    lora_id=None,
                    medium="GPU",
                    lora_name=None,
                    extra_keys=[None, None],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            ],
            0,
        ),
        KVEventBatch(
            1796097367.97,
            [
                BlockStored(
                    block_hashes=[14256682060930877746, 13100441626626336604],
                    token_ids=[9707, 11, 151644, 0],
                    block_size=2,
                    medium="GPU",
                    extra_keys=[None, None],
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            ],
            0,
        ),
        (
            "93 cb 41 da c3 91 55 fe 14 7b 91 de 00 0b a4 74 79 70 65 ab 42 6c 6f 63 "
            "6b 53 74 6f 72 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 92 cf c5 d9 "
            "e8 cc 9d 78 09 32 cf b5 ce 1e 40 13 cd a7 5c b1 70 61 72 65 6e 74 5f 62 "
            "6c 6f 63 6b 5f 68 61 73 68 c0 a9 74 6f 6b 65 6e 5f 69 64 73 94 cd 25 eb "
            "0b ce 00 02 50 5c 00 aa 62 6c 6f 63 6b 5f 73 69 7a 65 02 a7 6c 6f 72 61 "
            "5f 69 64 c0 a6 6d 65 64 69 75 6d a3 47 50 55 a9 6c 6f 72 61 5f 6e 61 6d "
            "65 c0 aa 65 78 74 72 61 5f 6b 65 79 73 92 c0 c0 a9 67 72 6f 75 70 5f 69 "
            "64 78 00 b2 6b 76 5f 63 61 63 68 65 5f 73 70 65 63 5f 6b 69 6e 64 ae 66 "
            "75 6c 6c 5f 61 74 74 65 6e 74 69 6f 6e 00 "
        ),
    ),
    (
        "vllm-every-key-and-digests",
        VllmBatch(
            1796097368.0,
            [
                VllmStored(
                    block_hashes=[bytes(range(32))],
                    parent_block_hash=b"\xff" * 32,
                    token_ids=[1, 2],
                    block_size=2,
                    lora_id=7,
                    medium="CPU",
                    lora_name="adapter",
                    extra_keys=[("adapter", ("image", 3), "salt")],
                    group_idx=1,
                    kv_cache_spec_kind="sliding_window",
                    kv_cache_spec_sliding_window=4096,
                    locality="REMOTE",
                    ownership="tier-1",
                    session_id="s",
                    lookahead_token_ids=[[5, 6]],
                ),
                VllmRemoved([14256682060930877746], "GPU", 0, "LOCAL", "tier-0"),
                VllmCleared(),
            ],
            3,
        ),
        KVEventBatch(
            1796097368.0,
            [
                BlockStored(
                    block_hashes=[bytes(range(32))],
                    parent_block_hash=b"\xff" * 32,
                    token_ids=[1, 2],
                    block_size=2,
                    lora_id=7,
                    medium="CPU",
                    lora_name="adapter",
                    extra_keys=[["adapter", ["image", 3], "salt"]],
                    group_idx=1,
                    kv_cache_spec_kind="sliding_window",
                    kv_cache_spec_sliding_window=4096,
                    locality="REMOTE",
                    ownership="tier-1",
                    session_id="s",
                    lookahead_token_ids=[[5, 6]],
                ),
                BlockRemoved([14256682060930877746], "GPU", 0, "LOCAL", "tier-0"),
                AllBlocksCleared(),
            ],
            3,
        ),
        (
            "93 cb 41 da c3 91 56 00 00 00 93 de 00 10 a4 74 79 70 65 ab 42 6c 6f 63 "
            "6b 53 74 6f 72 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 c4 20 00 "
            "01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 "
            "19 1a 1b 1c 1d 1e 1f b1 70 61 72 65 6e 74 5f 62 6c 6f 63 6b 5f 68 61 73 "
            "68 c4 20 ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff ff "
            "ff ff ff ff ff ff ff ff ff ff ff a9 74 6f 6b 65 6e 5f 69 64 73 92 01 02 "
            "aa 62 6c 6f 63 6b 5f 73 69 7a 65 02 a7 6c 6f 72 61 5f 69 64 07 a6 6d 65 "
            "64 69 75 6d a3 43 50 55 a9 6c 6f 72 61 5f 6e 61 6d 65 a7 61 64 61 70 74 "
            "65 72 aa 65 78 74 72 61 5f 6b 65 79 73 91 93 a7 61 64 61 70 74 65 72 92 "
            "a5 69 6d 61 67 65 03 a4 73 61 6c 74 a9 67 72 6f 75 70 5f 69 64 78 01 b2 "
            "6b 76 5f 63 61 63 68 65 5f 73 70 65 63 5f 6b 69 6e 64 ae 73 6c 69 64 69 "
            "6e 67 5f 77 69 6e 64 6f 77 bc 6b 76 5f 63 61 63 68 65 5f 73 70 65 63 5f "
            "73 6c 69 64 69 6e 67 5f 77 69 6e 64 6f 77 cd 10 00 a8 6c 6f 63 61 6c 69 "
            "74 79 a6 52 45 4d 4f 54 45 a9 6f 77 6e 65 72 73 68 69 70 a6 74 69 65 72 "
            "2d 31 aa 73 65 73 73 69 6f 6e 5f 69 64 a1 73 b3 6c 6f 6f 6b 61 68 65 61 "
            "64 5f 74 6f 6b 65 6e 5f 69 64 73 91 92 05 06 86 a4 74 79 70 65 ac 42 6c "
            "6f 63 6b 52 65 6d 6f 76 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 "
            "cf c5 d9 e8 cc 9d 78 09 32 a6 6d 65 64 69 75 6d a3 47 50 55 a9 67 72 6f "
            "75 70 5f 69 64 78 00 a8 6c 6f 63 61 6c 69 74 79 a5 4c 4f 43 41 4c a9 6f "
            "77 6e 65 72 73 68 69 70 a6 74 69 65 72 2d 30 81 a4 74 79 70 65 b0 41 6c "
            "6c 42 6c 6f 63 6b 73 43 6c 65 61 72 65 64 03 "
        ),
    ),
    (
        "sglang-prefill",
        SglangBatch(
            1796098655.85,
            [
                SglangStored([-5565113479639368609], None, [9707, 11, 151644, 0], 4, None, "GPU"),
                SglangRemoved([-5565113479639368609, 6148914691236517205], "CPU_PINNED"),
                SglangCleared(),
            ],
            1,
        ),
        KVEventBatch(
            1796098655.85,
            [
                BlockStored([-5565113479639368609], None, [9707, 11, 151644, 0], 4, None, "GPU"),
                BlockRemoved([-5565113479639368609, 6148914691236517205], "CPU_PINNED"),
                AllBlocksCleared(),
            ],
            1,
        ),
        (
            "93 cb 41 da c3 92 97 f6 66 66 93 87 a4 74 79 70 65 ab 42 6c 6f 63 6b 53 "
            "74 6f 72 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 91 d3 b2 c4 be c6 "
            "87 5b 7c 5f b1 70 61 72 65 6e 74 5f 62 6c 6f 63 6b 5f 68 61 73 68 c0 a9 "
            "74 6f 6b 65 6e 5f 69 64 73 94 cd 25 eb 0b ce 00 02 50 5c 00 aa 62 6c 6f "
            "63 6b 5f 73 69 7a 65 04 a7 6c 6f 72 61 5f 69 64 c0 a6 6d 65 64 69 75 6d "
            "a3 47 50 55 83 a4 74 79 70 65 ac 42 6c 6f 63 6b 52 65 6d 6f 76 65 64 ac "
            "62 6c 6f 63 6b 5f 68 61 73 68 65 73 92 d3 b2 c4 be c6 87 5b 7c 5f cf 55 "
            "55 55 55 55 55 55 55 a6 6d 65 64 69 75 6d aa 43 50 55 5f 50 49 4e 4e 45 "
            "44 81 a4 74 79 70 65 b0 41 6c 6c 42 6c 6f 63 6b 73 43 6c 65 61 72 65 64 "
            "01 "
        ),
    ),
    (
        "sglang-eagle-pairs-salt-session",
        SglangBatch(
            1796098656.0,
            [
                SglangStored(
                    [-2, 3],
                    -9223372036854775808,
                    [(1, 2), (2, 3)],
                    1,
                    None,
                    lora_name="adapter",
                    session_id="s",
                    cache_salt="tenant",
                )
            ],
            0,
        ),
        KVEventBatch(
            1796098656.0,
            [
                BlockStored(
                    [-2, 3],
                    -9223372036854775808,
                    [[1, 2], [2, 3]],
                    1,
                    lora_name="adapter",
                    session_id="s",
                    cache_salt="tenant",
                )
            ],
            0,
        ),
        (
            "93 cb 41 da c3 92 98 00 00 00 91 89 a4 74 79 70 65 ab 42 6c 6f 63 6b 53 "
            "74 6f 72 65 64 ac 62 6c 6f 63 6b 5f 68 61 73 68 65 73 92 fe 03 b1 70 61 "
            "72 65 6e 74 5f 62 6c 6f 63 6b 5f 68 61 73 68 d3 80 00 00 00 00 00 00 00 "
            "a9 74 6f 6b 65 6e 5f 69 64 73 92 92 01 02 92 02 03 aa 62 6c 6f 63 6b 5f "
            "73 69 7a 65 01 a7 6c 6f 72 61 5f 69 64 c0 a9 6c 6f 72 61 5f 6e 61 6d 65 "
            "a7 61 64 61 70 74 65 72 aa 73 65 73 73 69 6f 6e 5f 69 64 a1 73 aa 63 61 "
            "63 68 65 5f 73 61 6c 74 a6 74 65 6e 61 6e 74 00 "
        ),
    ),
    (
        "sglang-empty",
        SglangBatch(1.5, [], 0),
        KVEventBatch(1.5, [], 0),
        "93 cb 3f f8 00 00 00 00 00 00 90 00",
    ),
    (
        "vllm-empty",
        VllmBatch(1.5, [], 2),
        KVEventBatch(1.5, [], 2),
        "93 cb 3f f8 00 00 00 00 00 00 90 02",
    ),
]
"""Name, the engine's object, the same as ours, and the bytes (hex) that stand between them."""
