"""The broker that the Kafka tests run against is the real thing and does what they rely on."""

from __future__ import annotations

import pytest
from broker.kafka_broker import USERS, KafkaBroker
from broker.kafka_fixtures import (
    KAFKA_MARKS,
    kafka_broker,
    kafka_garbage,
    kafka_installation,
    new_kafka_broker,
    topic,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

pytestmark = KAFKA_MARKS
__all__ = ["kafka_broker", "kafka_garbage", "kafka_installation", "new_kafka_broker", "topic"]


def options(broker: KafkaBroker, listener: str) -> dict[str, object]:
    found: dict[str, object] = {"bootstrap_servers": broker.bootstrap(listener)}
    found["security_protocol"] = listener.upper()
    if listener.endswith("ssl"):
        found["ssl_cafile"] = str(broker.ca_file)
    if listener.startswith("sasl"):
        found |= {"sasl_plain_username": "alice", "sasl_plain_password": USERS["alice"]}
    return found


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("plaintext", None),
        ("ssl", None),
        ("sasl_plaintext", "PLAIN"),
        ("sasl_plaintext", "SCRAM-SHA-256"),
        ("sasl_ssl", "SCRAM-SHA-512"),
    ],
)
def test_every_listener_answers(
    kafka_broker: KafkaBroker, listener: str, mechanism: str | None
) -> None:
    """A client gets through each listener and finds the one broker."""
    admin = KafkaAdminClient(
        **options(kafka_broker, listener), sasl_mechanism=mechanism, bootstrap_timeout_ms=10_000
    )
    try:
        assert len(admin.describe_cluster()["brokers"]) == 1
    finally:
        admin.close()


def test_data_and_ports_survive_a_kill(new_kafka_broker, topic: str) -> None:
    """What was acknowledged before SIGKILL is read after the restart, at the same address."""
    broker = new_kafka_broker({})
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap(), bootstrap_timeout_ms=10_000)
    producer.send(topic, b"kept").get(timeout=10)
    producer.close(timeout=5)
    broker.kill()
    assert not broker.is_running
    broker.start()
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap(), bootstrap_timeout_ms=10_000)
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    records = consumer.poll(timeout_ms=10_000)
    consumer.close()
    assert [record.value for record in records[partition]] == [b"kept"]
    broker.close()
    assert not broker.folder.exists()
