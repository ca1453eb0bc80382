"""Full queues, slow readers and idle engines, as they hurt people in the field; over real sockets."""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Iterator

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    EventPublisher,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    subscribe,
)
from kvevents_core.items import Item
from kvevents_core.memory import hub
from kvevents_core.subscriber import Subscription


@pytest.fixture
def made() -> Iterator[list[EventPublisher]]:
    """Publishers to shut down at the end."""
    publishers: list[EventPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.shutdown(0.5)


def create(made: list[EventPublisher], **config: object) -> EventPublisher:
    publisher = EventPublisher(KVEventsConfig.from_mapping(config))
    made.append(publisher)
    return publisher


def zmq_keys(**more: object) -> dict[str, object]:
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    return {"publisher": "zmq", "endpoint": endpoint, "bind": True, "instance": "engine", **more}


def large(number: int) -> KVEventBatch:
    """Return a batch of some 25 kB."""
    tokens = list(range(100_000, 105_000))
    return KVEventBatch(time.time(), [BlockStored([number + 1], None, tokens, 5_000, None, "GPU")])


def flood_a_sleeping_reader(
    publisher: EventPublisher, subscription: Subscription, items: list[Item], count: int
) -> None:
    """Publish far more than the sockets hold while the reader, which has connected, sleeps."""

    def heard() -> bool:
        publisher.publish(large(0))
        items.extend(subscription.receive(0.05))
        return any(isinstance(item, Batch) and not item.replayed for item in items)

    wait_until(heard, what="a live batch")
    before = publisher.stats().published_batches
    for number in range(count):
        publisher.publish(large(number))
    wait_until(lambda: publisher.stats().published_batches >= before + count, 20)


def test_what_zmq_drops_at_its_mark_is_missing_number_by_number(
    made: list[EventPublisher],
) -> None:
    """PUB drops in silence; received and reported missing add up to what was sent.

    The end of the row shows with the next batch that arrives (zeromq/libzmq#1156,
    zeromq/pyzmq#1241).
    """
    config = zmq_keys(hwm=10, rcvhwm=10, max_queue_bytes=1 << 30)
    items: list[Item] = []
    with subscribe(config) as subscription:
        publisher = create(made, **config)
        flood_a_sleeping_reader(publisher, subscription, items, 2_000)
        flooded = publisher.stats().next_seq

        def next_one_arrived() -> bool:
            publisher.publish(large(0))
            items.extend(subscription.receive(0.05))
            return any(isinstance(item, Batch) and item.seq > flooded for item in items)

        wait_until(next_one_arrived)
    received = [item.seq for item in items if isinstance(item, Batch)]
    gaps = [item for item in items if isinstance(item, Gap)]
    missing = [seq for gap in gaps for seq in range(gap.first_seq, gap.last_seq + 1)]
    assert len(missing) > 500
    assert sorted(received + missing) == list(range(max(received) + 1))
    assert publisher.stats().lost == {}


def test_what_zmq_drops_at_its_mark_is_fetched_from_the_ring_to_the_last_batch(
    made: list[EventPublisher],
) -> None:
    """With a replay endpoint nothing is missing, although nothing follows to show the lost end."""
    replay = f"tcp://127.0.0.1:{free_port()}"
    config = zmq_keys(hwm=10, rcvhwm=10, replay_endpoint=replay, max_queue_bytes=1 << 30)
    items: list[Item] = []
    with subscribe(config) as subscription:
        publisher = create(made, **config)
        flood_a_sleeping_reader(publisher, subscription, items, 2_000)
        sent = publisher.stats().next_seq
        wait_until(lambda: items.extend(subscription.receive(0.05)) or len(items) >= sent)
    assert [item.seq for item in items if isinstance(item, Batch)] == list(range(sent))
    assert len(items) == sent


def test_a_full_queue_costs_the_engine_microseconds_and_the_log_a_line(
    made: list[EventPublisher], caplog: pytest.LogCaptureFixture
) -> None:
    """The transport stalls: publish returns in under 1 ms (vllm-project/vllm#53859), drops are counted.

    They are logged from time to time, not one by one.
    """
    hub("full queue").stop()
    publisher = create(made, publisher="memory", hub="full queue", max_queue_size=10)
    spent_s = []
    with caplog.at_level(logging.WARNING, "kvevents"):
        for number in range(3_000):
            begin = time.perf_counter()
            publisher.publish(large(number))
            spent_s.append(time.perf_counter() - begin)
        wait_until(lambda: "lost" in caplog.text)
    assert statistics.median(spent_s) < 0.001
    assert publisher.stats().lost["overflow"] == 3_000 - 10
    assert len([each for each in caplog.records if "lost" in each.message]) <= 2


def test_shutdown_with_a_full_queue_keeps_its_deadline_and_frees_everything(
    made: list[EventPublisher],
) -> None:
    """No queue.Full, no thread or socket left behind (vllm-project/vllm#52857)."""
    threads = threading.active_count()
    publisher = create(made, **{**zmq_keys(max_queue_size=5), "bind": False})
    for number in range(50):
        publisher.publish(large(number))
    assert publisher.stats().lost["overflow"] > 0
    begin = time.monotonic()
    unsent = publisher.shutdown(0.5)
    assert time.monotonic() - begin < 1.5
    now = publisher.stats()
    assert unsent + now.lost["overflow"] == 51  # the opening batch, too
    assert not now.sender_alive
    wait_until(lambda: threading.active_count() == threads)


def test_an_idle_engine_costs_nothing(made: list[EventPublisher]) -> None:
    """Empty batches are not sent, and the sender sleeps (sgl-project/sglang#39315)."""
    publisher = create(made, **zmq_keys())
    wait_until(lambda: publisher.stats().published_batches == 1)
    for _ in range(10_000):
        publisher.publish(KVEventBatch(time.time(), []))
    clock = time.pthread_getcpuclockid(publisher._sending.sender._thread.ident or 0)
    wait_until(lambda: cpu_s_of_one_second(clock) < 0.01, 5)
    assert publisher.stats().published_batches == 1
    assert publisher.stats().lost == {}


def cpu_s_of_one_second(clock: int) -> float:
    """Return the processor seconds that a thread uses while this one sleeps for a second."""
    begin = time.clock_gettime(clock)
    time.sleep(1.0)
    return time.clock_gettime(clock) - begin
