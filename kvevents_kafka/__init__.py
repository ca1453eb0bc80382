"""The Kafka backend: one stream is one key of one partition, confirmed by the broker."""

from __future__ import annotations

from typing import ClassVar

from kvevents_core.backend import (
    CONTRACT_VERSION,
    Backend,
    BackendSettings,
    Capabilities,
    ReaderOptions,
    Sink,
    Source,
)
from kvevents_core.hookspecs import hookimpl
from kvevents_core.naming import StreamId
from kvevents_kafka.settings import KafkaSettings

__all__ = ["KafkaBackend", "KafkaSettings", "kvevents_backend"]


class KafkaBackend(Backend[KafkaSettings]):
    """Streams on the log of a Kafka cluster, through kafka-python."""

    name: ClassVar[str] = "kafka"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities(
        confirms=True, durable=True, carries_epoch=True
    )
    settings_model: ClassVar[type[BackendSettings]] = KafkaSettings

    def open_sink(self, settings: KafkaSettings, stream: StreamId) -> Sink:
        """Prepare the stream's producer, which connects in the background; see ``sink``.

        Raises:
            ConfigError: Kafka does not allow the topic's name.
        """
        from kvevents_kafka.sink import KafkaSink

        return KafkaSink(settings, stream)

    def open_source(self, settings: KafkaSettings, reader: ReaderOptions) -> Source:
        """Prepare a reader of all partitions of the topic; see ``source``.

        Raises:
            ConfigError: Kafka does not allow the topic's name, or ``reader.start`` is no start.
        """
        from kvevents_kafka.source import KafkaSource

        return KafkaSource(settings, reader)


@hookimpl
def kvevents_backend() -> KafkaBackend:
    """Return the backend that ``"publisher": "kafka"`` names."""
    return KafkaBackend()
