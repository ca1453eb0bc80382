"""``kvevents publish``: synthetic or recorded traffic through the simulated cache to a publisher."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from kvevents_core import ConfigError, KVEventsConfig, Placement, RankGate
from kvevents_core.cli.output import FAILED, OK, print_json
from kvevents_core.simulation.engine import SimulatedEngine
from kvevents_core.simulation.trace import TRACE_BLOCK_TOKENS, read_trace, trace_requests
from kvevents_core.simulation.traffic import Request, TrafficShape, make_requests


def publish(
    config: Annotated[
        str | None, typer.Argument(help="A --kv-events-config, JSON or @FILE.")
    ] = None,
    *,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Mooncake trace file to serve instead of synthetic traffic.",
            exists=True,
            dir_okay=False,
            readable=True,
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(help="Synthetic requests per second; 0 = as fast as possible.", min=0)
    ] = 10.0,
    speed: Annotated[
        float, typer.Option(help="Times the trace's own pace; 0 = as fast as possible.", min=0)
    ] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after N requests.", min=1)] = None,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long.", min=0)] = None,
    rank: Annotated[int, typer.Option(help="Stream rank to publish as.", min=0)] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic traffic.")] = 0,
    capacity_blocks: Annotated[int, typer.Option(help="Blocks the cache holds.", min=1)] = 10_000,
    block_size: Annotated[int, typer.Option(help="Tokens per cache block.", min=1)] = 16,
    trace_block_tokens: Annotated[
        int, typer.Option(help="Tokens per hash id of the trace (Qwen traces: 16).", min=1)
    ] = TRACE_BLOCK_TOKENS,
    json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> int:
    """Serve made-up or recorded requests from a simulated cache and publish its events.

    Requests that arrive late are served at once, as in an engine that is behind. Runs until
    interrupted unless the trace, --count or --seconds ends it; exit code 1 if a batch was lost.
    """
    parsed = KVEventsConfig.from_cli(config)
    gate = RankGate.resolve(parsed, Placement(dp_rank=rank, dp_size=rank + 1))
    if not gate.publishes:
        raise ConfigError(
            "this configuration publishes nothing: give for instance "
            '\'{"publisher": "zmq", "enable_kv_cache_events": true}\'',
            key="publisher",
        )
    if trace is None:
        shape = TrafficShape(rate_per_s=rate or math.inf)
        requests: Iterator[Request] = make_requests(seed, shape)
    else:
        rows = read_trace(trace, trace_block_tokens)
        requests = trace_requests(rows, speed=speed or math.inf, block_tokens=trace_block_tokens)
    engine = SimulatedEngine(gate, capacity_blocks, block_size)
    return _serve(engine, islice(requests, count), seconds, json_=json_)


def _serve(
    engine: SimulatedEngine, requests: Iterator[Request], seconds: float | None, *, json_: bool
) -> int:
    """Serve until something ends it, then say what was published."""
    if not json_:
        print(f"publishing {engine.publisher.stream} at {_where(engine)}", flush=True)
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set) if seconds is not None else None
    started_s = time.monotonic()
    try:
        if timer is not None:
            timer.start()
        engine.run(requests, stop)
    except KeyboardInterrupt:
        stop.set()
    finally:
        if timer is not None:
            timer.cancel()
            timer.join()
        engine.publisher.shutdown()
    return _report(engine, time.monotonic() - started_s, json_=json_)


def _where(engine: SimulatedEngine) -> str:
    """Return the real address (a port that the system chose included), or what is configured."""
    described = engine.publisher.describe()
    settings, stream = engine.gate.config.backend_settings, engine.publisher.stream
    configured = settings.address_of(stream) if settings and stream else None
    return str(described.get("endpoint") or configured or described["publisher"])


def _report(engine: SimulatedEngine, took_s: float, *, json_: bool) -> int:
    stats = engine.publisher.stats()
    hit_rate = engine.hit_blocks / engine.prompt_blocks if engine.prompt_blocks else 0.0
    if json_:
        print_json(
            {
                "requests": engine.requests,
                "hit_rate": round(hit_rate, 4),
                "seconds": round(took_s, 3),
                **asdict(engine.metrics),
                "published_batches": stats.published_batches,
                "published_events": stats.published_events,
                "published_bytes": stats.published_bytes,
                "lost": dict(stats.lost),
                "epoch": stats.epoch,
                "next_seq": stats.next_seq,
            }
        )
    else:
        print(
            f"{engine.requests} requests in {took_s:.1f} s, {hit_rate:.1%} of their blocks cached; "
            f"published {stats.published_batches} batches, {stats.published_events} events, "
            f"{stats.published_bytes} bytes"
        )
        for reason, batches in stats.lost.items():
            print(f"LOST {batches} batches: {reason}")
    return FAILED if any(stats.lost.values()) else OK
