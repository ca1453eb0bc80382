"""Kafka brokers that stop, crash or freeze, and killed processes: nothing is lost in silence.

Publisher and reader are kvevents_core's, the broker is the real one. ``KVEVENTS_TEST_LONG=1`` runs
the outages at full length.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator

import pytest
from broker.cache_and_reader import LONG, Cache, LogRecords, Reading, open_publisher
from broker.kafka_broker import KafkaBroker
from broker.kafka_fixtures import KAFKA_MARKS, KafkaInstallation, kafka_garbage
from broker.kafka_streams import SHORT_CALL_S, configure, mapping_of, run_python, stream_of
from waiting import wait_until

from kvevents_core import Batch, Gap, Mirror, Restarted, subscribe

__all__ = ["kafka_garbage"]

pytestmark = [*KAFKA_MARKS, pytest.mark.usefixtures("each_sender")]
KILLS = 20 if LONG else 4


@pytest.fixture(scope="module")
def mortal(kafka_installation: KafkaInstallation) -> Iterator[KafkaBroker]:
    """A broker that tests of this module may stop and kill; each finds it running."""
    broker = KafkaBroker(kafka_installation.java, kafka_installation.jars)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture
def broker(mortal: KafkaBroker) -> KafkaBroker:
    """That broker, running."""
    mortal.start()
    return mortal


def test_an_outage_loses_nothing_and_blocks_nobody(broker: KafkaBroker, topic: str) -> None:
    """A broker stopped under 200 batches/s and started again: all arrive, in order, once."""
    config = configure(broker.bootstrap(), topic)
    cache = Cache(open_publisher(config))

    def outage() -> None:
        time.sleep(0.5)
        broker.stop()
        time.sleep(20.0 if LONG else 3.0)
        broker.start()

    with Reading(config) as reading:
        cache.during(1.0, outage)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    assert cache.publisher.shutdown() == 0


def test_a_tiny_outbox_shows_every_drop_as_a_gap(broker: KafkaBroker, topic: str) -> None:
    """Where the outbox was too small, the reader's gaps equal the counted drops exactly."""
    config = configure(broker.bootstrap(), topic, max_queue_size=50, max_in_flight_batches=20)
    cache = Cache(open_publisher(config))

    def outage() -> None:
        time.sleep(0.5)
        broker.stop()
        wait_until(lambda: cache.publisher.stats().lost.get("overflow", 0) > 100, 30, "drops")
        broker.start()

    with Reading(config) as reading:
        cache.during(1.0, outage)
        reading.wait_level_with(cache, 60)
        lost = cache.publisher.stats().lost
        assert set(lost) == {"overflow"}
        assert reading.lost() == lost["overflow"]
        reading.assert_holds_no_more(cache)
    cache.publisher.shutdown()


def test_a_broker_killed_at_random_moments_loses_nothing(broker: KafkaBroker, topic: str) -> None:
    """SIGKILL of the broker at random moments: all arrives in order; repeats are dropped."""
    config = configure(broker.bootstrap(), topic)
    cache = Cache(open_publisher(config))
    rhythm = random.Random(7)

    def kills() -> None:
        for _ in range(KILLS):
            time.sleep(rhythm.uniform(0.05, 0.8))
            broker.kill()
            broker.start()

    with Reading(config) as reading:
        cache.during(1.0, kills)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    assert cache.publisher.shutdown() == 0


def test_an_outage_longer_than_the_clients_patience_loses_nothing(
    broker: KafkaBroker, topic: str
) -> None:
    """Records that the client gives up are sent again by a new client, in order."""
    config = configure(
        broker.bootstrap(), topic, delivery_timeout_ms=1200, request_timeout_ms=1000
    )
    cache = Cache(open_publisher(config))

    def outage() -> None:
        time.sleep(0.5)
        broker.kill()
        wait_until(lambda: any("Expiring" in text for text in log.texts), 30, "expiry")
        broker.start()

    with LogRecords() as log, Reading(config) as reading:
        cache.during(1.0, outage)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.publisher.describe()["rebuilt"] > 0
    assert cache.publisher.shutdown() == 0


def test_a_frozen_broker_is_noticed_and_blocks_nobody(broker: KafkaBroker, topic: str) -> None:
    """A broker that keeps its connections and answers nothing is told as trouble."""
    config = configure(broker.bootstrap(), topic, request_timeout_ms=1000)
    cache = Cache(open_publisher(config))

    def freeze() -> None:
        time.sleep(0.5)
        broker.pause()
        try:
            wait_until(lambda: cache.publisher.stats().error, 20, "an error")
        finally:
            broker.resume()

    with Reading(config) as reading:
        cache.during(1.0, freeze)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    cache.publisher.shutdown()


def test_shutdown_keeps_its_deadline_with_a_frozen_broker(broker: KafkaBroker, topic: str) -> None:
    """Shutdown with a frozen broker ends in time and counts what it could not send."""
    cache = Cache(open_publisher(configure(broker.bootstrap(), topic)), tokens=500)
    cache.step()
    cache.wait_delivered()
    broker.pause()
    try:
        for _ in range(2000):
            cache.step()
        began = time.monotonic()
        assert cache.publisher.shutdown(1.0) > 0
        assert time.monotonic() - began < 3.0
    finally:
        broker.resume()
    assert sum(cache.publisher.stats().lost.values()) == 2000


PUBLISHES = """
import json, random, sys, time
from broker.cache_and_reader import Cache, open_publisher
from broker.kafka_streams import KVEventsConfig
mapping = json.loads(sys.argv[1])
cache = Cache(open_publisher(KVEventsConfig.from_mapping(mapping, environ={})))
print("up", flush=True)
steps = int(sys.argv[2])
while steps < 0 or cache.batches < steps:
    cache.step()
    time.sleep(0.002)
unsent = cache.publisher.shutdown(10.0)
print(json.dumps({"unsent": unsent, "holds": sorted(cache.contents())}), flush=True)
"""


def test_publishers_killed_at_random_moments_leave_no_stale_block(
    broker: KafkaBroker, topic: str
) -> None:
    """SIGKILL of the publisher: each life is told as restarted, and no block outlives its own."""
    mapping = mapping_of(broker.bootstrap(), topic)
    config = configure(broker.bootstrap(), topic)
    rhythm = random.Random(11)
    with Reading(config) as reading:
        for _ in range(KILLS):
            process = run_python(PUBLISHES, json.dumps(mapping), "-1")
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            time.sleep(rhythm.uniform(0.5, 1.5))
            process.kill()
            process.communicate()
        process = run_python(PUBLISHES, json.dumps(mapping), "200")
        told, _ = process.communicate(timeout=60)
        last = json.loads(told.splitlines()[-1])
        assert last["unsent"] == 0
        wait_until(
            lambda: reading.of(Batch) and reading.of(Batch)[-1].seq == 200, 30, "the last batch"
        )
        wait_until(lambda: reading.mirror.blocks(stream_of()) == frozenset(last["holds"]), 10)
        epochs = {epoch for epoch, _ in reading.seqs()}
        assert len(reading.of(Restarted)) == len(epochs) - 1
        assert len(epochs) > KILLS // 2
        assert not reading.of(Gap)


READS = """
import json, sys
from broker.kafka_streams import KVEventsConfig, stream_of
from kvevents_core import Mirror, subscribe
config = KVEventsConfig.from_mapping(json.loads(sys.argv[1]), environ={})
mirror = Mirror()
with subscribe(config) as subscription:
    for item in subscription:
        mirror.apply(item)
        print(getattr(item, "seq", -1), flush=True)
"""


def test_readers_killed_at_random_moments_disturb_nobody(broker: KafkaBroker, topic: str) -> None:
    """SIGKILL of readers: the publisher goes on, and the next reader's mirror equals the cache."""
    config = configure(broker.bootstrap(), topic)
    cache = Cache(open_publisher(config))
    rhythm = random.Random(13)

    def kills() -> None:
        for _ in range(KILLS):
            process = run_python(READS, json.dumps(mapping_of(broker.bootstrap(), topic)))
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rhythm.uniform(0.0, 0.5))
            process.kill()
            process.communicate()

    cache.during(1.0, kills)
    with Reading(config) as reading:
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.publisher.shutdown() == 0


def test_a_reader_goes_on_from_a_saved_position(broker: KafkaBroker, topic: str) -> None:
    """A reader that saved mirror and position reads each batch once over its two lives."""
    config = configure(broker.bootstrap(), topic)
    cache = Cache(open_publisher(config))
    for _ in range(300):
        cache.step()
    cache.wait_delivered()
    mirror, seqs = Mirror(), []
    with subscribe(config) as first:
        while len(seqs) < 100:
            for item in first.receive(5.0):
                mirror.apply(item)
                seqs.append(item.seq)
        position = json.loads(json.dumps(first.position()))
    for _ in range(300):
        cache.step()
    with Reading(config, start=position) as second:
        second.wait_level_with(cache)
        for item in second.items:
            mirror.apply(item)
        seqs += [seq for _, seq in second.seqs()]
        assert not second.of(Gap)
    assert seqs == list(range(cache.batches + 1))
    assert mirror.blocks(cache.publisher.stream) == cache.contents()
    cache.publisher.shutdown()
