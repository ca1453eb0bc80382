"""Batches above the broker's limit: divided between events, or that one alone is lost and counted."""

from __future__ import annotations

import os
import time

import pytest
from broker.cache_and_reader import Reading, open_publisher
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import configure, create_topic
from waiting import wait_until

from kvevents_core import Batch, BlockStored, EventPublisher, Gap, KVEventBatch, StreamId

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS
MANY_BYTES = 3_000_000


def noise_tokens(count: int) -> list[int]:
    """Return ``count`` token ids of five bytes each on the wire that do not compress well."""
    raw = os.urandom(4 * count)
    return [1 << 31 | int.from_bytes(raw[4 * n : 4 * n + 4], "big") for n in range(count)]


def stored(block: int, tokens: int, block_size: int | None = None) -> BlockStored:
    """Return one block of ``tokens`` tokens; with another ``block_size`` it cannot be divided."""
    return BlockStored(
        block_hashes=[block],
        parent_block_hash=None,
        token_ids=noise_tokens(tokens),
        block_size=tokens if block_size is None else block_size,
        lora_id=None,
    )


def publish(publisher: EventPublisher, *events: BlockStored) -> None:
    publisher.publish(KVEventBatch(ts=time.time(), events=list(events)))


def wait_delivered(publisher: EventPublisher, batches: int) -> None:
    wait_until(
        lambda: (
            publisher.stats().published_batches + sum(publisher.stats().lost.values()) >= batches
        ),
        30,
        f"{publisher.stats()}",
    )


def test_a_large_batch_of_many_events_is_divided(kafka_bootstrap: str, topic: str) -> None:
    """3 MB in many events against 1 MB: several records, every event once, in order."""
    config = configure(kafka_bootstrap, topic)
    publisher = open_publisher(config)
    publish(publisher, *(stored(block, 100) for block in range(1, MANY_BYTES // 500)))
    publish(publisher, stored(999_999, 10))
    with Reading(config) as reading:
        wait_until(lambda: 999_999 in reading.mirror.blocks(publisher.stream), 30, "the next one")
        blocks = [e.block_hashes[0] for b in reading.of(Batch) for e in b.events if _is_store(e)]
        assert blocks == [*range(1, MANY_BYTES // 500), 999_999]
        assert len(reading.of(Batch)) >= 1 + 3 + 1
        assert not reading.of(Gap)
    assert publisher.stats().lost == {}
    publisher.shutdown()


def test_a_large_event_that_cannot_be_divided_is_lost_alone(
    kafka_bootstrap: str, topic: str
) -> None:
    """3 MB in one event: counted, told as a gap where it was, and the next batch goes through."""
    config = configure(kafka_bootstrap, topic)
    publisher = open_publisher(config)
    publish(publisher, stored(1, 10))
    publish(publisher, stored(2, MANY_BYTES // 5, block_size=7))
    publish(publisher, stored(3, 10))
    with Reading(config) as reading:
        wait_until(lambda: 3 in reading.mirror.blocks(publisher.stream), 30, "the next one")
        assert [(gap.first_seq, gap.last_seq) for gap in reading.of(Gap)] == [(2, 2)]
        # The mirror forgot what came before the gap: it cannot know what it missed.
        assert reading.mirror.blocks(publisher.stream) == {3}
    stats = publisher.stats()
    assert sum(stats.lost.values()) == 1, stats.lost
    publisher.shutdown()


@pytest.mark.parametrize("limit", [100_000, 2_000_000])
def test_the_topics_own_limit_counts(kafka_bootstrap: str, topic: str, limit: int) -> None:
    """``max.message.bytes`` of the topic, smaller or larger than usual, is what is divided for."""
    create_topic(kafka_bootstrap, topic, config={"max.message.bytes": str(limit)})
    config = configure(kafka_bootstrap, topic, max_request_size=4_000_000)
    publisher = open_publisher(config)
    events = [stored(block, 100) for block in range(1, MANY_BYTES // 500)]
    publish(publisher, *events)
    with Reading(config) as reading:
        wait_until(
            lambda: len(reading.mirror.blocks(publisher.stream)) == len(events), 30, "all blocks"
        )
        records = len(reading.of(Batch)) - 1
        assert MANY_BYTES / limit <= records <= MANY_BYTES / limit * 1.5 + 1
    assert publisher.stats().lost == {}
    publisher.shutdown()


def test_a_limit_that_shrinks_costs_no_more_than_it_must(kafka_bootstrap: str, topic: str) -> None:
    """Records refused for their size are rejected one by one, and the stream goes on."""
    from broker.kafka_streams import administrator
    from confluent_kafka.admin import (
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        ResourceType,
    )

    create_topic(kafka_bootstrap, topic)
    config = configure(kafka_bootstrap, topic)
    publisher = open_publisher(config)
    publish(publisher, stored(1, 10))
    wait_delivered(publisher, 2)
    admin = administrator(kafka_bootstrap)
    smaller = ConfigEntry(
        "max.message.bytes", "50000", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[smaller])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=15)
    publish(publisher, stored(2, 40_000))
    publish(publisher, stored(3, 10))
    with Reading(config) as reading:
        wait_until(lambda: 3 in reading.mirror.blocks(publisher.stream), 30, "the next one")
        assert [(gap.first_seq, gap.last_seq) for gap in reading.of(Gap)] == [(2, 2)]
    assert publisher.stats().lost == {"rejected": 1}
    assert publisher.stream == StreamId("t0", "org/model", "i0", 0)
    publisher.shutdown()


def _is_store(event: object) -> bool:
    return isinstance(event, BlockStored)
