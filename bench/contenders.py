"""The publishers that are compared, behind one shape, and the batches they are given.

``a`` one ``BlockStored`` of 16 tokens; ``b`` eight mixed events; ``c`` one ``BlockStored`` of 64
blocks of 64 tokens, as a prefill makes it. Each contender gets its own engine's structs (kvevents
gets SGLang's, as it would in SGLang; its own where SGLang's are not to be had).
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from bench import engines

OURS = "kvevents"
PROCESS = "kvevents/process"
"""Ours, with its sender in a process of its own."""
NONE = "none"
"""No publisher at all: what a row's own work costs."""

_HASH = 0x9E3779B97F4A7C15
BatchMaker = Callable[[float], Any]


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Publisher:
    """One contender's publisher on loopback TCP."""

    def __init__(self, name: str, *, replay: bool = False, **settings: Any) -> None:
        self.name = name
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.replay_endpoint = f"tcp://127.0.0.1:{free_port()}" if replay else None
        self.publisher: Any = None
        if name == NONE:
            self.publish: Callable[[Any], None] = _ignore
            return
        made = self._ours(settings) if name in (OURS, PROCESS) else self._theirs(settings)
        self.publisher, self.publish = made, made.publish

    def _ours(self, settings: dict[str, Any]) -> Any:
        from kvevents_core import EventPublisherFactory

        config = {"publisher": "zmq", "endpoint": self.endpoint, "bind": True, **settings}
        config["sender"] = "process" if self.name == PROCESS else "thread"
        if self.replay_endpoint:
            config["replay_endpoint"] = self.replay_endpoint
        return EventPublisherFactory.create(json.dumps(config))

    def _theirs(self, settings: dict[str, Any]) -> Any:
        module = engines.load(self.name)
        # vLLM's binds to a wildcard only.
        endpoint = self.endpoint.replace("127.0.0.1", "*")
        replay = self.replay_endpoint and self.replay_endpoint.replace("127.0.0.1", "*")
        return module.ZmqEventPublisher(0, endpoint, replay, **settings)

    def shutdown(self) -> None:
        """End the publisher."""
        if self.publisher is not None:
            self.publisher.shutdown()


def _ignore(_batch: Any) -> None:
    return


def batch_maker(name: str, shape: str) -> BatchMaker:
    """Return what makes batches of ``shape`` with the structs that contender ``name`` gets."""
    structs = _structs(name)
    make_events = {"a": _small, "b": _mixed, "c": _prefill}[shape](structs)
    batch = structs.EventBatch if hasattr(structs, "EventBatch") else structs.KVEventBatch
    return lambda ts: batch(ts, make_events())


def _structs(name: str) -> Any:
    if name in (OURS, PROCESS, NONE):
        try:
            return engines.load("sglang")
        except Exception:
            import kvevents_core.events

            return kvevents_core.events
    return engines.load(name)


def _stored(structs: Any, hashes: list[int], tokens: list[int], size: int) -> Any:
    names = structs.BlockStored.__struct_fields__
    named = {"lora_name": None} if "lora_name" in names else {}
    return structs.BlockStored(hashes, 7, tokens, size, None, medium="GPU", **named)


def _small(structs: Any) -> Callable[[], list[Any]]:
    tokens = list(range(1000, 1016))
    return lambda: [_stored(structs, [_HASH], list(tokens), 16)]


def _mixed(structs: Any) -> Callable[[], list[Any]]:
    tokens = list(range(1000, 1016))

    def make() -> list[Any]:
        stores = [_stored(structs, [_HASH + n], list(tokens), 16) for n in range(4)]
        removed = [structs.BlockRemoved([_HASH + n], "GPU") for n in range(4)]
        return stores + removed

    return make


def _prefill(structs: Any) -> Callable[[], list[Any]]:
    # Hashes and tokens are objects of their own in an engine: neither cached nor shared ints.
    hashes = [_HASH + n for n in range(64)]
    tokens = [1000 + (n * 7919) % 120_000 for n in range(4096)]
    return lambda: [_stored(structs, list(hashes), list(tokens), 64)]


def sleep_until(moment: float) -> None:
    """Sleep until ``time.perf_counter()`` reaches ``moment``."""
    left_s = moment - time.perf_counter()
    if left_s > 0:
        time.sleep(left_s)
