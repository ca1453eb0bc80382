"""Record what an engine itself puts on the wire: its real cache, its own structs, its own encoder.

    PYTHON_OF_THE_ENVIRONMENT record_payloads.py sglang|vllm > tests/interop/recorded/ENGINE-VERSION.json

Needs no kvevents. The times are fixed, so that recording again gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from array import array
from functools import partial
from typing import Any

import msgspec

TS = 1796097367.5


def record_sglang() -> dict[str, Any]:
    """Return the batches of SGLang's RadixCache over a short life, salt and EAGLE pairs included."""
    import sglang_cache
    from sglang.srt.disaggregation.kv_events import KVEventBatch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.version import __version__

    recorded = []
    for kind in ("radix", "rust"):
        cache = sglang_cache.make_cache(kind, records_events=True)

        def insert(tokens: list[int], salt: str | None = None, *, cache: Any = cache) -> None:
            key = RadixKey(array("q", tokens), cache_salt=salt)
            value = cache.token_to_kv_pool_allocator.alloc(len(tokens))
            cache.insert(InsertParams(key=key, value=value))

        steps = {
            "construct": lambda: None,
            "insert": lambda: insert(list(range(1, 13))),
            "insert, sharing a prefix": lambda: insert([*range(1, 9), 90, 91, 92, 93]),
            "insert with salt": lambda: insert(list(range(1, 9)), "tenantA"),
            "evict 4 tokens": partial(cache.evict, EvictParams(num_tokens=4)),
            "evict the rest": partial(cache.evict, EvictParams(num_tokens=1000)),
            "reset": cache.reset,
        }
        for name, step in steps.items():
            step()
            batch = KVEventBatch(ts=TS, events=cache.take_events(), attn_dp_rank=0)
            payload = msgspec.msgpack.encode(batch).hex()
            recorded.append({"what": f"{kind}: {name}", "payload": payload})
    return {"engine": "sglang", "version": __version__, "payloads": recorded}


def record_vllm() -> dict[str, Any]:
    """Return the batches of vLLM's KVCacheManager over a short life, a salt included."""
    import vllm_cache
    from vllm import __version__
    from vllm.distributed.kv_events import KVEventBatch

    config = vllm_cache.parse(["--kv-events-config", '{"enable_kv_cache_events":true}'])
    config.publisher = "null"
    engine = vllm_cache.Engine(config, stream_rank=0, blocks=9)
    batches: list[Any] = []

    def collect() -> None:
        events = engine.cache.take_events()
        if events:
            batches.append(KVEventBatch(ts=TS, events=events, data_parallel_rank=0))

    engine.publish = collect
    steps = {
        "12 tokens": lambda: engine.serve(list(range(1, 13))),
        "sharing a prefix": lambda: engine.serve([*range(1, 9), 90, 91, 92, 93]),
        "with salt": lambda: engine.serve(list(range(1, 9)), salt="tenantA"),
        "eviction": lambda: engine.serve(list(range(100, 124))),
        "reset": engine.clear,
    }
    recorded = []
    for name, step in steps.items():
        step()
        for batch in batches:
            recorded.append({"what": name, "payload": msgspec.msgpack.encode(batch).hex()})
        batches.clear()
    return {"engine": "vllm", "version": __version__, "payloads": recorded}


if __name__ == "__main__":
    json.dump({"sglang": record_sglang, "vllm": record_vllm}[sys.argv[1]](), sys.stdout, indent=1)
