"""What is wrong with Kafka is told by name in one line, and the engine runs on.

Wrong password, wrong CA, no ACL, no topic, no such host: the log, ``describe()`` and
``kvevents check --connect`` each name the cause; when the operator has put it right, what fitted the
outbox arrives.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from broker.cache_and_reader import Cache, LogRecords, Reading, open_publisher
from broker.kafka_broker import KafkaBroker
from broker.kafka_fixtures import KAFKA_MARKS, KafkaInstallation, kafka_garbage
from broker.kafka_streams import SHORT_CALL_S, configure, create_topic, grant, login, mapping_of
from confluent_kafka.admin import AclOperation
from waiting import wait_until

from kvevents_core import subscribe

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS
WRITES = (AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE)
READS = (AclOperation.READ, AclOperation.DESCRIBE)


def trouble_of(case: str, broker: KafkaBroker, folder: Path) -> tuple[dict[str, Any], str]:
    """Return the settings of a case, and what its cause must say."""
    other_ca = folder / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(other_ca))
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "password, PLAIN": (
            login(broker, "alice")
            | {"sasl_mechanism": "PLAIN", "sasl_plain_password": "hunter2-wrong"},
            "login refused",
        ),
        "password, SCRAM over TLS": (
            login(broker, "alice", "sasl_ssl") | {"sasl_plain_password": "hunter2-wrong"},
            "login refused",
        ),
        "CA": (
            {
                "bootstrap_servers": broker.bootstrap("ssl"),
                "security_protocol": "SSL",
                "ssl_cafile": str(other_ca),
            },
            "certificate verify failed",
        ),
        "ACL": (login(broker, "nobody"), "not authorized for topic"),
        "host": ({"bootstrap_servers": "no-such-host.invalid:9092"}, "cannot be resolved"),
        "port": ({"bootstrap_servers": "127.0.0.1:1"}, "connection refused"),
        "plaintext at a TLS listener": (
            {"bootstrap_servers": broker.bootstrap("ssl")},
            "security_protocol",
        ),
    }
    return cases[case]


CASES = (
    "password, PLAIN",
    "password, SCRAM over TLS",
    "CA",
    "ACL",
    "host",
    "port",
    "plaintext at a TLS listener",
)


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_named(
    case: str, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """The log, describe(), check --connect and the reader name the cause, without the password."""
    settings, cause = trouble_of(case, kafka_broker, tmp_path)
    config = configure("unused:1", topic, **settings)
    with LogRecords() as log:
        cache = Cache(open_publisher(config))
        for _ in range(20):
            cache.step()
        wait_until(lambda: cause in str(cache.publisher.describe()["error"]), 15, cause)
        wait_until(lambda: any(cause in text for text in log.texts), 5, f"{cause} in the log")
        error = str(cache.publisher.describe()["error"])
        assert "\n" not in error
        assert cache.longest_call_s < SHORT_CALL_S
        with subscribe(config) as subscription:
            wait_until(
                lambda: (
                    subscription.receive(0.2) or cause in str(subscription.stats().last_trouble)
                ),
                15,
                f"{cause} at the reader",
            )
        assert cache.publisher.shutdown(0.5) == 20
    told = f"{log.texts} {cache.publisher.describe()} {config!r}"
    assert "hunter2" not in told
    assert "nobody-secret" not in told


@pytest.mark.parametrize("case", ["password, PLAIN", "CA", "ACL", "host"])
def test_check_connect_names_the_cause(
    case: str, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """``kvevents check --connect`` fails and prints the cause in one line."""
    settings, cause = trouble_of(case, kafka_broker, tmp_path)
    done = check(mapping_of("unused:1", topic, **settings), "3")
    assert done.returncode == 1, done.stderr
    reached = json.loads(done.stdout)["reached"]
    assert cause in reached["detail"], reached
    assert "hunter2" not in done.stdout + done.stderr


def test_check_connect_reaches_a_good_cluster(kafka_bootstrap: str, topic: str) -> None:
    """With nothing wrong the same command succeeds."""
    done = check(mapping_of(kafka_bootstrap, topic), "20")
    assert done.returncode == 0, done.stdout + done.stderr


def check(mapping: dict[str, Any], timeout_s: str) -> subprocess.CompletedProcess[str]:
    """Run ``kvevents check --connect``."""
    command = [sys.executable, "-W", "ignore", "-m", "kvevents_core.cli", "check", "--connect"]
    command += ["--json", "--timeout", timeout_s, json.dumps(mapping)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def strict(kafka_installation: KafkaInstallation) -> Iterator[KafkaBroker]:
    """A broker that creates no topic by itself."""
    broker = KafkaBroker(
        kafka_installation.java,
        kafka_installation.jars,
        {"auto.create.topics.enable": "false"},
    )
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


def test_a_missing_topic_is_named_and_used_once_it_exists(strict: KafkaBroker, topic: str) -> None:
    """No such topic: told by name; when somebody creates it, all that waited arrives."""
    config = configure(strict.bootstrap(), topic)
    cache = Cache(open_publisher(config))
    for _ in range(50):
        cache.step()
    with Reading(config) as reading:
        missing = f"topic {topic!r} does not exist"
        wait_until(lambda: missing in str(cache.publisher.describe()["error"]), 15, missing)
        wait_until(lambda: missing in str(reading.stats.last_trouble), 15, f"{missing} (reader)")
        create_topic(strict.bootstrap(), topic, partitions=3)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.publisher.describe()["error"] is None
    cache.publisher.shutdown()


def test_check_connect_names_a_missing_topic(strict: KafkaBroker, topic: str) -> None:
    """The same cause, before any engine starts."""
    done = check(mapping_of(strict.bootstrap(), topic), "10")
    assert done.returncode == 1
    assert f"topic '{topic}' does not exist" in done.stdout + done.stderr


def test_create_topics_makes_the_topic_as_told(strict: KafkaBroker, topic: str) -> None:
    """``create_topics``: partitions, retention and deletion as the settings say."""
    config = configure(
        strict.bootstrap(),
        topic,
        create_topics=True,
        topic_partitions=5,
        topic_retention_ms=60_000,
    )
    cache = Cache(open_publisher(config))
    cache.step()
    cache.wait_delivered()
    assert cache.publisher.describe()["partitions"] == 5
    cache.publisher.shutdown()
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=strict.bootstrap(), bootstrap_timeout_ms=10_000)
    try:
        told = admin.describe_configs([_topic_resource(topic)], config_filter="all")["topic"][
            topic
        ]
    finally:
        admin.close()
    assert told["retention.ms"]["value"] == "60000"
    assert told["cleanup.policy"]["value"] == "delete"


def _topic_resource(topic: str) -> Any:
    from kafka.admin import ConfigResource, ConfigResourceType

    return ConfigResource(ConfigResourceType.TOPIC, topic, ["retention.ms", "cleanup.policy"])


def test_tenants_are_kept_apart_by_acls(kafka_broker: KafkaBroker, topic: str) -> None:
    """Tenant A's login can neither read nor write tenant B's topic, and the errors say so."""
    bootstrap = kafka_broker.bootstrap()
    template = f"{topic}.{{tenant}}.{{model}}"
    for user in ("alice", "bob"):
        grant(bootstrap, user, f"{topic}.{user}.", (*WRITES, *READS))

    def config_of(user: str, tenant: str) -> Any:
        return configure("", template, **login(kafka_broker, user), tenant=tenant)

    theirs = Cache(open_publisher(config_of("bob", "bob")))
    theirs.step()
    theirs.wait_delivered()
    intruder = Cache(open_publisher(config_of("alice", "bob")))
    for _ in range(10):
        intruder.step()
    denied = f"not authorized for topic '{topic}.bob.org_2Fmodel'"
    wait_until(lambda: denied in str(intruder.publisher.describe()["error"]), 15, denied)
    with Reading(config_of("alice", "bob")) as spy:
        wait_until(lambda: denied in str(spy.stats.last_trouble), 15, f"{denied} (reader)")
        assert spy.items == []
    assert intruder.publisher.shutdown(0.5) == 10
    with Reading(config_of("bob", "bob")) as reading:
        reading.wait_level_with(theirs)
        reading.assert_complete(theirs)
    ours = Cache(open_publisher(config_of("alice", "alice")))
    with Reading(config_of("alice", "alice")) as reading:
        ours.step()
        reading.wait_level_with(ours)
        reading.assert_complete(ours)
    for cache in (theirs, ours):
        cache.publisher.shutdown()


def test_a_writer_without_read_permission_publishes_with_a_warning(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    """Without READ the epoch comes from the clock; that is said once, and everything arrives."""
    grant(kafka_broker.bootstrap(), "bob", topic, WRITES)
    config = configure("", topic, **login(kafka_broker, "bob"))
    with LogRecords() as log:
        first = Cache(open_publisher(config))
        first.step()
        first.wait_delivered()
        first.publisher.shutdown()
        cache = Cache(open_publisher(config))
        for _ in range(20):
            cache.step()
        cache.wait_delivered()
    warnings = [text for text in log.texts if "no permission to read" in text]
    assert len(warnings) in (1, 2), log.texts  # once for each publisher that found a log
    with Reading(configure(kafka_broker.bootstrap(), topic)) as reading:
        reading.wait_level_with(cache)
        assert reading.mirror.blocks(cache.publisher.stream) == cache.contents()
    cache.publisher.shutdown()


def test_a_permission_granted_later_ends_the_trouble(
    kafka_broker: KafkaBroker, topic: str
) -> None:
    """A missing WRITE is an outage, not a loss: once granted, all that waited arrives."""
    bootstrap = kafka_broker.bootstrap()
    create_topic(bootstrap, topic)
    grant(bootstrap, "nobody", topic, READS)
    config = configure("", topic, **login(kafka_broker, "nobody"))
    cache = Cache(open_publisher(config))
    for _ in range(50):
        cache.step()
    denied = "not authorized"
    wait_until(lambda: denied in str(cache.publisher.describe()["error"]), 15, denied)
    grant(bootstrap, "nobody", topic, WRITES)
    with Reading(config) as reading:
        reading.wait_level_with(cache, 30)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


@pytest.mark.parametrize("was_there", [False, True])
def test_trouble_is_told_with_the_clients_log_switched_off(
    new_kafka_broker: Callable[[dict[str, str]], KafkaBroker], topic: str, was_there: bool
) -> None:
    """Where the application silences kafka-python's log, an outage still shows."""
    log = logging.getLogger("kafka")
    level = log.level
    log.setLevel(logging.CRITICAL)
    broker = new_kafka_broker({}) if was_there else None
    bootstrap = broker.bootstrap() if broker else "127.0.0.1:1"
    cache = Cache(open_publisher(configure(bootstrap, topic)))
    try:
        cache.step()
        if broker is not None:
            cache.wait_delivered()
            broker.kill()
            cache.step()
        wait_until(lambda: cache.publisher.describe()["error"], 15, "an error")
        assert not cache.publisher.describe()["connected"]
        assert "broker" in cache.publisher.describe()["error"]
        if broker is not None:
            broker.start()
            cache.wait_delivered()
            wait_until(lambda: cache.publisher.describe()["connected"], 10, "connected again")
            assert cache.publisher.describe()["error"] is None
    finally:
        log.setLevel(level)
        cache.publisher.shutdown(0.5)
