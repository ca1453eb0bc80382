"""Promises of core that only show end to end: what one bad batch costs, bounds, the reader's rule."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from waiting import wait_until

from kvevents_core import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    EventPublisher,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    StreamId,
    Subscription,
    subscribe,
)
from kvevents_core.backend import Record
from kvevents_core.memory import MemoryHub, hub
from kvevents_core.wire import BatchEncoder

_numbers = itertools.count()


class Line:
    """One publisher on a hub of its own, and readers of it."""

    def __init__(self) -> None:
        self.name = f"core-promises-{next(_numbers)}"
        self.hub: MemoryHub = hub(self.name)
        self._made: list[EventPublisher] = []
        self._open: list[Subscription] = []

    def config(self, **keys: Any) -> KVEventsConfig:
        mapping = {"publisher": "memory", "hub": self.name, "instance": "engine", **keys}
        return KVEventsConfig.from_mapping(mapping, environ={})

    def publisher(self, **keys: Any) -> EventPublisher:
        self._made.append(EventPublisher(self.config(**keys), 0))
        return self._made[-1]

    def read(self, count: int) -> list[Any]:
        """Return the first ``count`` items after the opening batch."""
        subscription = subscribe(self.config(), ranks=[0])
        self._open.append(subscription)
        items: list[Any] = []

        def enough() -> bool:
            items.extend(subscription.receive(0.05))
            return len(items) > count

        wait_until(enough)
        return items[1:]

    def close(self) -> None:
        for publisher in self._made:
            publisher.shutdown(1.0)
        for subscription in self._open:
            subscription.close()


@pytest.fixture
def line() -> Iterator[Line]:
    """A hub of the test's own."""
    made = Line()
    yield made
    made.close()


def stored(first: int, blocks: int, block_size: int = 16) -> BlockStored:
    hashes: list[int | bytes] = list(range(first, first + blocks))
    return BlockStored(hashes, None, list(range(blocks * block_size)), block_size, medium="GPU")


def test_one_bad_event_costs_that_event(line: Line) -> None:
    """C38: an event that cannot be encoded is counted and shown; its neighbours arrive."""
    publisher = line.publisher()
    bad = BlockRemoved([object()])  # type: ignore[list-item]
    publisher.publish(KVEventBatch(1.0, [stored(1, 1), bad, BlockRemoved([7])]))
    publisher.publish(KVEventBatch(2.0, [AllBlocksCleared()]))
    first, gap, second = line.read(3)
    assert [type(event).__name__ for event in first.events] == ["BlockStored", "BlockRemoved"]
    assert isinstance(gap, Gap)
    assert second.events == [AllBlocksCleared()]
    assert publisher.stats().lost_events == {"encode": 1}


def test_a_batch_above_the_limit_is_split_and_nothing_is_lost(line: Line) -> None:
    """C38: every block of a batch far above ``max_message_bytes`` arrives, none above the limit."""
    publisher = line.publisher(max_message_bytes=2_000)
    publisher.publish(KVEventBatch(1.0, [stored(0, 400), stored(1000, 3), BlockRemoved([5])]))
    publisher.publish(KVEventBatch(2.0, [AllBlocksCleared()]))
    wait_until(lambda: publisher.stats().published_events == 5)
    assert max(len(record.payload) for record in line.hub.records) <= 2_000
    items = line.read(len(line.hub.records) - 1)
    assert all(isinstance(item, Batch) for item in items)
    events = [event for item in items for event in item.events]
    hashes = [h for e in events if isinstance(e, BlockStored) for h in e.block_hashes]
    assert hashes == [*range(400), *range(1000, 1003)]
    assert [type(event).__name__ for event in events[-2:]] == ["BlockRemoved", "AllBlocksCleared"]
    assert publisher.stats().lost == {}


def test_memory_is_bounded_in_batches_and_bytes(line: Line) -> None:
    """C39: with the peer away outbox and window hold no more than their bounds; the rest is counted."""
    publisher = line.publisher(
        max_queue_size=1_000,
        max_queue_bytes=400_000,
        max_in_flight_batches=50,
        max_in_flight_bytes=100_000,
    )
    wait_until(lambda: publisher.stats().published_batches == 1)
    line.hub.stop()
    for number in range(5_000):
        publisher.publish(KVEventBatch(float(number), [stored(number, 8)]))
        stats = publisher.stats()
        assert stats.queued_batches <= 1_000
        assert stats.queued_bytes <= 400_000
    stats = publisher.stats()
    lost = stats.lost["overflow"]
    assert stats.queued_batches + stats.in_flight_batches + lost >= 5_000 - 512
    line.hub.restart()
    wait_until(lambda: publisher.stats().published_events + lost == 5_001)


def test_a_reader_gets_each_batch_once_and_in_order(line: Line) -> None:
    """C40: repeats are dropped, and a gap names exactly the numbers that are missing."""
    stream = StreamId("default", "default", "engine", 0)
    epoch = time.time_ns() // 1_000_000
    encoder = BatchEncoder(0)
    payloads = [encoder.encode(KVEventBatch(float(n), [BlockRemoved([n])])) for n in range(12)]
    for seq in (0, 1, 2, 1, 2, 3, 6, 7, 6, 11):
        line.hub.append([Record(stream, epoch, seq, payloads[seq])], 1000)
    told = [
        (item.first_seq, item.last_seq) if isinstance(item, Gap) else item.seq
        for item in line.read(8)
    ]
    assert told == [1, 2, 3, (4, 5), 6, 7, (8, 10), 11]
