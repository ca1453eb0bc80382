"""Publisher counters for Prometheus, on a port of their own.

Engines run the publisher in a process whose default registry nobody scrapes (vLLM's EngineCore,
SGLang's scheduler), so the exporter has its own registry and its own port. It reads snapshots when
it is scraped and adds nothing to the path of a batch. prometheus-client is imported when asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

from kvevents_core.errors import ConfigError, TransportError
from kvevents_core.stats import PublisherStats

if TYPE_CHECKING:
    from kvevents_core.naming import StreamId

_COUNTERS: Final[dict[str, tuple[str, Callable[[PublisherStats], float]]]] = {
    "published_batches": ("Numbered batches delivered", lambda s: s.published_batches),
    "published_events": ("Events delivered", lambda s: s.published_events),
    "published_bytes": ("Payload bytes delivered", lambda s: s.published_bytes),
    "sender_errors": ("Faults the sender thread survived", lambda s: s.sender_errors),
}
_GAUGES: Final[dict[str, tuple[str, Callable[[PublisherStats], float]]]] = {
    "queued_batches": ("Batches in the outbox", lambda s: s.queued_batches),
    "queued_bytes": ("Estimated memory of the outbox", lambda s: s.queued_bytes),
    "in_flight_batches": ("Numbered, not yet settled", lambda s: s.in_flight_batches),
    "in_flight_bytes": ("The same in payload bytes", lambda s: s.in_flight_bytes),
    "replay_batches": ("Batches in the replay ring", lambda s: s.replay_batches),
    "replay_bytes": ("Memory of the replay ring", lambda s: s.replay_bytes),
    "next_seq": ("Number of the next batch", lambda s: s.next_seq),
    "epoch_ms": ("Epoch of the stream, Unix milliseconds", lambda s: s.epoch or 0),
    "connected": ("1 while the transport is reachable", lambda s: s.connected),
    "superseded": (
        "1 once another publisher owns the stream",
        lambda s: s.superseded_by is not None,
    ),
    "no_events": (
        "1 while requests are served and no block was ever reported",
        lambda s: "no_events" in s.alarms,
    ),
    "block_size_mismatch": (
        "1 once events had another block size than readers were told",
        lambda s: "block_size" in s.alarms,
    ),
    "sender_alive": ("1 while the sender thread runs", lambda s: s.sender_alive),
}


class Measured(Protocol):
    """What has counters: a publisher."""

    stream: StreamId

    def stats(self) -> PublisherStats:
        """Return a snapshot. Any thread."""


class PublisherCollector:
    """A prometheus-client collector over one publisher; register it where you like."""

    def __init__(self, publisher: Measured) -> None:
        self._publisher = publisher

    def collect(self) -> Iterator[Any]:
        """Yield one metric family after the other, labelled with the stream."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        stream, now = self._publisher.stream, self._publisher.stats()
        names = ["tenant", "model", "instance", "stream_rank"]
        labels = [stream.tenant, stream.model, stream.instance, str(stream.rank)]
        for name, (meaning, read) in _COUNTERS.items():
            family = CounterMetricFamily(f"kvevents_{name}", meaning, labels=names)
            family.add_metric(labels, float(read(now)))
            yield family
        for name, (meaning, read) in _GAUGES.items():
            gauge = GaugeMetricFamily(f"kvevents_{name}", meaning, labels=names)
            gauge.add_metric(labels, float(read(now)))
            yield gauge
        for name, meaning, by_reason in (
            ("lost_batches", "Batches lost, by reason", now.lost),
            ("lost_events", "Events lost, by reason", now.lost_events),
        ):
            lost = CounterMetricFamily(f"kvevents_{name}", meaning, labels=[*names, "reason"])
            for reason, count in by_reason.items():
                lost.add_metric([*labels, reason], count)
            yield lost


def split_endpoint(endpoint: str, stream_rank: int) -> tuple[str, int]:
    """Return (host, port + ``stream_rank``) of ``host:port``.

    Raises:
        ConfigError: It is not ``host:port``, or the port of some rank is above 65535.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise ConfigError(
            f"metrics_endpoint {endpoint!r} is not host:port, for instance 127.0.0.1:9464",
            key="metrics_endpoint",
        )
    number = int(port) + stream_rank if int(port) else 0
    if number > 65535:
        raise ConfigError(
            f"metrics_endpoint {endpoint!r}: stream rank {stream_rank} would need port {number}; "
            "choose a lower port",
            key="metrics_endpoint",
        )
    return host.strip("[]"), number


def serve(publisher: Measured, endpoint: str) -> Callable[[], None]:
    """Serve the counters of ``publisher`` at ``endpoint``, port + stream rank; return how to stop.

    Raises:
        ConfigError: The endpoint is wrong or prometheus-client is not installed.
        TransportError: The port cannot be had.
    """
    host, port = split_endpoint(endpoint, publisher.stream.rank)
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as exc:
        raise ConfigError(
            "metrics_endpoint needs prometheus-client: pip install 'kvevents[metrics]'",
            key="metrics_endpoint",
        ) from exc
    registry = CollectorRegistry()
    registry.register(PublisherCollector(publisher))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as exc:
        raise TransportError(
            f"metrics_endpoint {endpoint!r}: {host}:{port} cannot be had for stream "
            f"{publisher.stream} ({exc.strerror}); choose another port",
            address=f"{host}:{port}",
        ) from exc

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1.0)

    return stop
