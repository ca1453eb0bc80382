"""Everything of one stream from the backlog to the sink, with its sender thread, in this process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvevents_core import stats
from kvevents_core.backend import SinkStatus
from kvevents_core.errors import ConfigError
from kvevents_core.in_flight import InFlight
from kvevents_core.numbering import Numbering
from kvevents_core.replay import ReplayRing
from kvevents_core.sender import Sender
from kvevents_core.sending import SendingFacts

if TYPE_CHECKING:
    from kvevents_core.alarms import Looks
    from kvevents_core.backend import Backend, BackendSettings
    from kvevents_core.backlog import Backlog
    from kvevents_core.naming import StreamId
    from kvevents_core.settings import KVEventsConfig
    from kvevents_core.wire import BatchEncoder


class SenderThread:
    """A ``Sending`` in this process.

    Args:
        config: An enabled configuration.
        stream: The stream; the publisher has checked that its rank has an address.
        backlog: Where batches come from.
        encoder: Turns them into payloads.
        alarms: What looks at them on the way.
        pid: Process id of the engine; None: this process is the engine.
        clock: Unix milliseconds, for the epoch.

    Raises:
        ConfigError: ``config`` is not enabled.
        TransportError: The stream's local address cannot be had (ZMQ bind).
    """

    def __init__(
        self,
        config: KVEventsConfig,
        stream: StreamId,
        *,
        backlog: Backlog,
        encoder: BatchEncoder,
        alarms: Looks,
        pid: int | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        backend, settings = enabled_backend(config)
        can = backend.capabilities
        self._ring = ReplayRing(
            config.buffer_steps if can.serves_history else 0, config.buffer_bytes
        )
        self._in_flight = InFlight(
            confirms=can.confirms,
            max_batches=config.max_in_flight_batches,
            max_bytes=config.max_in_flight_bytes,
        )
        self._counters = stats.SenderCounters()
        self._numbering = Numbering(
            stream,
            encoder,
            in_flight=self._in_flight,
            ring=self._ring if can.serves_history else None,
            counters=self._counters,
        )
        self.sink = backend.open_sink(settings, stream)
        self.sender = Sender(
            stream,
            self.sink,
            outbox=backlog,
            numbering=self._numbering,
            in_flight=self._in_flight,
            ring=self._ring,
            counters=self._counters,
            alarms=alarms,
            engine=config.engine,
            pid=os.getpid() if pid is None else pid,
            heartbeat_s=config.heartbeat_s,
            clock=clock,
        )

    def start(self) -> None:
        """Start the thread."""
        self.sender.start()

    def abandon(self, timeout_s: float) -> None:
        """Close the sink of a thread that was never started."""
        self.sink.close(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Let the thread send what fits ``timeout_s`` and end; True if it ended. Any thread."""
        return self.sender.stop(timeout_s)

    def disown(self) -> None:
        """Nothing to let go of: a forked child has neither the thread nor, in use, its client."""

    def facts(self) -> SendingFacts:
        """Return how things stand. Any thread."""
        in_flight_batches, in_flight_bytes = self._in_flight.size()
        replay_batches, replay_bytes = self._ring.size()
        counters, status = self._counters, self.sender.status
        return SendingFacts(
            published_batches=counters.published_batches,
            published_events=counters.published_events,
            published_bytes=counters.published_bytes,
            lost=dict(counters.lost),
            lost_events=dict(counters.lost_events),
            in_flight_batches=in_flight_batches,
            in_flight_bytes=in_flight_bytes,
            replay_batches=replay_batches,
            replay_bytes=replay_bytes,
            sender_errors=counters.sender_errors,
            alive=self.sender.is_alive(),
            epoch=self._numbering.epoch,
            next_seq=self._numbering.next_seq,
            connected=status.connected,
            superseded_by=status.superseded_by,
            error=status.error,
        )

    def status(self) -> SinkStatus:
        """Return the sink's status of this moment. Any thread."""
        try:
            status: Any = self.sink.status()
            if isinstance(status, SinkStatus):
                return status
            fault = f"returned {status!r}"
        except (Exception, SystemExit) as error:  # a package's fault is told, not passed on
            fault = repr(error)
        return replace(self.sender.status, connected=False, error=f"the sink's status: {fault}")

    def describe(self) -> dict[str, Any]:
        """Return the sink's own facts, and its status of this moment. Any thread."""
        status = self.status()
        told: dict[str, Any] = {
            "connected": status.connected,
            "superseded_by": status.superseded_by,
            "error": status.error,
        }
        try:
            return told | dict(self.sink.describe())
        except (Exception, SystemExit) as error:
            return told | {"fault": f"the sink's describe: {error!r}"}


def enabled_backend(config: KVEventsConfig) -> tuple[Backend[Any], BackendSettings]:
    """Return the backend of ``config`` and its settings.

    Raises:
        ConfigError: Nothing is to be published.
    """
    if config.backend is None or config.backend_settings is None:
        raise ConfigError(
            f"publisher {config.publisher!r} publishes nothing: name a transport, for instance "
            '{"publisher": "zmq"}',
            key="publisher",
        )
    return config.backend, config.backend_settings
