"""Where a reader begins, what it notices while it reads, and what it tells of lost history."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from broker.cache_and_reader import Cache, Reading, open_publisher
from broker.kafka_broker import KafkaBroker
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import (
    add_partitions,
    administrator,
    configure,
    create_topic,
    grant,
    login,
    stream_of,
)
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AclOperation
from waiting import wait_until

from kvevents_core import Batch, ConfigError, Gap, ReaderOptions, Record, Trouble, subscribe
from kvevents_kafka import KafkaBackend, KafkaSettings
from kvevents_kafka.source import KafkaSource

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS


def test_latest_begins_with_what_comes(kafka_bootstrap: str, topic: str) -> None:
    """``latest`` leaves out what was there, and says no gap."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    for _ in range(100):
        cache.step()
    cache.wait_delivered()
    with Reading(config, start="latest") as reading:

        def heard() -> bool:
            cache.step()
            return bool(reading.of(Batch))

        wait_until(heard, 20, "a batch after the beginning")
        assert reading.seqs()[0][1] > 100
        assert not reading.of(Gap)
    cache.publisher.shutdown()


def test_a_time_begins_there(kafka_bootstrap: str, topic: str) -> None:
    """An ISO time begins with the first batch written after it."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    for _ in range(100):
        cache.step()
    cache.wait_delivered()
    wait_until(lambda: time.time() % 0.01 < 0.005, 1)  # a millisecond of its own
    now = datetime.now(UTC).isoformat()
    for _ in range(10):
        cache.step()
    with Reading(config, start=now) as reading:
        reading.wait_level_with(cache)
        assert [seq for _, seq in reading.seqs()] == list(range(101, 111))
        assert not reading.of(Gap)
    with Reading(config, start="2001-01-01T00:00:00Z") as reading:
        reading.wait_level_with(cache)
        assert len(reading.of(Batch)) == 111
    cache.publisher.shutdown()


def test_what_is_no_start_is_refused(kafka_bootstrap: str, topic: str) -> None:
    """Anything else is an error that shows what a start may be."""
    for bad in ("yesterday", {"topic": 1}, {topic: {"zero": 0}}):
        with pytest.raises(ConfigError, match="neither") as refused:
            subscribe(configure(kafka_bootstrap, topic), start=bad)
        assert refused.value.key == "start"


def test_a_topic_that_comes_later_is_read_whole(kafka_bootstrap: str, topic: str) -> None:
    """A reader that was there before the topic misses nothing, whatever its start."""
    config = configure(kafka_bootstrap, topic)
    with Reading(config, start="latest") as reading:
        wait_until(lambda: reading.stats.last_trouble, 15, "trouble")
        assert f"topic {topic!r} does not exist" in str(reading.stats.last_trouble)
        cache = Cache(open_publisher(config))
        cache.step()
        reading.wait_level_with(cache)
        assert [seq for _, seq in reading.seqs()] == [0, 1]
    cache.publisher.shutdown()


def test_new_partitions_are_noticed(kafka_bootstrap: str, topic: str) -> None:
    """Streams on partitions added while reading are read from their first batch."""
    create_topic(kafka_bootstrap, topic)
    config = configure(kafka_bootstrap, topic)
    first = Cache(open_publisher(config))
    first.step()
    with Reading(config) as reading:
        reading.wait_level_with(first)
        add_partitions(kafka_bootstrap, topic, 6)
        later = [Cache(open_publisher(config, rank)) for rank in range(1, 8)]
        for cache in (first, *later):
            cache.step()
        for cache in later:
            cache.wait_delivered()
        partitions = {cache.publisher.describe()["partition"] for cache in later}
        assert partitions - {0}, "all ranks landed on the old partition"
        wait_until(
            lambda: all(
                reading.mirror.blocks(c.publisher.stream) == c.contents() for c in (first, *later)
            ),
            30,
            "streams on new partitions",
        )
        assert not reading.of(Gap)
    assert first.publisher.describe()["partition"] == 0
    for cache in (first, *later):
        cache.publisher.shutdown()


def test_history_that_retention_ate_is_a_gap(kafka_bootstrap: str, topic: str) -> None:
    """A reader from the beginning of a shortened log is told what is missing."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    for _ in range(100):
        cache.step()
    cache.wait_delivered()
    admin = administrator(kafka_bootstrap)
    for future in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        future.result(timeout=15)
    with Reading(config) as reading:
        reading.wait_level_with(cache)
        gaps = reading.of(Gap)
        assert [(gap.first_seq, gap.last_seq) for gap in gaps] == [(0, 59)]
        reading.assert_holds_no_more(cache)
    cache.publisher.shutdown()


def test_a_position_that_retention_ate_is_a_gap(kafka_bootstrap: str, topic: str) -> None:
    """A saved position that the log no longer holds: the rest is read, the hole is told."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    for _ in range(20):
        cache.step()
    cache.wait_delivered()
    with subscribe(config) as first:
        seqs = [item.seq for item in first.receive(15.0)]
        position = first.position()
    for _ in range(80):
        cache.step()
    cache.wait_delivered()
    admin = administrator(kafka_bootstrap)
    for future in admin.delete_records([TopicPartition(topic, 0, 60)]).values():
        future.result(timeout=15)
    with Reading(config, start=position) as second:
        second.wait_level_with(cache)
        gaps = second.of(Gap)
        assert [(gap.first_seq, gap.last_seq) for gap in gaps] == [(len(seqs), 59)]
    cache.publisher.shutdown()


def test_chosen_ranks_and_instances_only(kafka_bootstrap: str, topic: str) -> None:
    """A reader gets the ranks and the instance it asked for from a topic that others share."""
    caches = {}
    for instance in ("a", "b"):
        for rank in (0, 1):
            config = configure(kafka_bootstrap, topic, instance=instance)
            caches[instance, rank] = Cache(open_publisher(config, rank))
            caches[instance, rank].step()
    for cache in caches.values():
        cache.wait_delivered()
    with Reading(configure(kafka_bootstrap, topic, instance="b"), ranks=[1]) as reading:
        reading.wait_level_with(caches["b", 1])
        assert set(reading.mirror.streams()) == {stream_of(1, "b")}
    for cache in caches.values():
        cache.publisher.shutdown()


def test_a_tenants_every_model_is_found(kafka_bootstrap: str, topic: str) -> None:
    """A reader of all models follows the tenant's topics, those that come later too."""
    template = f"{topic}.{{tenant}}.{{model}}"
    caches = []

    def publish_as(tenant: str, model: str) -> None:
        config = configure(kafka_bootstrap, template, tenant=tenant, model=model)
        caches.append(Cache(open_publisher(config)))
        caches[-1].step()
        caches[-1].wait_delivered()

    publish_as("acme", "a/b")
    publish_as("other", "a/b")
    settings = configure(kafka_bootstrap, template).backend_settings
    assert isinstance(settings, KafkaSettings)
    reader = ReaderOptions("acme", "", "", all_instances=True)
    source = KafkaBackend().open_source(settings, reader)
    models: set[str] = set()

    def found(model: str) -> bool:
        arrivals = source.receive(0.2)
        models.update(a.stream.model for a in arrivals if isinstance(a, Record))
        return model in models

    try:
        wait_until(lambda: found("a/b"), 20, "the first model")
        publish_as("acme", "c d")
        wait_until(lambda: found("c d"), 20, "the model that came later")
        assert models == {"a/b", "c d"}
    finally:
        source.close()
        for cache in caches:
            cache.publisher.shutdown()


def test_a_topic_made_anew_is_read_on(kafka_bootstrap: str, topic: str) -> None:
    """A topic deleted and created again: publisher and reader go on by themselves, nothing lost."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    admin = administrator(kafka_bootstrap)
    with Reading(config) as reading:
        for batches in (200, 20, 300):
            for _ in range(batches):
                cache.step()
            reading.wait_level_with(cache, 50)
            for future in admin.delete_topics([topic]).values():
                future.result(timeout=15)
        cache.step()
        reading.wait_level_with(cache, 50)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


def test_a_reader_survives_a_client_that_breaks(kafka_bootstrap: str, topic: str) -> None:
    """Whatever the client raises, another one goes on where it stood."""
    config = configure(kafka_bootstrap, topic)
    cache = Cache(open_publisher(config))
    for _ in range(20):
        cache.step()
    settings = config.backend_settings
    assert isinstance(settings, KafkaSettings)
    source = KafkaBackend().open_source(settings, ReaderOptions("t0", "org/model", "i0"))
    assert isinstance(source, KafkaSource)
    seqs: list[int] = []
    notices: list[str] = []

    def read_up_to(seq: int) -> bool:
        for arrival in source.receive(0.2):
            if isinstance(arrival, Record):
                seqs.append(arrival.seq)
            elif isinstance(arrival, Trouble):
                notices.append(arrival.reason)
        return seq in seqs

    def broken(**_: object) -> None:
        raise RuntimeError("a bug in the client")

    try:
        wait_until(lambda: read_up_to(20), 20, "the first batches")
        source._client.api.poll = broken
        for _ in range(20):
            cache.step()
        wait_until(lambda: read_up_to(40), 20, "the batches behind the break")
        assert seqs == list(range(41))
        assert any("a bug in the client" in notice for notice in notices)
    finally:
        source.close()
        cache.publisher.shutdown()


def test_a_reader_without_permission_to_read_says_so(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    """Describing without reading: the missing permission is named, not taken for silence."""
    bootstrap = kafka_broker.bootstrap()
    cache = Cache(open_publisher(configure(bootstrap, topic)))
    cache.step()
    cache.wait_delivered()
    grant(bootstrap, "nobody", topic, [AclOperation.DESCRIBE])
    with Reading(configure("", topic, **login(kafka_broker, "nobody"))) as reading:
        denied = "not authorized to read the topic"
        wait_until(lambda: denied in str(reading.stats.last_trouble), 15, denied)
        assert reading.items == []
        grant(bootstrap, "nobody", topic, [AclOperation.READ])
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()
