"""Injected faults, on librdkafka's mock cluster: what is lost is counted, the rest is in order.

The observer is librdkafka's consumer. The mock has no CreateTopics, no ListOffsets worth the name
and no authorizer, so these tests look at the sending end only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_mock import PRODUCE, MockCluster
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from waiting import wait_until

from kvevents_core import StreamId
from kvevents_core.testing import SinkDriver
from kvevents_kafka import KafkaBackend, KafkaSettings

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS
STREAM = StreamId("t", "m", "i", 0)
TOPIC = "kv-events"
# Kafka protocol, "Error Codes".
CORRUPT_MESSAGE, NOT_LEADER, REQUEST_TIMED_OUT, MESSAGE_TOO_LARGE = 2, 6, 7, 10
NOT_ENOUGH_REPLICAS, TOPIC_AUTHORIZATION_FAILED, INVALID_TIMESTAMP = 19, 29, 32
POLICY_VIOLATION, OUT_OF_ORDER_SEQUENCE, INVALID_RECORD = 44, 45, 87
CLOSE_CONNECTION = -195


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    """Three brokers with the topic."""
    with MockCluster(3) as mock:
        mock.create_topic(TOPIC, 1, 3)
        mock.set_leader(TOPIC, 0, 1)
        yield mock


@pytest.fixture
def driver(cluster: MockCluster) -> Iterator[SinkDriver]:
    """A sink on it, ready, with one record confirmed."""
    yield from open_driver(cluster, linger_ms=0)


@pytest.fixture
def gathering_driver(cluster: MockCluster) -> Iterator[SinkDriver]:
    """The same, waiting long enough to gather what is sent at once into one group."""
    yield from open_driver(cluster, linger_ms=300)


def open_driver(
    cluster: MockCluster, linger_ms: int, delivery_timeout_ms: int = 60_000
) -> Iterator[SinkDriver]:
    settings = KafkaSettings(
        bootstrap_servers=cluster.bootstrap,
        topic=TOPIC,
        linger_ms=linger_ms,
        request_timeout_ms=2_000,
        delivery_timeout_ms=delivery_timeout_ms,
        kafka_options={"api_version": [2, 3], "retry_backoff_ms": 20},
    )
    sink = KafkaBackend().open_sink(settings, STREAM)
    driver = SinkDriver(sink, STREAM, confirms=True, patience_s=25.0)
    driver.send([b"first"])
    driver.settle()
    yield driver
    sink.close(2.0)


def log_of(cluster: MockCluster, last_seq: int) -> list[tuple[int, bytes]]:
    """Return (seq, payload) of the partition's records in its order, up to ``last_seq``."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "observer",
            "enable.auto.commit": False,
        }
    )
    found: list[tuple[int, bytes]] = []
    try:
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])

        def complete() -> bool:
            for message in consumer.consume(500, 0.1):
                if not message.error():
                    headers = dict(message.headers() or [])
                    found.append((int(headers["kvevents-seq"]), message.value() or b""))
            return any(seq == last_seq for seq, _ in found)

        wait_until(complete, 20, f"seq {last_seq} in the log")
    finally:
        consumer.close()
    return found


def assert_in_order(log: list[tuple[int, bytes]], lost: set[int], last_seq: int) -> None:
    """Every record that is not lost, for the first time in order; repeats only repeat."""
    first_times: list[int] = []
    for seq, _ in log:
        if seq not in first_times:
            first_times.append(seq)
    assert first_times == [seq for seq in range(last_seq + 1) if seq not in lost]


@pytest.mark.parametrize(
    "errors",
    [
        (NOT_LEADER,),
        (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS),
        (CLOSE_CONNECTION,),
        (CLOSE_CONNECTION, NOT_LEADER, CLOSE_CONNECTION),
    ],
    ids=str,
)
def test_passing_faults_lose_nothing(
    cluster: MockCluster, driver: SinkDriver, errors: tuple[int, ...]
) -> None:
    """Retriable errors and closed connections: all arrives, in order, and nothing is rejected."""
    cluster.fail_next(PRODUCE, *errors)
    driver.send([b"%d" % number for number in range(300)])
    driver.settle()
    assert driver.rejected == {}
    assert_in_order(log_of(cluster, 300), set(), 300)


def test_a_leader_that_moves_loses_nothing(cluster: MockCluster, driver: SinkDriver) -> None:
    """The partition's leader moves twice under load: all arrives in order."""
    for leader in (2, 3):
        driver.queue([b"x" * 100] * 200)
        driver.run_for(0.05)
        cluster.set_leader(TOPIC, 0, leader)
    driver.settle()
    last = driver.next_seq - 1
    assert_in_order(log_of(cluster, last), set(), last)


def test_a_leader_that_dies_loses_nothing(cluster: MockCluster, driver: SinkDriver) -> None:
    """The leader goes down under load and another takes over: all arrives in order."""
    driver.queue([b"x" * 100] * 300)
    driver.step()
    cluster.set_down(1)
    cluster.set_leader(TOPIC, 0, 2)
    driver.settle()
    cluster.set_up(1)
    assert_in_order(log_of(cluster, 300), set(), 300)


def test_a_client_that_forgets_its_records_is_made_anew(
    driver: SinkDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connected, content, and silent: long before ``delivery_timeout_ms`` all is sent again."""
    monkeypatch.setattr("kvevents_kafka.link.FORGOTTEN_S", 0.5)
    sink: Any = driver.sink
    # As after an error between muting a partition and sending (kafka-python 3.0.12, Sender).
    monkeypatch.setattr(sink._producer.api._sender, "_send_producer_data", lambda *_, **__: 50)
    sent = driver.queue([b"x" * 100] * 20)
    driver.run_until(lambda: sink.describe()["rebuilt"] == 1, "the client is made anew")
    driver.settle()
    assert {record.seq for record in sent} <= driver.delivered


def test_a_slow_broker_is_only_slow(cluster: MockCluster, driver: SinkDriver) -> None:
    """Answers that take 1 s: calls do not wait for them, and all is confirmed."""
    cluster.set_round_trip(1, 1_000)
    driver.queue([b"x" * 100] * 200)
    longest_s = 0.0
    while not driver.is_settled():
        began = time.monotonic()
        driver.step()
        longest_s = max(longest_s, time.monotonic() - began)
        time.sleep(0.002)
    assert longest_s < 0.7  # some 15 ms of work, on however busy a machine
    cluster.set_round_trip(1, 0)
    assert_in_order(log_of(cluster, 200), set(), 200)


def test_a_record_too_large_costs_itself_only(cluster: MockCluster, driver: SinkDriver) -> None:
    """The broker refuses one record's size: that one is rejected, those behind it arrive."""
    cluster.fail_next(PRODUCE, MESSAGE_TOO_LARGE)
    driver.send([b"too large"])
    driver.settle()  # or it would be one of a group
    driver.send([b"behind"] * 100)
    driver.settle()
    assert driver.rejected == {1: "too_large"}
    assert_in_order(log_of(cluster, 101), {1}, 101)


def test_a_group_too_large_is_divided(cluster: MockCluster, gathering_driver: SinkDriver) -> None:
    """The broker refuses the size of a group of records: it is divided, and nothing is lost."""
    driver = gathering_driver
    cluster.fail_next(PRODUCE, MESSAGE_TOO_LARGE)
    driver.queue([b"one of many"] * 100)
    driver.settle()
    assert driver.rejected == {}
    assert_in_order(log_of(cluster, 100), set(), 100)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (INVALID_RECORD, "invalid_record"),
        (INVALID_TIMESTAMP, "invalid_timestamp"),
        (POLICY_VIOLATION, "policy_violation"),
    ],
)
def test_a_refused_record_is_found_among_many(
    cluster: MockCluster, driver: SinkDriver, error: int, reason: str
) -> None:
    """A group refused for one of its records: they are tried one by one, and only it is lost."""
    sent = driver.queue([b"%d" % number for number in range(20)])
    cluster.fail_next(PRODUCE, error, error)  # the group, then its first record alone
    driver.settle()
    assert driver.rejected == {sent[0].seq: reason}
    driver.send([b"next"])
    driver.settle()
    last = driver.next_seq - 1
    assert_in_order(log_of(cluster, last), {sent[0].seq}, last)


@pytest.mark.parametrize("error", [TOPIC_AUTHORIZATION_FAILED, OUT_OF_ORDER_SEQUENCE])
def test_errors_that_lie_in_no_record_lose_nothing(
    cluster: MockCluster, driver: SinkDriver, error: int
) -> None:
    """A permission that is missing for a while, a broker that forgot: everything is sent again."""
    cluster.fail_next(PRODUCE, error)
    driver.send([b"%d" % number for number in range(100)])
    driver.settle()
    assert driver.rejected == {}
    assert driver.sink.status().generation > 0
    assert_in_order(log_of(cluster, 100), set(), 100)
    assert driver.sink.status().error is None


def test_a_missing_permission_is_named_meanwhile(cluster: MockCluster, driver: SinkDriver) -> None:
    """While the broker says no, the status says why."""
    cluster.fail_next(PRODUCE, *[TOPIC_AUTHORIZATION_FAILED] * 3)
    driver.queue([b"x"])
    told: list[Any] = []

    def named() -> bool:
        told.append(driver.sink.status().error)
        return "not authorized to write to topic 'kv-events'" in str(told[-1])

    driver.run_until(named, "the missing permission is named")
    driver.settle()
