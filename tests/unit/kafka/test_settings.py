"""Settings of the Kafka backend: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvevents_core import ConfigError, KVEventsConfig, StreamId
from kvevents_kafka.settings import KafkaSettings

STREAM = StreamId("acme", "Qwen/Qwen3-0.6B", "pod-0", 3)
LOGIN = {"sasl_plain_username": "u", "sasl_plain_password": "p"}


def refusal(**keys: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        KafkaSettings(**keys)
    return str(refused.value)


def test_the_publisher_alone_means_localhost() -> None:
    """``{"publisher": "kafka"}`` alone: localhost:9092, topic kv-events, all replicas, lz4."""
    settings = KVEventsConfig.from_mapping({"publisher": "kafka"}, environ={}).backend_settings
    assert isinstance(settings, KafkaSettings)
    assert settings.bootstrap_servers == ("localhost:9092",)
    assert settings.topic == "kv-events"
    assert (settings.acks, settings.compression_type) == ("all", "lz4")
    assert settings.address_of(STREAM) == "topic kv-events, key acme/Qwen_2FQwen3-0_2E6B/pod-0/3"


@pytest.mark.parametrize(
    "given",
    ["a:1, b:2", ["a:1", "b:2"], ("a:1", "b:2")],
    ids=str,
)
def test_servers_are_a_list_or_comma_separated(given: Any) -> None:
    """Addresses come as JSON's list or as a line of an environment variable."""
    assert KafkaSettings(bootstrap_servers=given).bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize("server", ["h", "h:9092", "10.0.0.1:9092", "[fd00::1]:9092", "[::1]"])
def test_addresses_that_are_accepted(server: str) -> None:
    """Host names and addresses, with or without a port."""
    assert KafkaSettings(bootstrap_servers=[server]).bootstrap_servers == (server,)


@pytest.mark.parametrize(
    "server", ["kafka://h:1", "h:0", "h:65536", "user:pass@h:1", "h:1/x", "h h:1", "::1:9092", ""]
)
def test_addresses_that_are_refused(server: str) -> None:
    """Schemes, logins, paths and impossible ports; a login is not quoted."""
    text = refusal(bootstrap_servers=[server])
    assert "bootstrap_servers" in text
    assert "pass@" not in text


@pytest.mark.parametrize("topic", ["kv-events", "kv-events.{tenant}.{model}", "a_B.9-{tenant}"])
def test_topics_that_are_accepted(topic: str) -> None:
    """Names and templates of tenant and model."""
    assert KafkaSettings(topic=topic).topic == topic


@pytest.mark.parametrize(
    "topic", ["", ".", "..", "a b", "a/b", "x.{rank}", "{instance}", "{a", "é"]
)
def test_topics_that_are_refused(topic: str) -> None:
    """What Kafka refuses, and fields that would make a topic per stream."""
    assert "topic" in refusal(topic=topic)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"sasl_plain_username": "u"}, "belong together"),
        ({"security_protocol": "SASL_SSL"}, "KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD"),
        (LOGIN, "security_protocol SASL_SSL"),
        ({"ssl_cafile": "/no/such/file", "security_protocol": "SSL"}, "does not exist"),
        ({"kafka_options": {"acks": 0}}, "key of its own"),
        ({"kafka_options": {"group_id": "g"}}, "order of a stream"),
        ({"kafka_options": {"enable_idempotence": False}}, "order of a stream"),
        ({"kafka_options": {"no_such": 1}}, "no option 'no_such'"),
        ({"acks": 2}, "acks"),
        ({"compression_type": "rar"}, "compression_type"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"delivery_timeout_ms": 5000}, "linger_ms + request_timeout_ms"),
        ({"no_such_key": 1}, "no_such_key"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_by_name(keys: dict[str, Any], says: str) -> None:
    """Each refusal says which key is wrong and what to do."""
    assert says in refusal(**keys)


def test_a_certificate_needs_its_key(tmp_path: Path) -> None:
    """ssl_certfile without ssl_keyfile, and a CA without TLS, are refused."""
    file = tmp_path / "some.pem"
    file.write_text("x")
    assert "belong together" in refusal(ssl_certfile=str(file), security_protocol="SSL")
    assert "security_protocol SSL" in refusal(ssl_cafile=str(file))


@pytest.mark.parametrize(
    ("given", "kept"), [("all", "all"), (-1, "all"), ("-1", "all"), (1, "1"), ("0", "0"), (0, "0")]
)
def test_acks_in_every_spelling(given: Any, kept: str) -> None:
    """Kafka's spellings of acks; only ``all`` is idempotent."""
    settings = KafkaSettings(acks=given)
    assert settings.acks == kept
    assert settings.is_idempotent == (kept == "all")


def test_secrets_are_never_shown() -> None:
    """Neither text nor refusal shows a password."""
    keys = {"security_protocol": "SASL_SSL", "sasl_plain_username": "u"}
    settings = KafkaSettings(**keys, sasl_plain_password="hunter2", ssl_password="hunter3")
    shown = f"{settings!r} {settings} {settings.model_dump()}"
    shown += refusal(**keys, sasl_plain_password="hunter2", topic="a b")
    assert "hunter" not in shown


def test_the_password_comes_from_the_environment() -> None:
    """A password need not be on a command line."""
    config = KVEventsConfig.from_mapping(
        {"publisher": "kafka", "security_protocol": "SASL_SSL", "sasl_plain_username": "u"},
        environ={"KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD": "hunter2"},
    )
    settings = config.backend_settings
    assert isinstance(settings, KafkaSettings)
    assert settings.sasl_plain_password is not None
    assert settings.sasl_plain_password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config)


def test_a_missing_codec_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec whose library is not installed is refused with the command that installs it."""
    monkeypatch.setattr("kvevents_kafka.settings.find_spec", lambda name: name != "lz4" or None)
    text = refusal()
    assert "pip install 'kafka-python[lz4]'" in text
    assert "kvevents[kafka]" in text


def test_a_topic_too_long_is_refused_on_opening() -> None:
    """A template whose expansion Kafka does not allow is a configuration error."""
    from kvevents_kafka import KafkaBackend

    stream = StreamId("t", "m/" * 80, "i", 0)
    with pytest.raises(ConfigError, match="249") as refused:
        KafkaBackend().open_sink(KafkaSettings(topic="kv.{model}"), stream)
    assert refused.value.key == "topic"
