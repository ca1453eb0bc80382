"""Drive vLLM's real ``KVCacheManager`` and publish its events as vLLM's scheduler does.

Runs in vLLM's environment: the flag goes through vLLM's own argument parser with the plugins that
it loads, the configuration through a pickle as on its way to EngineCore, and the publisher comes
from vLLM's factory. Arguments: one JSON object.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import time
from typing import Any

from observe import kind as kind_of
from observe import read_here
from talk import say, wait_for_word

BLOCK = 4


def parse(arguments: list[str]) -> Any:
    """Return vLLM's configuration for command-line ``arguments``, as EngineCore receives it."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    config = parser.parse_args(arguments).kv_events_config
    return pickle.loads(pickle.dumps(config))


class Engine:
    """One EngineCore's cache and event publisher."""

    def __init__(self, config: Any, *, stream_rank: int, blocks: int = 33) -> None:
        import torch
        from vllm.distributed.kv_events import EventPublisherFactory
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import (
            FullAttentionSpec,
            KVCacheConfig,
            KVCacheGroupSpec,
        )

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        spec = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        self.cache = KVCacheManager(
            KVCacheConfig(
                num_blocks=blocks,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["l0"], spec)],
            ),
            max_model_len=256,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            enable_caching=True,
            enable_kv_cache_events=bool(config and config.enable_kv_cache_events),
        )
        self.publisher = EventPublisherFactory.create(config, stream_rank)
        self._requests = 0

    def serve(self, tokens: list[int], salt: str | None = None) -> None:
        """Run one request to its end, one engine step."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        self._requests += 1
        request = Request(
            request_id=str(self._requests),
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=4),
            pooling_params=None,
            block_hasher=self._hasher,
            cache_salt=salt,
        )
        blocks, computed = self.cache.get_computed_blocks(request)[:2]
        new = request.num_tokens - computed
        assert self.cache.allocate_slots(request, new, computed, blocks) is not None
        request.num_computed_tokens = request.num_tokens
        self.cache.free(request)
        self.publish()

    def clear(self) -> None:
        assert self.cache.reset_prefix_cache()
        self.publish()

    def publish(self) -> None:
        """As ``update_from_output`` does (``v1/core/sched/scheduler.py``)."""
        from vllm.distributed.kv_events import KVEventBatch

        events = self.cache.take_events()
        if events:
            self.publisher.publish(KVEventBatch(ts=time.time(), events=events))

    def content(self) -> list[int]:
        """Return the blocks in vLLM's own table."""
        from vllm.v1.core.kv_cache_utils import get_block_hash, maybe_convert_block_hash

        table = self.cache.block_pool.cached_block_hash_to_block._cache
        return sorted(maybe_convert_block_hash(get_block_hash(key)) for key in table)


def work(engine: Engine, steps: int) -> None:
    """Serve seeded requests: shared system prompts, several turns, evictions, one clear."""
    chance = random.Random(7)
    systems = [[chance.randrange(1000) for _ in range(16)] for _ in range(3)]
    for step in range(steps):
        tail = [chance.randrange(1000) for _ in range(chance.randrange(1, 6) * BLOCK)]
        engine.serve(chance.choice(systems) + tail)
        if step == steps // 2:
            engine.clear()


def main(arguments: dict[str, Any]) -> None:
    """Parse the flag, drive the cache of one stream rank, say what it holds, wait, stop."""
    config = parse(["--kv-events-config", arguments["flag"]])
    engine = Engine(config, stream_rank=arguments["stream_rank"])
    told = engine.publisher.get_publisher_config()
    reading = read_here(arguments["flag"]) if arguments.get("read_here") else None
    import vllm

    say(
        version=vllm.__version__,
        publisher=kind_of(engine.publisher),
        publisher_config=None if told is None else dict(vars(told)),
    )
    wait_for_word()
    work(engine, arguments["steps"])
    content = engine.content()
    facts = {"mirror_equal": reading([[], content])} if reading else {}
    say(content=content, pending=len(engine.cache.take_events() or ()), **facts)
    wait_for_word()
    engine.publisher.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
