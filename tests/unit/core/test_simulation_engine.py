"""A simulated engine process calls gate, cache and publisher as an engine does."""

import threading
import time
from itertools import islice

import pytest

from kvevents_core import Batch, KVEventsConfig, Mirror, Placement, RankGate, subscribe
from kvevents_core.simulation.engine import SimulatedEngine
from kvevents_core.simulation.traffic import Request, make_requests
from kvevents_core.wire import normalise_hash


def _gate(hub, place=None, **keys):
    config = KVEventsConfig.from_mapping(
        {"publisher": "memory", "hub": hub, "instance": "one", **keys}, environ={}
    )
    return RankGate.resolve(config, place or Placement())


@pytest.fixture
def engine_of(request):
    """Makes engines and shuts their publishers down at the end."""
    engines = []

    def make(gate, capacity_blocks=300):
        engine = SimulatedEngine(gate, capacity_blocks)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.publisher.shutdown()


def test_what_a_reader_learns_from_an_engine_equals_what_its_cache_holds(engine_of):
    """Prefill, decode, eviction and a flush: the mirror follows block by block."""
    gate = _gate("engine-mirror")
    engine = engine_of(gate)
    for index, request in enumerate(islice(make_requests(seed=2), 60)):
        engine.serve(request)
        if index == 30:
            engine.flush_cache()
    mirror, events = Mirror(), 0
    with subscribe(gate.config) as reader:
        deadline_s = time.monotonic() + 10
        while events < engine.metrics.events + 1:
            assert time.monotonic() < deadline_s
            for item in reader.receive(0.2):
                assert isinstance(item, Batch)
                events += len(item.events)
                mirror.apply(item)
    assert engine.metrics.removed_blocks > 0
    assert engine.metrics.clears == 1
    assert mirror.blocks(engine.publisher.stream) == set(map(normalise_hash, engine.cache.dump()))


def test_a_closed_gate_leaves_cache_events_and_metrics_empty(engine_of):
    """Thousands of steps on a silent rank: nothing recorded, nothing counted, no thread started."""
    before = threading.active_count()
    engine = engine_of(_gate("silent", Placement(tp_rank=1, tp_size=2)))
    assert threading.active_count() == before
    tokens = range(16)
    for number in range(10_000):
        engine.serve(Request(0.0, (number, *tokens), ()))
    assert engine.requests == 10_000
    assert len(engine.cache) == 300
    assert engine.cache.recorded_events == 0
    assert engine.cache.take_events() == []
    assert engine.metrics.events == 0


def test_decoding_publishes_a_step_only_when_a_block_fills(engine_of):
    """One batch for the prompt, one for each block that the output completes."""
    engine = engine_of(_gate("steps"))
    engine.serve(Request(0.0, tuple(range(20)), tuple(range(30))))
    assert engine.metrics.events == 3
    assert engine.metrics.stored_blocks == 3


def test_requests_wait_for_their_arrival_and_stop_ends_the_run(engine_of):
    """A request in the far future is not served early; the order to stop interrupts the wait."""
    engine = engine_of(_gate("pace"))
    stop = threading.Event()
    requests = [Request(0.0, (1,), ()), Request(3600.0, (2,), ())]

    def ordered():
        yield requests[0]
        threading.Timer(0.05, stop.set).start()
        yield requests[1]

    engine.run(ordered(), stop)
    assert engine.requests == 1
