"""What the administrators' part of Kafka is asked: create the topic, read its size limit."""

from __future__ import annotations

from typing import Any

from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from kvevents_kafka.client import Client
from kvevents_kafka.settings import KafkaSettings


def create_topic(client: Client, settings: KafkaSettings, topic: str) -> bool:
    """Create ``topic`` as the settings say; True if it did not exist.

    Raises:
        KafkaError: The brokers refuse, or do not answer.
    """
    wanted = {
        topic: {
            "num_partitions": settings.topic_partitions,
            "replication_factor": settings.topic_replication,
            # Events are differences: compaction would lose information.
            "configs": {
                "cleanup.policy": "delete",
                "retention.ms": str(settings.topic_retention_ms),
            },
        }
    }
    try:
        client.api.create_topics(wanted)
    except TopicAlreadyExistsError:
        return False
    return True


def size_limit(client: Client, topic: str) -> int | None:
    """Return the topic's ``max.message.bytes``; None if it cannot be read."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, ["max.message.bytes"])
    try:
        told = client.api.describe_configs([resource], config_filter="all")
        return int(_value(told["topic"][topic]["max.message.bytes"]))
    except (KafkaError, LookupError, TypeError, ValueError):
        return None


def _value(config: Any) -> Any:
    return config["value"] if isinstance(config, dict) else config
