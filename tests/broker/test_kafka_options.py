"""Every way to log in, to confirm and to compress carries the same stream."""

from __future__ import annotations

from typing import Any

import pytest
from broker.cache_and_reader import Cache, Reading, open_publisher
from broker.kafka_broker import KafkaBroker
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import configure, grant, login
from confluent_kafka.admin import AclOperation
from waiting import wait_until

from kvevents_core import ConfigError, KVEventsConfig, subscribe

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS
EVERYTHING = (
    AclOperation.WRITE,
    AclOperation.READ,
    AclOperation.CREATE,
    AclOperation.DESCRIBE,
    AclOperation.DESCRIBE_CONFIGS,
)


def assert_carries_a_stream(config: KVEventsConfig, batches: int = 300) -> None:
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        for _ in range(batches):
            cache.step()
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.publisher.shutdown() == 0


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("sasl_plaintext", "PLAIN"),
        ("sasl_plaintext", "SCRAM-SHA-256"),
        ("sasl_ssl", "PLAIN"),
        ("sasl_ssl", "SCRAM-SHA-512"),
    ],
)
def test_every_login_carries_a_stream(
    kafka_broker: KafkaBroker, topic: str, listener: str, mechanism: str
) -> None:
    """PLAIN and SCRAM, with and without TLS, under ACLs of the topic alone."""
    grant(kafka_broker.bootstrap(), "alice", topic, EVERYTHING)
    settings = login(kafka_broker, "alice", listener) | {"sasl_mechanism": mechanism}
    assert_carries_a_stream(configure("", topic, **settings))


def test_tls_carries_a_stream(kafka_broker: KafkaBroker, topic: str) -> None:
    """TLS without a login, the broker's name checked."""
    settings: dict[str, Any] = {
        "security_protocol": "SSL",
        "ssl_cafile": str(kafka_broker.ca_file),
    }
    assert_carries_a_stream(configure(kafka_broker.bootstrap("ssl"), topic, **settings))


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_every_codec_and_confirmation_carries_a_stream(
    kafka_bootstrap: str, topic: str, acks: str, codec: str
) -> None:
    """In order and complete while nothing fails, whatever is asked of the brokers."""
    config = configure(kafka_bootstrap, topic, acks=acks, compression_type=codec)
    assert_carries_a_stream(config)


def test_other_options_reach_the_client(kafka_bootstrap: str, topic: str) -> None:
    """``kafka_options`` go through."""
    options = {"send_buffer_bytes": 65536, "metrics_enabled": True, "api_version": [3, 9]}
    config = configure(kafka_bootstrap, topic, kafka_options=options)
    assert_carries_a_stream(config, batches=10)


def test_an_option_the_client_refuses_is_named(kafka_bootstrap: str, topic: str) -> None:
    """A value that only the client can judge is a trouble for engines, an error for readers."""
    config = configure(kafka_bootstrap, topic, kafka_options={"client_dns_lookup": "by pigeon"})
    publisher = open_publisher(config)
    wait_until(lambda: "by pigeon" in str(publisher.describe()["error"]), 10, "the refused value")
    publisher.shutdown()
    with pytest.raises(ConfigError, match="by pigeon") as refused:
        subscribe(config)
    assert refused.value.key == "kafka_options"
