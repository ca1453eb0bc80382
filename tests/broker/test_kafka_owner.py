"""One owner: the highest epoch, told apart by key, found at the end of the partition."""

from __future__ import annotations

import os
import socket

import pytest
from broker.cache_and_reader import Cache, LogRecords, Reading, open_publisher
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import configure, create_topic, stream_of
from waiting import wait_until

from kvevents_core import Batch, Conflict, EventPublisher, Gap, KVEventsConfig, Restarted

__all__ = ["kafka_garbage"]

pytestmark = [*KAFKA_MARKS, pytest.mark.usefixtures("each_sender")]


def publisher_at(config: KVEventsConfig, clock_ms: int, rank: int = 0) -> EventPublisher:
    """Return a publisher whose clock stands at ``clock_ms``."""
    # Only a thread takes the clock of a test.
    config = config.model_copy(update={"sender": "thread"})
    return EventPublisher(config, rank, clock=lambda: clock_ms)


def test_an_epoch_is_raised_above_the_last_one(kafka_bootstrap: str, topic: str) -> None:
    """With a clock that was turned back, the next life still has the higher epoch."""
    config = configure(kafka_bootstrap, topic)
    first = Cache(publisher_at(config, 2_000_000_000_000))
    first.step()
    first.wait_delivered()
    first.publisher.shutdown()
    second = Cache(publisher_at(config, 1_000))
    second.step()
    second.wait_delivered()
    assert second.publisher.stats().epoch == 2_000_000_000_001
    with Reading(config) as reading:
        reading.wait_for(1, 2_000_000_000_001)
        assert [type(item) for item in reading.items if not isinstance(item, Batch)] == [Restarted]
        assert reading.mirror.blocks(stream_of()) == second.contents()
    second.publisher.shutdown()


def test_a_last_epoch_far_from_the_end_is_found(kafka_bootstrap: str, topic: str) -> None:
    """Another stream's records behind ours on the same partition do not hide our last epoch."""
    config = configure(kafka_bootstrap, topic)
    ours = Cache(publisher_at(config, 2_000_000_000_000))
    ours.step()
    ours.wait_delivered()
    ours.publisher.shutdown()
    other = Cache(open_publisher(configure(kafka_bootstrap, topic, instance="other")))
    for _ in range(3000):
        other.step()
    other.wait_delivered()
    again = Cache(publisher_at(config, 1_000))
    again.step()
    again.wait_delivered()
    assert again.publisher.stats().epoch == 2_000_000_000_001
    for cache in (other, again):
        cache.publisher.shutdown()


def test_two_live_publishers_end_as_one_clean_stream(kafka_bootstrap: str, topic: str) -> None:
    """Two publishers of one identity: the newer one's stream is clean, the older one gives way."""
    config = configure(kafka_bootstrap, topic)
    with LogRecords() as log, Reading(config) as reading:
        older = Cache(open_publisher(config))
        for _ in range(50):
            older.step()
        older.wait_delivered()
        newer = Cache(open_publisher(config))
        newer.step()
        newer.wait_delivered()

        def older_is_told() -> bool:
            older.step()
            return older.publisher.stats().superseded_by is not None

        wait_until(older_is_told, 15, "the older publisher learns of the newer")
        facts = older.publisher.describe()
        assert facts["superseded_by"] == newer.publisher.stats().epoch
        assert facts["superseded_by_publisher"] == f"{socket.gethostname()}:{os.getpid()}"
        for _ in range(50):
            newer.step()
        reading.wait_level_with(newer)
        assert reading.mirror.blocks(stream_of()) == newer.contents()
        assert newer.publisher.stats().superseded_by is None
        seqs = [seq for epoch, seq in reading.seqs() if epoch == newer.publisher.stats().epoch]
        assert seqs == list(range(newer.batches + 1))
        assert not reading.of(Gap)
        assert len(reading.of(Restarted)) == 1
        assert len(reading.of(Conflict)) <= 1
    errors = [text for text in log.texts if "newer publisher" in text]
    assert len(errors) == 1, log.texts
    for cache in (older, newer):
        cache.publisher.shutdown()


def test_a_quiet_newer_publisher_is_found_too(kafka_bootstrap: str, topic: str) -> None:
    """The newer publisher sends its opening batch only: the busy older one still learns of it."""
    config = configure(kafka_bootstrap, topic)
    older = Cache(open_publisher(config))
    older.step()
    older.wait_delivered()
    newer: list[EventPublisher] = []
    older.during(0.5, lambda: newer.append(open_publisher(config)), per_s=400)
    wait_until(lambda: older.publisher.stats().superseded_by is not None, 15, "superseded")
    older.publisher.shutdown()
    newer[0].shutdown()


def test_many_lives_are_read_as_restarts_and_never_as_a_mixture(
    kafka_bootstrap: str, topic: str
) -> None:
    """A reader from the beginning of a log of many epochs sees each restart once."""
    create_topic(kafka_bootstrap, topic, partitions=3)
    config = configure(kafka_bootstrap, topic)
    lives = 5
    for life in range(lives):
        cache = Cache(open_publisher(config))
        for _ in range(20 + life):
            cache.step()
        cache.wait_delivered()
        if life < lives - 1:
            cache.publisher.shutdown()
    with Reading(config) as reading:
        reading.wait_level_with(cache)
        assert len(reading.of(Restarted)) == lives - 1
        assert not reading.of(Gap)
        assert not reading.of(Conflict)
        epochs = [epoch for epoch, _ in reading.seqs()]
        assert epochs == sorted(epochs)
        assert reading.mirror.blocks(stream_of()) == cache.contents()
    cache.publisher.shutdown()


@pytest.mark.parametrize("partitions", [1, 4])
def test_ranks_are_streams_of_their_own_on_shared_partitions(
    kafka_bootstrap: str, topic: str, partitions: int
) -> None:
    """Ranks never disturb each other, whether or not they share a partition."""
    create_topic(kafka_bootstrap, topic, partitions=partitions)
    config = configure(kafka_bootstrap, topic)
    caches = [Cache(open_publisher(config, rank)) for rank in range(4)]
    for _ in range(100):
        for cache in caches:
            cache.step()
    with Reading(config) as reading:
        for cache in caches:
            stream = cache.publisher.stream
            wait_until(
                lambda stream=stream, cache=cache: (  # type: ignore[misc]
                    reading.mirror.blocks(stream) == cache.contents()
                ),
                30,
                str(stream),
            )
        assert not reading.of(Gap)
        assert len(reading.of(Batch)) == 4 * 101
    for cache in caches:
        assert cache.publisher.stats().superseded_by is None
        assert cache.publisher.shutdown() == 0
