"""State facts about our plugin in a process of vLLM's; ``test_vllm_plugin.py`` judges them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from observe import Log, kind, outcome
from talk import say

FOLDER = Path(os.environ["HOME"])
FLAG = "--kv-events-config"


def loading() -> dict[str, Any]:
    """Load the plugins as vLLM does, twice, and see what that brought in."""
    import vllm.engine.arg_utils  # noqa: F401 - what any of vLLM's processes has imported
    from vllm.plugins import load_general_plugins

    log = Log("vllm.kvevents")
    before, started = set(sys.modules), time.perf_counter()
    load_general_plugins()
    seconds = time.perf_counter() - started
    from kvevents_core.engines.vllm import register

    register()
    return {
        "seconds": seconds,
        "modules": sorted(set(sys.modules) - before),
        "log": log.lines,
    }


def parse(*arguments: str) -> Any:
    """Return the configuration that vLLM's own parser makes; a wrong flag raises its last line."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser(prog="vllm"))
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return parser.parse_args(list(arguments)).kv_events_config
    except SystemExit:
        raise SystemExit(printed.getvalue().strip().splitlines()[-1]) from None


def fields(config: Any) -> dict[str, Any]:
    """Return what lives in a configuration, our keys included, after a pickle."""
    return dict(vars(pickle.loads(pickle.dumps(config))))


def parsing() -> dict[str, Any]:
    """Parse right and wrong flags."""
    nats = '{"publisher":"nats","servers":["nats://127.0.0.1:1"],"password":"hunter2","user":"u"}'
    (FOLDER / "kv.json").write_text(nats)
    config = parse(FLAG, nats)
    facts = {
        "json": fields(config),
        "repr": repr(config),
        "asdict": dataclasses.asdict(config),
        "dotted": fields(
            parse(f"{FLAG}.publisher", "nats", f"{FLAG}.servers", '["nats://127.0.0.1:2"]')
        ),
        "file": fields(parse(FLAG, f"@{FOLDER / 'kv.json'}")),
        "file after =": fields(parse(f"{FLAG}=@{FOLDER / 'kv.json'}")),
        "stock": fields(parse(FLAG, '{"publisher":"zmq","enable_kv_cache_events":true}')),
        "nothing": parse(),
    }
    os.environ["KVEVENTS_PUBLISHER"] = "nats"
    facts["environment"] = fields(parse(FLAG, '{"enable_kv_cache_events":true}'))
    del os.environ["KVEVENTS_PUBLISHER"]
    for text in (
        '{"publisher":"kafak"}',
        '{"publsher":"kafka"}',
        '{"publisher":"kafka","boostrap_servers":["b:9092"],"sasl_plain_password":"hunter2"}',
        '{"publisher":"zmq","endpont":"tcp://*:1"}',
        '{"publisher":"zmq","curve_secret_key":"x"}',
        '{"publisher":3}',
        "@missing.json",
    ):
        facts[text] = outcome(parse, FLAG, text)
    return facts


def creating() -> dict[str, Any]:
    """Create publishers with vLLM's factory."""
    from vllm.distributed.kv_events import EventPublisherFactory

    def create(text: str, rank: int = 0) -> Any:
        config = pickle.loads(pickle.dumps(parse(FLAG, text)))
        return EventPublisherFactory.create(config, rank)

    facts = {"none": kind(EventPublisherFactory.create(None)), "null": kind(create("{}"))}
    zmq = '{"publisher":"zmq","enable_kv_cache_events":true,"endpoint":"inproc://x"}'
    stock = create(zmq)
    facts["zmq"] = kind(stock)
    stock.shutdown()
    facts["zmq, not enabled"] = kind(create('{"publisher":"zmq","endpoint":"inproc://y"}'))
    os.environ["KVEVENTS_REPLACE_ZMQ"] = "1"
    replaced = create('{"publisher":"zmq","endpoint":"inproc://z"}', 2)
    facts["replaced"] = kind(replaced)
    told = replaced.get_publisher_config()
    facts["replaced told"] = {"kind": kind(told), **vars(told)}
    replaced.shutdown()
    replaced.shutdown()
    del os.environ["KVEVENTS_REPLACE_ZMQ"]
    nats = create('{"publisher":"nats","servers":["nats://127.0.0.1:1"]}', 3)
    facts["nats"] = {
        "kind": kind(nats),
        "stream": str(nats.kvevents.stream),
        "told": nats.get_publisher_config(),
        "servers": outcome(nats.kvevents.describe),
    }
    nats.kvevents.shutdown(0.1)
    return facts


if __name__ == "__main__":
    for step in (loading, parsing, creating):
        say(**{step.__name__: step()})
