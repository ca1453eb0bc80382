"""Readers that join late, early, or over a connection that the publisher makes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    EventPublisher,
    KVEventBatch,
    KVEventsConfig,
    subscribe,
)
from kvevents_core.items import Item

COUNT = 400


def stored(number: int) -> KVEventBatch:
    event = BlockStored([1 << 40 | number], None, [1], 1, None, "GPU")
    return KVEventBatch(time.time(), [event])


def published(config: KVEventsConfig, joins: Callable[[], None]) -> None:
    """Publish COUNT batches in short bursts while ``joins`` runs; then nothing more."""
    publisher = EventPublisher(config)

    def publish() -> None:
        for number in range(COUNT):
            publisher.publish(stored(number))
            if number % 20 == 0:
                time.sleep(0.0005)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        joins()
    finally:
        thread.join()
        publisher.shutdown(0.2)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("bind", [True, False], ids=["publisher binds", "publisher dials"])
def test_whenever_a_reader_joins_it_ends_with_every_batch(seed: int, bind: bool) -> None:
    """Replay first, live afterwards, no seam between; also if nothing follows the last batch.

    The slow joiner of vllm-project/vllm#18722 and zeromq/libzmq#2267 loses what is sent while it
    connects.
    """
    config = KVEventsConfig.from_mapping(
        {
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{free_port()}",
            "bind": bind,
            "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
            "instance": "engine",
        }
    )
    items: list[Item] = []

    def join() -> None:
        time.sleep(random.Random(seed).uniform(0.0, 0.03))  # the moment that is tried
        with subscribe(config) as subscription:
            wait_until(lambda: items.extend(subscription.receive(0.05)) or len(items) > COUNT)

    published(config, join)
    assert [item.seq for item in items if isinstance(item, Batch)] == list(range(COUNT + 1))
    assert len(items) == COUNT + 1
