"""The how-to of Kafka says what the settings and headers are."""

from __future__ import annotations

import re
from pathlib import Path

from kvevents_core import KVEventsConfig, Record, StreamId
from kvevents_kafka import KafkaSettings
from kvevents_kafka.records import HeaderEncoder

PAGE = (Path(__file__).parents[2] / "docs/how-to/kafka.md").read_text("utf-8")


def test_every_setting_is_on_the_page() -> None:
    """Each key of the backend, and no other, stands in the table of keys."""
    rows = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \|.*\|$", PAGE, re.MULTILINE)
    named = {key for row in rows for key in re.findall(r"`([a-z_]+)`", row)}
    in_text = set(re.findall(r"`(topic_[a-z_]+)`", PAGE))
    assert named | in_text == set(KafkaSettings.model_fields)


def test_the_defaults_on_the_page_are_the_programs() -> None:
    """What the table says of a default is what the model has."""
    fields = KafkaSettings.model_fields
    for key, default in re.findall(r"^\| `([a-z_]+)` \| `?([^|`]+)`? \|", PAGE, re.MULTILINE):
        value = fields[key].get_default(call_default_factory=True)
        shown = ",".join(value) if isinstance(value, tuple) else str(value)
        assert default.strip().lower() == shown.lower(), key


def test_every_header_is_on_the_page() -> None:
    """Readers in other languages find the names of all headers."""
    record = Record(StreamId("t", "m", "i", 0), 1, 0, b"")
    for name, _ in HeaderEncoder(record.stream, "e", "p").encode(record):
        assert f"`{name}`" in PAGE


def test_every_configuration_on_the_page_is_valid(tmp_path: Path) -> None:
    """Flags and keys alike; the CA file is one that exists here."""
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    environ = {"KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD": "x"}
    flags = re.findall(r"--kv-events-config '(.*?)'", PAGE, re.DOTALL)
    assert len(flags) == 3
    for flag in [*flags, *re.findall(r"from_cli\('(.*?)'\)", PAGE)]:
        secret = environ if "sasl" in flag else {}
        text = flag.replace("/etc/kafka/ca.pem", str(ca))
        assert KVEventsConfig.from_cli(text, environ=secret).publisher == "kafka"


def test_every_cause_on_the_page_is_one_the_program_gives() -> None:
    """The lines operators are told to look for are in the source."""
    folder = Path(__file__).parents[2] / "kvevents_kafka"
    source = "".join(path.read_text("utf-8") for path in folder.glob("*.py"))
    for line in (
        "login refused: ",
        (
            "the broker closed the connection (login refused, or security_protocol does not fit the"
            " listener?)"
        ),
        "TLS: ",
        "cannot be resolved",
        "connection refused",
        "not authorized for topic ",
        "does not exist, and the brokers do not create it",
    ):
        assert line in PAGE, line
        assert line in source, line
