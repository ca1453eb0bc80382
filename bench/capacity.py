"""What one data-parallel rank says, from request traces: ``python -m bench.capacity``.

``KVEVENTS_TRACES`` names a folder of Mooncake traces (``*.jsonl``, kvcache-ai/Mooncake,
``FAST25-release/traces``); without it the made-up traffic of the simulation is used. One rank serves the
requests from a prefix cache of a million tokens, prefills 40,000 tokens a second in chunks of 8,192 and decodes 40
tokens a second and request, in steps of 25 ms. The trace's clock is turned until the rank is asked for
20,000 prompt tokens a second, which is a busy rank.
"""

from __future__ import annotations

import argparse
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kvevents_core.events import BlockRemoved, BlockStored, KVCacheEvent, KVEventBatch
from kvevents_core.simulation.cache import Chain, PrefixCache
from kvevents_core.simulation.trace import read_trace, trace_requests
from kvevents_core.simulation.traffic import Request, make_requests
from kvevents_core.wire import BatchEncoder

PROMPT_TOKENS_PER_S = 20_000
CACHE_TOKENS = 1_000_000
CHUNK_TOKENS = 8192
PREFILL_TOKENS_PER_S = 40_000
DECODE_TOKENS_PER_S = 40
STEP_S = 0.025
FLEETS = (8, 64, 1_000, 10_000)


@dataclass
class Said:
    """What a rank said, by step."""

    block_size: int
    steps: dict[int, list[KVCacheEvent]] = field(default_factory=lambda: defaultdict(list))
    prompt_tokens: int = 0
    new_tokens: int = 0
    output_tokens: int = 0


def traffic(requests: int) -> dict[str, list[Request]]:
    """Return the requests of each source, by its name."""
    folder = os.environ.get("KVEVENTS_TRACES")
    if not folder:
        return {"made up": list(itertools.islice(make_requests(1), 10 * requests))}
    return {
        path.stem: list(itertools.islice(trace_requests(read_trace(path)), requests))
        for path in sorted(Path(folder).glob("*.jsonl"))
    }


def serve(requests: list[Request], block_size: int) -> Said:
    """Serve the requests on one rank and return what it said."""
    said, cache = Said(block_size), PrefixCache(CACHE_TOKENS // block_size, block_size)
    total = sum(len(request.prompt) for request in requests)
    slower = total / PROMPT_TOKENS_PER_S / max(1e-9, requests[-1].arrival_s)
    jobs: list[tuple[int, int, Iterator[int]]] = []
    for number, request in enumerate(requests):
        jobs.append(
            (int(request.arrival_s * slower / STEP_S), number, _life(said, cache, request))
        )
    waiting = defaultdict(list)
    for step, _, job in jobs:
        waiting[step].append(job)
    for step in itertools.count():
        if not waiting:
            return said
        for job in waiting.pop(step, ()):
            pause = next(job, None)
            said.steps[step] += cache.take_events()
            if pause is not None:
                waiting[step + pause].append(job)
    return said


def _life(said: Said, cache: PrefixCache, request: Request) -> Iterator[int]:
    """Serve one request; yields how many steps pass until it goes on."""
    chain = Chain(said.block_size)
    said.prompt_tokens += len(request.prompt)
    said.output_tokens += len(request.output)
    for start in range(0, len(request.prompt), CHUNK_TOKENS):
        chain.extend(request.prompt[start : start + CHUNK_TOKENS])
        new = cache.store(chain).new * said.block_size
        said.new_tokens += new
        if new:  # what is cached takes no step
            yield max(1, round(new / PREFILL_TOKENS_PER_S / STEP_S))
    for start in range(0, len(request.output), said.block_size):
        chain.extend(request.output[start : start + said.block_size])
        cache.store(chain)
        yield round(said.block_size / DECODE_TOKENS_PER_S / STEP_S)


def report(name: str, said: Said) -> str:
    """Return one line of the table."""
    whole, bare = BatchEncoder(0), BatchEncoder(0, omit_token_ids=True)
    seconds = (max(said.steps) + 1) * STEP_S
    kinds: Counter[str] = Counter()
    sizes: list[int] = []
    bare_bytes = 0
    per_second: Counter[int] = Counter()
    for step, events in said.steps.items():
        if not events:
            continue
        batch = KVEventBatch(step * STEP_S + 1.7e9, events)
        sizes.append(len(whole.encode(batch)))
        bare_bytes += len(bare.encode(batch))
        per_second[int(step * STEP_S)] += sizes[-1]
        kinds["stored"] += sum(len(e.block_hashes) for e in events if isinstance(e, BlockStored))
        kinds["removed"] += sum(len(e.block_hashes) for e in events if isinstance(e, BlockRemoved))
    sizes.sort()
    cells = (
        name,
        str(said.block_size),
        f"{100 * (1 - said.new_tokens / said.prompt_tokens):.0f} %",
        f"{len(sizes) / seconds:.1f}",
        f"{kinds['stored'] / seconds:,.0f} / {kinds['removed'] / seconds:,.0f}",
        f"{sum(sizes) / seconds / 1e3:,.1f}",
        f"{max(per_second.values()) / 1e3:,.0f}",
        f"{bare_bytes / seconds / 1e3:,.1f}",
        f"{sizes[len(sizes) // 2] / 1e3:.1f} / {sizes[-1] / 1e3:,.0f}",
        f"{sum(sizes) / (said.new_tokens + said.output_tokens):.2f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1500, help="requests per trace")
    options = parser.parse_args()
    head = (
        "traffic",
        "tokens per block",
        "prompt tokens from the cache",
        "batches/s",
        "blocks stored / removed per s",
        "kB/s",
        "kB in the busiest second",
        "kB/s without token ids",
        "batch kB, median / largest",
        "bytes per new token",
    )
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name, requests in traffic(options.requests).items():
        for block_size in (16, 64):
            print(report(name, serve(requests, block_size)), flush=True)


if __name__ == "__main__":
    main()
