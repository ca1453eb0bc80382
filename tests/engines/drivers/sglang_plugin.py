"""State facts about our plugin in a process of SGLang's; ``test_sglang_plugin.py`` judges them."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from observe import Log, kind, outcome
from talk import say

FOLDER = Path(os.environ["HOME"])


def loading() -> dict[str, Any]:
    """Load the plugins as SGLang does, twice, and see what that brought in."""
    import sglang.srt.disaggregation.kv_events
    import sglang.srt.runtime_context
    import sglang.srt.server_args  # noqa: F401 - what any of SGLang's processes has imported
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    log = Log("kvevents_core")
    before, started = set(sys.modules), time.perf_counter()
    load_plugins()
    seconds = time.perf_counter() - started
    from kvevents_core.engines.sglang import register

    register()
    return {
        "seconds": seconds,
        "modules": sorted(set(sys.modules) - before),
        "hooks": {target: len(hooks) for target, hooks in HookRegistry._hooks.items()},
        "patched": sorted(HookRegistry._patched),
        "log": log.lines,
    }


def create(text: str | None, rank: int = 0) -> Any:
    """Call SGLang's factory and return what it made."""
    from sglang.srt.disaggregation.kv_events import EventPublisherFactory

    return EventPublisherFactory.create(text, rank)


def creating() -> dict[str, Any]:
    """Create by every kind of flag."""
    facts: dict[str, Any] = {}
    for text in (None, "{}", '{"publisher":"null"}', '{"endpoint":"tcp://*:5999"}'):
        made = create(text)
        made.publish(None)
        made.shutdown()
        facts[str(text)] = kind(made)
    stock = create('{"publisher":"zmq","endpoint":"inproc://stock"}')
    facts["zmq"] = kind(stock)
    stock.shutdown()
    os.environ["KVEVENTS_REPLACE_ZMQ"] = "1"
    replaced = create('{"publisher":"zmq","endpoint":"inproc://ours"}', 1)
    facts["replaced"] = kind(replaced)
    facts["replaced endpoint"] = replaced.kvevents.describe()["endpoint"]
    replaced.shutdown()
    del os.environ["KVEVENTS_REPLACE_ZMQ"]
    for text in (
        '{"publisher":"kafak"}',
        '{"publsher":"kafka"}',
        '{"publisher":"kafka","boostrap_servers":["b:9092"]}',
        "{'publisher':'kafka'}",
        "@missing.json",
    ):
        facts[text] = outcome(create, text)
    nats = create('{"publisher":"nats","servers":["nats://127.0.0.1:1"],"mode":"core"}', 3)
    facts["nats"] = {
        "kind": kind(nats),
        "stream": str(nats.kvevents.stream),
        "local_source": nats.describe_local_source(16),
    }
    nats.kvevents.shutdown(0.1)
    return facts


def resolve(text: str, **options: Any) -> Any:
    """Take a flag as far as SGLang's launcher takes it before it starts anything."""
    from sglang.srt.server_args import ServerArgs

    server_args = ServerArgs(
        model_path="dummy", page_size=16, device="cpu", kv_events_config=text, **options
    )
    server_args.resolve_once()
    return server_args


def starting() -> dict[str, Any]:
    """Start with secrets in the flag, in a file, and with ranks that have no port."""
    secret = {
        "publisher": "kafka",
        "bootstrap_servers": ["b:9092"],
        "sasl_plain_password": "hunter2",
    }
    address = {"publisher": "nats", "servers": ["nats://user:hunter2@127.0.0.1:1"]}
    (FOLDER / "kv.json").write_text(
        json.dumps(
            {
                **secret,
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "u",
                "format": "dynamo",
            }
        )
    )
    (FOLDER / "kv.toml").write_text('publisher = "memory"\n')
    from sglang.srt.disaggregation.kv_events import KVEventsConfig, uses_dynamo_format

    file = f"@{FOLDER / 'kv.json'}"
    return {
        "secret": outcome(resolve, json.dumps(secret)),
        "secret address": outcome(resolve, json.dumps(address)),
        "file": outcome(lambda: kind(resolve(file))),
        "file dynamo": uses_dynamo_format(file),
        "file keys": KVEventsConfig.from_cli(file).model_dump(),
        "toml": outcome(lambda: kind(create(f"@{FOLDER / 'kv.toml'}"))),
        "stock file": stock_file(),
        "unknown": outcome(resolve, '{"publisher":"kafak"}'),
        "cache on": warnings_of('{"publisher":"memory"}'),
        "cache off": warnings_of('{"publisher":"memory"}', disable_radix_cache=True),
        "cache off, null": warnings_of('{"publisher":"null"}', disable_radix_cache=True),
    }


def warnings_of(text: str, **options: Any) -> list[str]:
    """Return the warnings of ours in the log of a start with ``options``."""
    log = Log("kvevents_core")
    resolve(text, **options)
    return [line for line in log.lines if line.startswith("WARNING")]


def stock_file() -> Any:
    """Give SGLang's own publisher a file."""
    from sglang.srt.disaggregation.kv_events import KVEventsConfig

    path = FOLDER / "stock.json"
    path.write_text('{"publisher":"zmq","endpoint":"tcp://127.0.0.1:7777"}')
    return KVEventsConfig.from_cli(f"@{path}").model_dump()


def describing() -> dict[str, Any]:
    """Ask for the ``/server_info`` document of several configurations."""
    from sglang.srt.runtime_context import describe_kv_events_publisher

    facts: dict[str, Any] = {}
    kafka = '{"publisher":"kafka","bootstrap_servers":["b:9092"]}'
    zmq = '{"publisher":"zmq","endpoint":"tcp://*:6000","replay_endpoint":"tcp://*:6100","topic":"t"}'
    facts["kafka"] = describe_kv_events_publisher(resolve(kafka))
    facts["stock zmq"] = describe_kv_events_publisher(resolve(zmq))
    os.environ["KVEVENTS_REPLACE_ZMQ"] = "1"
    facts["our zmq"] = describe_kv_events_publisher(resolve(zmq))
    facts["dialled zmq"] = describe_kv_events_publisher(
        resolve('{"publisher":"zmq","endpoint":"tcp://10.0.0.1:6000"}')
    )
    os.environ["KVEVENTS_ENDPOINT"] = "tcp://*:7000"
    facts["zmq by environment"] = describe_kv_events_publisher(resolve('{"publisher":"zmq" }'))
    del os.environ["KVEVENTS_REPLACE_ZMQ"], os.environ["KVEVENTS_ENDPOINT"]
    return facts


@contextmanager
def placed(place: Any) -> Iterator[Any]:
    """Make this process SGLang's process at ``place``, by SGLang's own arithmetic."""
    from sglang.srt.runtime_context import (
        derive_attention_ranks,
        derive_attn_tp_size,
        derive_spawn_ranks,
        get_parallel,
    )

    sizes = {
        "tp_size": place.tp_size,
        "attn_cp_size": place.attn_cp_size,
        "attn_tp_size": derive_attn_tp_size(
            tp_size=place.tp_size,
            attn_cp_size=place.attn_cp_size,
            attn_dp_size=place.attn_dp_size,
        ),
    }
    ranks = derive_spawn_ranks(
        world_rank=place.tp_size * place.pp_rank + place.tp_rank,
        ep_join_rank_offset=0,
        moe_dp_size=1,
        moe_ep_size=1,
        **sizes,
    )
    attn_tp_rank, attn_dp_rank = derive_attention_ranks(
        tp_rank=ranks["tp_rank"],
        attn_tp_size=sizes["attn_tp_size"],
        attn_cp_size=place.attn_cp_size,
    )
    with get_parallel().override(
        **sizes,
        pp_size=place.pp_size,
        dp_size=place.dp_size,
        attn_dp_size=place.attn_dp_size,
        tp_rank=ranks["tp_rank"],
        pp_rank=ranks["pp_rank"],
        attn_cp_rank=ranks["attn_cp_rank"],
        attn_tp_rank=attn_tp_rank,
        attn_dp_rank=attn_dp_rank,
        dp_rank=place.dp_rank,
    ) as parallel:
        yield parallel


def layouts(processes: int) -> Iterator[Any]:
    """Yield every possible layout of up to so many processes."""
    from kvevents_core import Layout
    from kvevents_core.errors import LayoutError

    few = (1, 2, 4)
    for sizes in product((1, 2, 4, 8, 16), few, few, few, few):
        try:
            layout = Layout(*sizes)
        except LayoutError:
            continue
        if layout.processes <= processes:
            yield layout


def gates() -> dict[str, Any]:
    """Compare SGLang's rank functions with ours over every layout of up to 16 processes."""
    from sglang.srt.disaggregation import kv_events

    from kvevents_core.engines import sglang_publisher

    text = '{"publisher":"null"}'
    rows, wrong, count = 0, [], 0
    for layout in layouts(16):
        count += 1
        published = []
        for place in layout.placements():
            rows += 1
            with placed(place) as parallel:
                theirs = kv_events.is_kv_publisher_rank(text)
                stream = kv_events.select_kv_publisher_dp_rank(
                    parallel.attn_dp_size, parallel.attn_dp_rank, parallel.dp_rank
                )
                agrees = sglang_publisher.compare_gates(text)
                agrees &= sglang_publisher.compare_stream_rank(stream)
            if theirs:
                published.append(stream)
            if not agrees or theirs != place.is_publisher or stream != place.stream_rank:
                wrong.append(str(place))
        if sorted(published) != list(range(layout.stream_ranks)):
            wrong.append(f"{layout}: {published}")
    return {"layouts": count, "rows": rows, "wrong": wrong, "drift": drift()}


def drift() -> dict[str, Any]:
    """Let SGLang's gate forget the pipeline rank, twice, and see what is said."""
    from sglang.srt.disaggregation import kv_events

    from kvevents_core import Placement
    from kvevents_core.engines import sglang_publisher

    log = Log("kvevents_core")
    original = kv_events.is_kv_publisher_rank
    kv_events.is_kv_publisher_rank = lambda _text: True
    try:
        with placed(Placement(pp_rank=1, pp_size=2)):
            agreed = [sglang_publisher.compare_gates('{"publisher":"null"}') for _ in range(2)]
    finally:
        kv_events.is_kv_publisher_rank = original
    return {"agreed": agreed, "log": log.lines}


def recording() -> dict[str, Any]:
    """Prefill for long on a silent rank and on a publisher rank without a publisher."""
    import random

    import sglang_cache

    from kvevents_core import KVEventsConfig, Placement, RankGate
    from kvevents_core.engines import sglang_publisher  # noqa: F401 - as a scheduler has it

    chance = random.Random(3)
    prompts = [[chance.randrange(99) for _ in range(32)] for _ in range(300)]
    config = KVEventsConfig.from_cli('{"publisher":"memory"}')
    gate = RankGate.resolve(config, Placement(tp_rank=1, tp_size=2))
    silent = sglang_cache.make_cache("python", records_events=gate.records_events)
    for prompt in prompts:
        sglang_cache.insert(silent, prompt)
    engine = sglang_cache.Engine("python", '{"publisher":"null"}', stream_rank=0)
    most = 0
    for prompt in prompts:
        engine.prefill(prompt)
        most = max(most, len(engine.cache.take_events()))
    return {
        "gate records": gate.records_events,
        "silent rank holds": len(silent.take_events()),
        "null publisher holds": most,
    }


if __name__ == "__main__":
    for step in (loading, creating, starting, describing, gates, recording):
        say(**{step.__name__: step()})
