"""Our ZMQ source reads the engines' own publishers, live and history, and does them no harm.

The publishers' modules are taken unchanged from the engines' wheels by ``bench.engines``; where they
were not fetched yet (``make bench`` does) the tests are skipped.
"""

from __future__ import annotations

import socket as system
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from waiting import wait_until
from zmq_reading import all_of, reading

from bench import engines
from kvevents_core import KVEventBatch
from kvevents_core.backend import Record
from kvevents_core.naming import StreamId
from kvevents_core.wire import BatchDecoder
from kvevents_zmq import ZmqSettings

STREAM = StreamId("tenant", "model", "instance", 0)


def cached(engine: engines.Engine) -> bool:
    """Return whether the engine's module needs no download."""
    folder = engines.cache_folder() / engine.requirement.replace("==", "-")
    return (folder / engine.member.rpartition("/")[2]).exists()


@pytest.fixture(params=engines.ENGINES, ids=lambda engine: engine.requirement)
def stock(request: pytest.FixtureRequest) -> Iterator[tuple[ModuleType, Any, ZmqSettings]]:
    """Give an engine's module, its publisher, and the settings that lead to it."""
    engine = request.param
    if not cached(engine):
        pytest.skip(
            f"the publisher of {engine.requirement} was not fetched; run `make bench` once"
        )
    module = engines.load(engine.name)
    ports = []
    for _ in range(2):
        with system.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            ports.append(probe.getsockname()[1])
    publisher = module.ZmqEventPublisher(0, f"tcp://*:{ports[0]}", f"tcp://*:{ports[1]}")
    settings = ZmqSettings(endpoint=f"tcp://*:{ports[0]}", replay_endpoint=f"tcp://*:{ports[1]}")
    yield module, publisher, settings
    publisher.shutdown()


def batches(module: ModuleType, count: int) -> Iterator[Any]:
    """Make batches of the engine's own structs."""
    for number in range(count):
        removed = module.BlockRemoved(block_hashes=[2**40 + number], medium="GPU")
        yield module.KVEventBatch(ts=float(number), events=[removed])


def test_live_and_history_of_a_stock_publisher_are_read(stock) -> None:
    """The same bytes both ways, numbered from 0; it tells no epoch and stays alive."""
    module, publisher, settings = stock
    decoder = BatchDecoder()
    with reading(settings) as source:
        for batch in batches(module, 700):
            publisher.publish(batch)
        history: list[Record] = []

        def complete() -> bool:
            history[:] = all_of(source, 0)
            return len(history) == 700

        wait_until(complete)
        assert [one.seq for one in history] == list(range(700))
        assert {one.epoch for one in history} == {None}
        assert source.head(0, 5.0) is None
        decoded = decoder.decode(history[-1].payload)
        assert decoded.skipped_events == 0
        assert isinstance(decoded.batch, KVEventBatch)
        assert decoded.batch.events[0].block_hashes == [2**40 + 699]

        live: list[Record] = []

        def arrived() -> bool:
            for batch in batches(module, 1):
                publisher.publish(batch)
            live.extend(one for one in source.receive(0.1) if isinstance(one, Record))
            return bool(live) and live[-1].seq >= 705

        wait_until(arrived)
        again = source.recover(0, STREAM, live[-1].seq, 5.0)
        assert again is not None
        assert again[0] == live[-1]
        assert all_of(source, live[-1].seq + 1000) == []


def test_our_head_request_costs_a_stock_publisher_nothing(stock) -> None:
    """It answers with its end marker, and publishes on."""
    module, publisher, settings = stock
    with reading(settings) as source:
        start = time.monotonic()
        for _ in range(3):
            assert source.head(0, 5.0) is None
        assert time.monotonic() - start < 3.0
        for batch in batches(module, 3):
            publisher.publish(batch)
        wait_until(lambda: len(all_of(source, 0)) == 3)
