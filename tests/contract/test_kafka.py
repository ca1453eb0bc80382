"""The Kafka backend keeps every promise of the contract that it claims, on a real broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from broker.kafka_broker import KafkaBroker
from broker.kafka_fixtures import (
    KAFKA_MARKS,
    KafkaInstallation,
    kafka_garbage,
    kafka_installation,
)
from contract.kafka_place import BROKER_LIMIT_BYTES, KafkaPlace

from kvevents_core.testing import BackendConformance, TcpRelay
from kvevents_kafka import KafkaBackend

__all__ = ["kafka_garbage", "kafka_installation"]

pytest_plugins = ["kvevents_core.testing.plugin"]
pytestmark = KAFKA_MARKS


@pytest.fixture(scope="module")
def relayed(kafka_installation: KafkaInstallation) -> Iterator[tuple[KafkaBroker, TcpRelay]]:
    """A broker of this module's own, and the relay through which its clients come."""
    broker = KafkaBroker(
        kafka_installation.java,
        kafka_installation.jars,
        {"message.max.bytes": str(BROKER_LIMIT_BYTES)},
    )
    relay = TcpRelay("127.0.0.1", broker.ports["plaintext"])
    try:
        broker.advertise(relay.port)
        broker.start()
        yield broker, relay
    finally:
        relay.close()
        broker.close()


class TestKafka(BackendConformance):
    """A topic per test on one broker."""

    backend = KafkaBackend()

    @pytest.fixture
    def place(self, relayed: tuple[KafkaBroker, TcpRelay]) -> KafkaPlace:
        """A topic of the test's own."""
        return KafkaPlace(*relayed)
