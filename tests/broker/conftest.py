"""Fixtures of the real brokers, each from its own module."""

from broker.kafka_fixtures import (
    kafka_bootstrap,
    kafka_broker,
    kafka_installation,
    new_kafka_broker,
    topic,
)
from broker.nats_fixtures import nats_server, nats_servers, nats_url, tenant

__all__ = [
    "kafka_bootstrap",
    "kafka_broker",
    "kafka_installation",
    "nats_server",
    "nats_servers",
    "nats_url",
    "new_kafka_broker",
    "tenant",
    "topic",
]
