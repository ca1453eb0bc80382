"""Redis Streams as a backend of kvevents: ``"publisher": "redis"``."""

from __future__ import annotations

from typing import ClassVar

from kvevents_core import (
    CONTRACT_VERSION,
    Backend,
    BackendSettings,
    Capabilities,
    ReaderOptions,
    Sink,
    Source,
    StreamId,
    hookimpl,
)
from kvevents_redis.settings import RedisSettings


class RedisBackend(Backend[RedisSettings]):
    """One Redis stream per stream rank, kept by the server."""

    name: ClassVar[str] = "redis"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities(
        confirms=True, durable=True, carries_epoch=True
    )
    settings_model: ClassVar[type[BackendSettings]] = RedisSettings

    def open_sink(self, settings: RedisSettings, stream: StreamId) -> Sink:
        """Return a sink that reaches the server in the background."""
        from kvevents_redis.sink import RedisSink

        return RedisSink(settings, stream)

    def open_source(self, settings: RedisSettings, reader: ReaderOptions) -> Source:
        """Return a source that reaches the server when it is read."""
        from kvevents_redis.source import RedisSource

        return RedisSource(settings, reader)


@hookimpl
def kvevents_backend() -> RedisBackend:
    """Return the backend that ``"publisher": "redis"`` names."""
    return RedisBackend()
