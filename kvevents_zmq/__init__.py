"""The ZMQ backend: brokerless, wire-identical to the engines' own publishers."""

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
from kvevents_zmq.settings import ZmqSettings

__all__ = ["ZmqBackend", "ZmqSettings", "kvevents_backend"]


class ZmqBackend(Backend[ZmqSettings]):
    """One PUB socket per stream, and one ROUTER for replay."""

    name: ClassVar[str] = "zmq"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities(
        serves_history=True, replays=True, exclusive=True
    )
    settings_model: ClassVar[type[BackendSettings]] = ZmqSettings

    def open_sink(self, settings: ZmqSettings, stream: StreamId) -> Sink:
        """Bind the stream's sockets at once, or begin to dial; see ``sink.ZmqSink``."""
        from kvevents_zmq.sink import ZmqSink

        return ZmqSink(settings, stream)

    def open_source(self, settings: ZmqSettings, reader: ReaderOptions) -> Source:
        """Dial (or bind) one socket per stream rank; see ``source.ZmqSource``."""
        from kvevents_zmq.source import ZmqSource

        return ZmqSource(settings, reader)


@hookimpl
def kvevents_backend() -> ZmqBackend:
    """Return the backend that ``"publisher": "zmq"`` names."""
    return ZmqBackend()
