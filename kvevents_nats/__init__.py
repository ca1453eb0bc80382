"""NATS and JetStream: each stream on a subject of its own.

Importing this package opens nothing and imports no client library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvevents_core import Backend, Capabilities, hookimpl
from kvevents_nats.settings import NatsSettings

if TYPE_CHECKING:
    from kvevents_core import ReaderOptions, Sink, Source, StreamId

__all__ = ["NatsBackend", "NatsSettings", "kvevents_backend"]


class NatsBackend(Backend[NatsSettings]):
    """Subjects on NATS servers; stored and acknowledged by JetStream unless ``mode`` says ``core``.

    The capabilities are those of ``mode: jetstream``. In ``mode: core`` a receipt means that the
    server took the record (at most once, nothing is stored), and a source starts at the present.
    """

    name = "nats"
    contract_version = 1
    capabilities = Capabilities(confirms=True, durable=True, carries_epoch=True)
    settings_model = NatsSettings

    def open_sink(self, settings: NatsSettings, stream: StreamId) -> Sink:
        """Return the sink of ``stream``; it connects in the background once started."""
        from kvevents_nats.sink import NatsSink

        return NatsSink(settings, stream)

    def open_source(self, settings: NatsSettings, reader: ReaderOptions) -> Source:
        """Return a source that connects in the background."""
        from kvevents_nats.source import NatsSource

        return NatsSource(settings, reader)


@hookimpl
def kvevents_backend() -> Backend[Any]:
    """Offer the backend to core."""
    return NatsBackend()
