"""Fixtures that need Kafka: import the names you use into a conftest or a test module."""

from __future__ import annotations

import gc
import itertools
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from broker.kafka_artifacts import KafkaUnavailableError, find_java, kafka_jars
from broker.kafka_broker import KafkaBroker

_numbers = itertools.count()

KAFKA_MARKS = [
    pytest.mark.broker("kafka"),
    # The first test of a run waits for Maven, which may have to try again.
    pytest.mark.timeout(600),
    # kafka-python 3.0.12 leaves the socket of a failed TLS handshake to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning"),
]
"""What each module of tests with kafka-python is marked with; it needs ``kafka_garbage`` too."""


@pytest.fixture(autouse=True)
def kafka_garbage() -> Iterator[None]:
    """Have what kafka-python leaves behind collected while its warnings are still expected."""
    yield
    gc.collect()


@dataclass(frozen=True)
class KafkaInstallation:
    """Where Java and Kafka's jars are."""

    java: str
    jars: Path


def unavailable(reason: str) -> None:
    """Skip with the reason, or fail where a broker is required."""
    if os.environ.get("KVEVENTS_REQUIRE_BROKERS") == "1":
        pytest.fail(f"KVEVENTS_REQUIRE_BROKERS=1, but no Kafka: {reason}")
    pytest.skip(f"no Kafka: {reason}")


@pytest.fixture(scope="session")
def kafka_installation() -> Iterator[KafkaInstallation]:
    """Apache Kafka's jars, fetched with Maven."""
    try:
        java = find_java()
        jars = kafka_jars()
        with jars as folder:
            yield KafkaInstallation(java, folder)
    except KafkaUnavailableError as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def kafka_broker(kafka_installation: KafkaInstallation) -> Iterator[KafkaBroker]:
    """One broker of our own for the whole run; tests must not stop it."""
    broker = KafkaBroker(kafka_installation.java, kafka_installation.jars)
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="session")
def kafka_bootstrap(request: pytest.FixtureRequest) -> str:
    """``host:port`` without security: the cluster of KVEVENTS_TEST_KAFKA or our own broker."""
    named = os.environ.get("KVEVENTS_TEST_KAFKA")
    if named:
        return named
    broker: KafkaBroker = request.getfixturevalue("kafka_broker")
    return broker.bootstrap()


@pytest.fixture
def new_kafka_broker(
    kafka_installation: KafkaInstallation,
) -> Iterator[Callable[[Mapping[str, str]], KafkaBroker]]:
    """A function that starts a broker of the test's own, which it may stop and kill."""
    brokers: list[KafkaBroker] = []

    def start(properties: Mapping[str, str]) -> KafkaBroker:
        broker = KafkaBroker(kafka_installation.java, kafka_installation.jars, properties)
        brokers.append(broker)
        broker.start()
        return broker

    yield start
    for broker in brokers:
        broker.close()


@pytest.fixture
def topic() -> str:
    """A topic name no other test uses, on whatever cluster."""
    return f"kvevents-test-{uuid.uuid4().hex[:8]}-{next(_numbers)}"
