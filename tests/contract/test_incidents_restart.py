"""Restarts as readers met them in the field, over real sockets: none may be overlooked or mixed up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    Conflict,
    EventPublisher,
    KVEventBatch,
    KVEventsConfig,
    Mirror,
    Restarted,
    subscribe,
)
from kvevents_core.items import Item
from kvevents_core.subscriber import Subscription


@pytest.fixture
def made() -> Iterator[list[EventPublisher]]:
    """Publishers to shut down at the end."""
    publishers: list[EventPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.shutdown(0.5)


def zmq_config(**more: object) -> dict[str, object]:
    return {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "bind": True,
        "instance": "engine",
        **more,
    }


def create(config: dict[str, object], made: list[EventPublisher]) -> EventPublisher:
    publisher = EventPublisher(KVEventsConfig.from_mapping(config))
    made.append(publisher)
    return publisher


def stored(life: int, number: int) -> KVEventBatch:
    event = BlockStored([life << 40 | number], None, [1], 1, None, "GPU")
    return KVEventBatch(time.time(), [event])


def publish(publisher: EventPublisher, life: int, count: int) -> None:
    """Publish and wait until the transport has all of it."""
    before = publisher.stats().published_batches
    for number in range(count):
        publisher.publish(stored(life, number))
    wait_until(lambda: publisher.stats().published_batches >= before + count)


def receive_into(items: list[Item], subscription: Subscription, timeout_s: float = 0.05) -> bool:
    items.extend(subscription.receive(timeout_s))
    return bool(items)


@pytest.mark.parametrize("binds", [True, False], ids=["publisher binds", "reader binds"])
@pytest.mark.parametrize("after", [3, 300])
def test_a_reader_that_lags_through_a_restart_never_mixes_two_lives(
    made: list[EventPublisher], binds: bool, after: int
) -> None:
    """What the former life sent is handed out before ``Restarted`` or not at all.

    It still waits in the reader's socket when the new life's connection is made
    (llm-d/llm-d-router#2853).
    """
    config = zmq_config(bind=binds, replay_endpoint=f"tcp://127.0.0.1:{free_port()}")
    items: list[Item] = []
    with subscribe(config) as subscription:
        first = create(config, made)
        wait_until(lambda: receive_into(items, subscription), what="the connection")
        publish(first, 1, 200)
        first.shutdown()
        second = create(config, made)
        publish(second, 2, after)
        wait_until(lambda: second.describe()["peers"], what="the reader's connection")
        publish(second, 2, 1)  # somebody reads a batch of the new life live, too
        last = second.stats().next_seq - 1
        wait_until(
            lambda: (
                receive_into(items, subscription)
                and any(
                    isinstance(i, Batch) and i.epoch == second.stats().epoch and i.seq == last
                    for i in items
                )
            )
        )
        while more := subscription.receive(0.3):
            items += more
    begin = next(n for n, item in enumerate(items) if isinstance(item, Restarted))
    old, new = items[:begin], items[begin + 1 :]
    assert {life_of(item) for item in old} <= {0, 1}
    assert {life_of(item) for item in new if isinstance(item, Batch)} <= {0, 2}
    assert not [item for item in items if isinstance(item, Conflict)]
    assert sum(isinstance(item, Restarted) for item in items) == 1
    assert [i.seq for i in new if isinstance(i, Batch)] == list(range(last + 1))
    mirror = Mirror()
    for item in items:
        mirror.apply(item)
    assert mirror.blocks(second.stream) == {2 << 40 | number for number in range(after)}


def life_of(item: Item) -> int:
    """Return whose block a batch stores; 0 for the opening and for what is no batch."""
    blocks = [e.block_hashes[0] for e in getattr(item, "events", ()) if isinstance(e, BlockStored)]
    return int(blocks[0]) >> 40 if blocks else 0
