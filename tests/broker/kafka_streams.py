"""What the Kafka broker tests publish and read through kvevents_core, and how they look beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from broker.kafka_broker import USERS, KafkaBroker
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from senders import chosen_sender

from kvevents_core import KVEventsConfig, StreamId

SHORT_CALL_S = 0.25
"""Far above what a publish may take; the machine may be busy, but an outage would take longer."""


def configure(bootstrap: str, topic: str, **more: Any) -> KVEventsConfig:
    """Return a configuration of one instance that no environment disturbs, but for the sender."""
    return KVEventsConfig.from_mapping(
        mapping_of(bootstrap, topic, **more), environ=chosen_sender()
    )


def mapping_of(bootstrap: str, topic: str, **more: Any) -> dict[str, Any]:
    """Return what ``configure`` is made of, for another process."""
    return {
        "publisher": "kafka",
        "bootstrap_servers": bootstrap,
        "topic": topic,
        "tenant": "t0",
        "model": "org/model",
        "instance": "i0",
        "owner_check_s": 0.3,
        **more,
    }


def stream_of(rank: int = 0, instance: str = "i0") -> StreamId:
    """Return the stream that ``configure`` names."""
    return StreamId("t0", "org/model", instance, rank)


def login(broker: KafkaBroker, user: str, listener: str = "sasl_plaintext") -> dict[str, Any]:
    """Return the settings with which ``user`` logs in at ``listener``."""
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap(listener),
        "security_protocol": listener.upper(),
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_plain_username": user,
        "sasl_plain_password": USERS[user],
    }
    if listener.endswith("ssl"):
        settings["ssl_cafile"] = str(broker.ca_file)
    return settings


def administrator(bootstrap: str) -> AdminClient:
    """Return another library's admin client; it may do everything."""
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 10_000})


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create ``topic`` as an operator would."""
    new = NewTopic(
        topic, num_partitions=partitions, replication_factor=1, config=dict(config or {})
    )
    admin = administrator(bootstrap)  # its futures end with it
    _wait(admin.create_topics([new]))


def add_partitions(bootstrap: str, topic: str, total: int) -> None:
    """Give ``topic`` more partitions."""
    admin = administrator(bootstrap)
    _wait(admin.create_partitions([NewPartitions(topic, total)]))


def grant(
    bootstrap: str, user: str, topic_prefix: str, operations: Iterable[AclOperation]
) -> None:
    """Allow ``user`` what it may do with topics beginning with ``topic_prefix``."""
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            topic_prefix,
            ResourcePatternType.PREFIXED,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in set(operations)
    ]
    admin = administrator(bootstrap)
    _wait(admin.create_acls(bindings))


def _wait(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(timeout=15)


def run_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start ``code`` in a process of its own, which the test may kill."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        text=True,
    )
