"""Reading end to end: threads and asyncio, many batches, resuming, several ranks."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    ConfigError,
    EventPublisher,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    Silent,
    asubscribe,
    subscribe,
)
from kvevents_core.errors import ClosedError

_names = itertools.count()


@pytest.fixture
def made() -> Iterator[list[EventPublisher]]:
    """Publishers to shut down at the end."""
    publishers: list[EventPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.shutdown(0.1)


def batch(number: int) -> KVEventBatch:
    return KVEventBatch(time.time(), [BlockStored([1 << 40 | number], None, [1], 1, None, "GPU")])


def memory_config() -> dict[str, object]:
    return {"publisher": "memory", "hub": f"subscription{next(_names)}", "instance": "engine"}


def zmq_config(**more: object) -> dict[str, object]:
    return {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "bind": True,
        "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
        "instance": "engine",
        **more,
    }


def create(config: dict[str, object], made: list[EventPublisher], rank: int = 0) -> EventPublisher:
    publisher = EventPublisher(KVEventsConfig.from_mapping(config), rank)
    made.append(publisher)
    return publisher


def test_a_hundred_thousand_batches_come_once_and_in_order(made: list[EventPublisher]) -> None:
    """C1: full load over ZMQ with replay on: nothing lost, nothing twice, order kept."""
    count = 100_000
    config = zmq_config()
    publisher = create(config, made)
    same = batch(7)
    next_seq = 1
    with subscribe(config) as subscription:
        wait_until(lambda: subscription.receive(0.05), what="the opening batch")
        for number in range(count):
            publisher.publish(same)
            if number % 500 == 0:  # a scheduler has pauses; the outbox holds 100,000 anyway
                time.sleep(0.0005)
        deadline = time.monotonic() + 45
        while next_seq <= count:
            assert time.monotonic() < deadline, f"stuck at {next_seq}"
            for item in subscription.receive(0.1):
                assert isinstance(item, Batch)
                assert item.seq == next_seq
                next_seq += 1
    assert publisher.stats().lost == {}


def test_a_late_joiner_gets_the_ring_and_then_live_batches(made: list[EventPublisher]) -> None:
    """C13: history first, without a gap or a duplicate at the seam."""
    config = zmq_config()
    publisher = create(config, made)
    for number in range(500):
        publisher.publish(batch(number))
    wait_until(lambda: publisher.stats().published_batches == 501)
    items: list[object] = []
    with subscribe(config) as subscription:
        for number in range(500, 600):
            publisher.publish(batch(number))
        wait_until(lambda: items.extend(subscription.receive(0.05)) or len(items) >= 601)
    assert [item.seq for item in items if isinstance(item, Batch)] == list(range(601))
    assert len(items) == 601


def test_several_ranks_are_several_streams(made: list[EventPublisher]) -> None:
    """C8: dp 3 gives three streams with numbers of their own."""
    base, replay = 20_000 + free_port() % 20_000, 45_000 + free_port() % 10_000
    config = zmq_config(
        endpoint=f"tcp://127.0.0.1:{base}", replay_endpoint=f"tcp://127.0.0.1:{replay}"
    )
    publishers = [create(config, made, rank) for rank in range(3)]
    for number in range(30):
        for publisher in publishers:
            publisher.publish(batch(number))
    seqs: dict[int, list[int]] = {0: [], 1: [], 2: []}
    with subscribe(config, dp_size=3) as subscription:

        def all_read() -> bool:
            for item in subscription.receive(0.05):
                assert isinstance(item, Batch)
                seqs[item.stream.rank].append(item.seq)
            return all(len(each) == 31 for each in seqs.values())

        wait_until(all_read)
    assert all(each == list(range(31)) for each in seqs.values())


def test_a_rank_that_never_speaks_is_silent(made: list[EventPublisher]) -> None:
    """Of two expected ranks one has no publisher: the reader is told which."""
    config = zmq_config(heartbeat_s=0.1)
    create(config, made)
    silent: list[Silent] = []
    with subscribe(config, dp_size=2, silent_after_s=0.5) as subscription:
        wait_until(
            lambda: (
                silent.extend(
                    item for item in subscription.receive(0.05) if isinstance(item, Silent)
                )
                or silent
            )
        )
    assert {item.stream.rank for item in silent} == {1}


def test_a_saved_position_goes_on_without_loss_or_repetition(made: list[EventPublisher]) -> None:
    """What was read is not read again; what came meanwhile is."""
    config = memory_config()
    publisher = create(config, made)
    first: list[object] = []
    publisher.publish(batch(0))
    with subscribe(config) as subscription:
        wait_until(lambda: first.extend(subscription.receive(0.05)) or len(first) == 2)
        position = subscription.position()
    publisher.publish(batch(1))
    second: list[object] = []
    with subscribe(config, start=position) as subscription:
        wait_until(lambda: second.extend(subscription.receive(0.05)) or second)
    assert [item.seq for item in second if isinstance(item, Batch)] == [2]


def test_a_saved_position_over_zmq_goes_on_from_the_ring(made: list[EventPublisher]) -> None:
    """No log, but a ring: the numbers after the position are fetched from it."""
    config = zmq_config()
    publisher = create(config, made)
    publisher.publish(batch(0))
    first: list[object] = []
    with subscribe(config) as subscription:
        wait_until(lambda: first.extend(subscription.receive(0.05)) or len(first) == 2)
        position = subscription.position()
    for number in range(1, 4):
        publisher.publish(batch(number))
    second: list[object] = []
    with subscribe(config, start=position) as subscription:
        wait_until(lambda: second.extend(subscription.receive(0.05)) or len(second) >= 3)
    assert [item.seq for item in second if isinstance(item, Batch)] == [2, 3, 4]
    assert not [item for item in second if isinstance(item, Gap)]


def test_asyncio_reads_the_same_and_a_cancelled_read_loses_nothing(
    made: list[EventPublisher],
) -> None:
    """C1: async for gives every batch in order, also around a cancelled receive."""
    config = memory_config()
    publisher = create(config, made)

    async def read() -> list[int]:
        seqs: list[int] = []
        async with asubscribe(config) as subscription:
            while len(seqs) < 1:
                seqs += [i.seq for i in await subscription.receive(0.2) if isinstance(i, Batch)]
            reading = asyncio.create_task(subscription.receive(5.0))
            await asyncio.sleep(0)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            for number in range(200):
                publisher.publish(batch(number))
            async for item in subscription:
                assert isinstance(item, Batch)
                seqs.append(item.seq)
                if len(seqs) == 201:
                    return seqs
        raise AssertionError("the subscription ended")

    assert asyncio.run(asyncio.wait_for(read(), 20)) == list(range(201))


def test_a_closed_subscription_refuses(made: list[EventPublisher]) -> None:
    """C4: reading after close raises; closing twice is quiet."""
    config = memory_config()
    subscription = subscribe(config)
    subscription.close()
    subscription.close()
    with pytest.raises(ClosedError):
        subscription.receive(0.1)
    assert list(subscription) == []


def test_nothing_to_read_is_said_at_once() -> None:
    """A reader of the null publisher gets one clear error."""
    with pytest.raises(ConfigError, match="nothing to read"):
        subscribe("{}")
