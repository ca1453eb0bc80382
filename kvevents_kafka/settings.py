"""Settings of the ``kafka`` backend. Never connects.

Names are Kafka's own wherever Kafka has one. Whatever is wrong for certain (a topic name that Kafka
refuses, a login without its password, a missing package) is refused here, so that the engine does
not start with it.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from kvevents_core import BackendSettings, StreamId
from kvevents_core.naming import expand_for, template_fields

_TOPIC_FIELDS: Final = frozenset({"tenant", "model"})
_LEGAL_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]*")
"""Kafka 4.3, ``org.apache.kafka.common.internals.Topic``; the length is checked when expanded."""
_CODEC_MODULES: Final = {"lz4": "lz4", "zstd": "zstandard", "snappy": "snappy"}
OWN_OPTIONS: Final = frozenset(
    {
        "bootstrap_servers",
        "client_id",
        "acks",
        "compression_type",
        "linger_ms",
        "batch_size",
        "max_request_size",
        "delivery_timeout_ms",
        "request_timeout_ms",
        "security_protocol",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_check_hostname",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
    }
)
"""Options of kafka-python that have a key of ours."""
FIXED_OPTIONS: Final = frozenset(
    {
        "allow_auto_create_topics",
        "auto_offset_reset",
        "enable_auto_commit",
        "enable_idempotence",
        "group_id",
        "kafka_client",
        "key_deserializer",
        "key_serializer",
        "max_in_flight_requests_per_connection",
        "partitioner",
        "retries",
        "transactional_id",
        "value_deserializer",
        "value_serializer",
    }
)
"""Options of kafka-python on which order and completeness of a stream rest."""


class KafkaSettings(BackendSettings):
    """What ``{"publisher": "kafka"}`` may say beside core's own keys."""

    bootstrap_servers: Annotated[tuple[str, ...], NoDecode] = ("localhost:9092",)
    """``host:port`` of some brokers: a list or comma-separated; the others are learnt from them."""
    topic: str = "kv-events"
    """Topic, or a template of it: may hold ``{tenant}`` and ``{model}``; names are escaped."""
    client_id: str = ""
    """Name in the brokers' logs and quotas; empty: ``kvevents-`` and the instance and rank."""

    acks: Literal["all", "1", "0"] = "all"
    """``all``: confirmed by every in-sync replica, idempotent. Less is faster and may lose."""
    compression_type: Literal["lz4", "zstd", "snappy", "gzip", "none"] = "lz4"
    linger_ms: int = Field(default=5, ge=0, le=60_000)
    """How long a group of records waits for more of them."""
    batch_size: int = Field(default=262_144, ge=0)
    """Bytes of such a group; one group per stream is under way at a time."""
    max_request_size: int = Field(default=1_048_576, ge=16_384)
    """Bytes of the largest record; with the topic's ``max.message.bytes`` it is what core splits
    batches for. Raise both together."""
    delivery_timeout_ms: int = Field(default=120_000, ge=1_000)
    """After so long without success the client is made anew and everything unconfirmed sent again."""
    request_timeout_ms: int = Field(default=10_000, ge=1_000, le=300_000)
    """After so long without an answer a broker's connection is given up."""

    create_topics: bool = False
    """Create the topic where it does not exist. An existing one is never changed."""
    topic_partitions: int = Field(default=8, ge=1)
    topic_replication: int = Field(default=-1, ge=-1)
    """Replicas; -1 takes the cluster's default."""
    topic_retention_ms: int = Field(default=3_600_000, ge=1)
    owner_check_s: float = Field(default=3.0, gt=0)
    """How often a publisher looks in its partition for a newer publisher of its stream."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_cafile: str = ""
    """Path of the CA certificates to trust instead of the system's."""
    ssl_certfile: str = ""
    ssl_keyfile: str = ""
    ssl_password: SecretStr | None = None
    """Passphrase of ``ssl_keyfile``."""
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] = (
        "PLAIN"
    )
    sasl_plain_username: str = ""
    sasl_plain_password: SecretStr | None = None

    kafka_options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Any other option of kafka-python, passed through untouched."""

    @field_validator("bootstrap_servers", mode="before")
    @classmethod
    def _split_servers(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one address such as host:9092")
        for server in value:
            _check_server(server)
        return value

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        fields = template_fields(value)
        if not set(fields) <= _TOPIC_FIELDS:
            raise ValueError(
                "may name {tenant} and {model} only: streams are told apart by their key"
            )
        literal = re.sub(r"\{[^{}]*\}", "", value)
        if not _LEGAL_TOPIC.fullmatch(literal) or (not fields and literal in ("", ".", "..")):
            raise ValueError(f"{value!r} is no topic name: letters, digits, dot, _ and - only")
        return value

    @field_validator("acks", mode="before")
    @classmethod
    def _name_acks(cls, value: Any) -> Any:
        return {-1: "all", "-1": "all", 0: "0", 1: "1"}.get(value, value)

    @field_validator("compression_type", mode="before")
    @classmethod
    def _name_codec(cls, value: Any) -> Any:
        return "none" if value is None else value

    @field_validator("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    @classmethod
    def _check_file(cls, value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError(f"names a file that does not exist: {value!r}")
        return value

    @field_validator("kafka_options")
    @classmethod
    def _check_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in OWN_OPTIONS:
                raise ValueError(f"{name!r} belongs beside kafka_options: it is a key of its own")
            if name in FIXED_OPTIONS:
                raise ValueError(f"{name!r} cannot be set: the order of a stream rests on it")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> KafkaSettings:
        has_password = self.sasl_plain_password is not None
        uses_sasl = self.security_protocol.startswith("SASL_")
        if bool(self.sasl_plain_username) != has_password:
            raise ValueError("sasl_plain_username and sasl_plain_password belong together")
        if has_password and not uses_sasl:
            raise ValueError(
                "a SASL login needs security_protocol SASL_SSL (or SASL_PLAINTEXT, which shows the "
                "password of the mechanism PLAIN to the network)"
            )
        needs_login = self.sasl_mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
        if uses_sasl and needs_login and not has_password:
            raise ValueError(
                f"sasl_mechanism {self.sasl_mechanism} needs sasl_plain_username and "
                "sasl_plain_password (KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD)"
            )
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ValueError("ssl_certfile and ssl_keyfile belong together")
        if self.ssl_cafile and not self.security_protocol.endswith("SSL"):
            raise ValueError("ssl_cafile needs security_protocol SSL or SASL_SSL")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError(
                "delivery_timeout_ms must not be below linger_ms + request_timeout_ms"
            )
        self._check_packages()
        return self

    def _check_packages(self) -> None:
        _need_package("kafka", "kafka-python", 'publisher "kafka"')
        module = _CODEC_MODULES.get(self.compression_type)
        if module is not None:
            what = f"compression_type {self.compression_type!r}"
            _need_package(module, f"kafka-python[{self.compression_type}]", what)
        if self.kafka_options:
            _check_option_names(self.kafka_options)

    @property
    def is_idempotent(self) -> bool:
        """Return whether the broker itself drops what a retry would repeat."""
        return self.acks == "all"

    def address_of(self, stream: StreamId) -> str:
        """Return the topic of ``stream`` and the key that picks its partition."""
        return f"topic {expand_for(self.topic, stream)}, key {stream}"


def _check_server(server: str) -> None:
    if "://" in server or "@" in server or "/" in server:
        raise ValueError("must be host:port, without a scheme, user or path")
    if not re.fullmatch(r"(\[[0-9a-fA-F:.%a-z]+\]|[^:\s\[\]]+)(:\d{1,5})?", server):
        raise ValueError(f"{server!r} is not host:port")
    port = re.search(r":(\d+)$", server)
    if port and not server.endswith("]") and not 0 < int(port[1]) < 65_536:
        raise ValueError(f"{server!r} has no valid port")


def _need_package(module: str, package: str, wanted_by: str) -> None:
    if find_spec(module) is None:
        raise ValueError(
            f"{wanted_by} needs the package {package}: pip install '{package}' (or 'kvevents[kafka]')"
        )


def _check_option_names(options: dict[str, Any]) -> None:
    # The client is imported here only because somebody set an option of its own.
    from kafka import KafkaConsumer, KafkaProducer

    known = KafkaProducer.DEFAULT_CONFIG.keys() | KafkaConsumer.DEFAULT_CONFIG.keys()
    for name in options:
        if name not in known:
            raise ValueError(f"kafka_options: kafka-python knows no option {name!r}")
