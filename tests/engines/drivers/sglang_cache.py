"""Drive one of SGLang's real caches, and publish its events through SGLang's own component.

Runs in SGLang's environment, as a scheduler process would: plugins loaded from their installed
entry points, ranks published to SGLang's context, events taken and published by
``SchedulerKvEventsPublisher``. Arguments: one JSON object.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Sequence
from typing import Any

from observe import kind as kind_of
from observe import read_here
from talk import say, wait_for_word

PAGE = 4
KINDS = ("radix", "python", "rust")
"""The cache of each stream rank."""
TOKENS = 256


def make_cache(kind: str, *, records_events: bool) -> Any:
    """Return a RadixCache (``radix``) or a UnifiedRadixCache (``python`` or ``rust`` core)."""
    import torch
    from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(
        ServerArgs(model_path="dummy", page_size=PAGE, device="cpu")
    )
    requests = ReqToTokenPool(size=8, max_context_len=128, device="cpu", enable_memory_saver=False)
    pool = MHATokenToKVPool(
        size=TOKENS,
        page_size=PAGE,
        dtype=torch.float32,
        head_num=1,
        head_dim=8,
        layer_num=1,
        device="cpu",
        enable_memory_saver=False,
    )
    allocator = TokenToKVPoolAllocator(
        size=TOKENS, dtype=torch.float32, device="cpu", kvcache=pool, need_sort=False
    )
    params = CacheInitParams(
        req_to_token_pool=requests,
        token_to_kv_pool_allocator=allocator,
        page_size=PAGE,
        disable=False,
        tree_components=(ComponentType.FULL,),
        enable_kv_cache_events=records_events,
        tree_core_backend="python" if kind == "python" else None,
    )
    return RadixCache(params) if kind == "radix" else UnifiedRadixCache(params)


def insert(cache: Any, tokens: list[int]) -> None:
    """Insert a prompt, evicting what stands in its way."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    allocator = cache.token_to_kv_pool_allocator
    if len(tokens) > allocator.available_size():
        cache.evict(EvictParams(num_tokens=len(tokens)))
    value = allocator.alloc(len(tokens))
    result = cache.insert(InsertParams(key=RadixKey(array("q", tokens)), value=value))
    if isinstance(cache, RadixCache):
        # It leaves slots that the tree held already to its caller; UnifiedRadixCache frees them.
        allocator.free(value[: result.prefix_len])


class Engine:
    """One scheduler's cache, its allocator and its event publisher."""

    def __init__(self, kind: str, flag: str | None, *, stream_rank: int) -> None:
        from sglang.srt.disaggregation.kv_events import is_kv_publisher_rank
        from sglang.srt.managers.scheduler_components.kv_events_publisher import (
            SchedulerKvEventsPublisher,
        )
        from sglang.srt.runtime_context import get_parallel

        get_parallel().override_permanently(
            pp_rank=0,
            tp_rank=0,
            attn_tp_rank=0,
            attn_cp_rank=0,
            attn_dp_rank=0,
            tp_size=1,
            pp_size=1,
            attn_cp_size=1,
            attn_dp_size=1,
            attn_tp_size=1,
            dp_size=stream_rank + 1,
            dp_rank=stream_rank,
        )
        self.cache = make_cache(kind, records_events=is_kv_publisher_rank(flag))
        self.prompts: set[tuple[int, ...]] = set()
        self.publisher = SchedulerKvEventsPublisher(
            kv_events_config=flag,
            tree_cache=self.cache,
            send_metrics_from_scheduler=None,
            max_running_requests=8,
            max_total_num_tokens=TOKENS,
            get_stats=dict,
        )

    def prefill(self, tokens: list[int]) -> None:
        """Run one prompt and end the step."""
        insert(self.cache, tokens)
        self.prompts.add(tuple(tokens))
        self.publisher.publish_kv_events()

    def matched(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens the cache would serve."""
        from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
        from sglang.srt.mem_cache.radix_cache import RadixKey

        key = RadixKey(array("q", tokens))
        return int(self.cache.match_prefix(MatchPrefixParams(key=key)).device_prefix_len)

    def evict(self, tokens: int) -> None:
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self.cache.evict(EvictParams(num_tokens=tokens))
        self.publisher.publish_kv_events()

    def clear(self) -> None:
        self.cache.reset()
        self.cache.token_to_kv_pool_allocator.clear()
        self.publisher.publish_kv_events()

    def content(self) -> list[int]:
        """Return the blocks the cache would serve, found by matching, not by events."""
        from sglang.srt.mem_cache.utils import get_hash_str, hash_str_to_int64

        held: set[int] = set()
        for prompt in self.prompts:
            prior = None
            for start in range(0, self.matched(prompt), PAGE):
                prior = get_hash_str(list(prompt[start : start + PAGE]), prior)
                held.add(hash_str_to_int64(prior))
        size = self.cache.total_size()
        tokens = size[0] if isinstance(size, tuple) else size
        assert len(held) * PAGE == tokens, (len(held) * PAGE, tokens)
        assert tokens + self.cache.token_to_kv_pool_allocator.available_size() == TOKENS
        return sorted(held)


def work(engine: Engine, steps: int) -> None:
    """Serve seeded requests: shared system prompts, several turns, evictions, one clear."""
    chance = random.Random(7)
    systems = [[chance.randrange(1000) for _ in range(16)] for _ in range(3)]
    for step in range(steps):
        turns = chance.randrange(1, 6) * PAGE
        tail = [chance.randrange(1000) for _ in range(turns)]
        engine.prefill(chance.choice(systems) + tail)
        if step == steps // 2:
            engine.clear()
    engine.evict(3 * PAGE)


def main(arguments: dict[str, Any]) -> None:
    """Load the plugins, drive one cache per stream rank, say what each holds, wait, stop."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    flag = arguments["flag"]
    engines = [Engine(kind, flag, stream_rank=rank) for rank, kind in enumerate(KINDS)]
    publishers = [engine.publisher.kv_event_publisher for engine in engines]
    reading = read_here(flag) if arguments.get("read_here") else None
    say(
        publishers=[kind_of(publisher) for publisher in publishers],
        local_sources=[publisher.describe_local_source(PAGE) for publisher in publishers],
    )
    wait_for_word()
    for engine in engines:
        work(engine, arguments["steps"])
    contents = [engine.content() for engine in engines]
    facts = {"mirror_equal": reading(contents)} if reading else {}
    say(
        contents=contents,
        pending=[len(engine.cache.take_events()) for engine in engines],
        **facts,
    )
    wait_for_word()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
