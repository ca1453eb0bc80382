"""What the tests on real brokers publish, read and compare, through kvevents_core alone."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Self, TypeVar

from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockRemoved,
    BlockStored,
    Conflict,
    EventPublisher,
    EventPublisherFactory,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    Mirror,
    Restarted,
    subscribe,
)

T = TypeVar("T")
LONG = os.environ.get("KVEVENTS_TEST_LONG") == "1"
"""Run outages at full length instead of scaled down."""


def open_publisher(config: KVEventsConfig, rank: int = 0) -> EventPublisher:
    """Return an engine's publisher."""
    publisher = EventPublisherFactory.create(config, rank)
    assert isinstance(publisher, EventPublisher)
    return publisher


class Cache:
    """A cache that stores blocks, removes old ones, and publishes both.

    Args:
        publisher: The engine's publisher.
        blocks: How many blocks the cache holds at most.
        tokens: Tokens per block: the size of a batch.
    """

    def __init__(self, publisher: EventPublisher, blocks: int = 50, tokens: int = 4) -> None:
        self.publisher = publisher
        self.batches = 0
        self.longest_call_s = 0.0
        self._blocks = blocks
        self._tokens = tokens
        self._held: list[int] = []

    def contents(self) -> frozenset[int]:
        return frozenset(self._held)

    def step(self) -> None:
        """Store one block, evict another if full, publish."""
        self.batches += 1
        block = self.batches
        events: list[Any] = [
            BlockStored(
                block_hashes=[block],
                parent_block_hash=None,
                token_ids=[block % 1000] * self._tokens,
                block_size=self._tokens,
                lora_id=None,
            )
        ]
        self._held.append(block)
        if len(self._held) > self._blocks:
            events.append(BlockRemoved(block_hashes=[self._held.pop(0)]))
        began = time.perf_counter()
        self.publisher.publish(KVEventBatch(ts=time.time(), events=events))
        self.longest_call_s = max(self.longest_call_s, time.perf_counter() - began)

    def run(self, seconds: float, per_s: int = 200) -> None:
        """Publish at a steady rate: the load of the outage tests."""
        began = time.monotonic()
        done = 0
        while (passed := time.monotonic() - began) < seconds:
            while done < passed * per_s:
                self.step()
                done += 1
            time.sleep(0.002)

    def during(self, seconds: float, disturb: Callable[[], None], per_s: int = 200) -> None:
        """Publish at a steady rate while ``disturb`` runs on another thread, and until it ends."""
        failures: list[BaseException] = []

        def guarded() -> None:
            try:
                disturb()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        self.run(seconds, per_s)
        while thread.is_alive():
            self.run(0.05, per_s)
        thread.join()
        assert not failures, failures

    def wait_delivered(self, timeout_s: float = 30.0) -> None:
        """Wait until the publisher has nothing left to send or to be confirmed."""

        def done() -> bool:
            stats = self.publisher.stats()
            waiting = stats.queued_batches + stats.in_flight_batches
            # The opening batch is one more; a batch on its way to the window is in neither count.
            # Every number was spent on a batch published or lost, once a sender process has told.
            settled = stats.published_batches + sum(stats.lost.values())
            return waiting == 0 and settled > self.batches and settled == stats.next_seq

        wait_until(done, timeout_s, f"delivery: {self.publisher.stats()}")


class Reading:
    """A reader on a thread of its own, with a mirror."""

    def __init__(self, config: KVEventsConfig, **options: Any) -> None:
        self.items: list[Any] = []
        self.mirror = Mirror()
        self._subscription = subscribe(config, **options)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for item in self._subscription.receive(0.05):
                self.mirror.apply(item)
                self.items.append(item)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._subscription.close()

    @property
    def stats(self) -> Any:
        return self._subscription.stats()

    def of(self, kind: type[T]) -> list[T]:
        """Return the items of one kind."""
        return [item for item in self.items if isinstance(item, kind)]

    def seqs(self) -> list[tuple[int, int]]:
        """Return (epoch, seq) of each batch."""
        return [(item.epoch or 0, item.seq) for item in self.of(Batch)]

    def wait_for(self, seq: int, epoch: int | None = None, timeout_s: float = 30.0) -> None:
        """Wait for a batch, or the gap that covers it."""

        def seen() -> bool:
            for item in reversed(self.items):
                last = item.seq if isinstance(item, Batch) else getattr(item, "last_seq", None)
                if last is not None and last >= seq and epoch in (None, item.epoch):
                    return True
            return False

        wait_until(seen, timeout_s, f"seq {seq}; {self.items[-3:]} {self.stats}")

    def wait_level_with(self, cache: Cache, timeout_s: float = 30.0) -> None:
        """Wait until everything the cache has published is delivered and read."""
        cache.wait_delivered(timeout_s)
        stats = cache.publisher.stats()
        self.wait_for(stats.next_seq - 1, stats.epoch, timeout_s)

    def assert_complete(self, cache: Cache) -> None:
        """Every batch exactly once, in order, and the mirror equal to the cache."""
        assert not self.of(Gap), self.of(Gap)
        assert not self.of(Conflict)
        assert not self.of(Restarted)
        seqs = [seq for _, seq in self.seqs()]
        assert seqs == list(range(cache.batches + 1))
        assert self.mirror.blocks(cache.publisher.stream) == cache.contents()
        assert cache.publisher.stats().lost == {}

    def assert_holds_no_more(self, cache: Cache) -> None:
        """Every number is a batch or lies in a gap, and the mirror never says too much."""
        covered: list[int] = []
        for item in self.items:
            if isinstance(item, Batch):
                covered.append(item.seq)
            elif isinstance(item, Gap):
                covered += range(item.first_seq, item.last_seq + 1)
        # A sender process tells what it has sent a moment after readers know.
        publisher = cache.publisher
        wait_until(lambda: publisher.stats().next_seq >= len(covered), what="the last report")
        assert covered == list(range(publisher.stats().next_seq))
        assert self.mirror.blocks(cache.publisher.stream) <= cache.contents()

    def lost(self) -> int:
        """Return how many numbers the gaps cover."""
        return sum(gap.last_seq - gap.first_seq + 1 for gap in self.of(Gap))


class LogRecords(logging.Handler):
    """Collects log texts of kvevents."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname}: {record.getMessage()}")

    def __enter__(self) -> Self:
        logging.getLogger("kvevents").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("kvevents").removeHandler(self)
