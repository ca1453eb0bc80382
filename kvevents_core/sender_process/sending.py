"""A ``Sending`` with its sender in a process of its own."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from kvevents_core import stats
from kvevents_core.errors import ConfigError
from kvevents_core.sender_process.child_handle import ChildHandle
from kvevents_core.sender_process.feeder import Feeder
from kvevents_core.sender_process.messages import Job, pack_job
from kvevents_core.sending import SendingFacts

if TYPE_CHECKING:
    from kvevents_core.alarms import Looks
    from kvevents_core.naming import StreamId
    from kvevents_core.outbox import Outbox
    from kvevents_core.settings import KVEventsConfig
    from kvevents_core.wire import BatchEncoder


class SenderProcess:
    """Starts the process, with its local address bound, and the thread that feeds it.

    Args:
        config: An enabled configuration.
        stream: The stream.
        backlog: Where batches come from.
        encoder: Turns them into payloads, in this process.
        alarms: What looks at them on the way, in this process.

    Raises:
        ConfigError: This transport, or this system, cannot have its sender in another process.
        TransportError: The stream's local address cannot be had, or no process can be started.
    """

    def __init__(
        self,
        config: KVEventsConfig,
        stream: StreamId,
        *,
        backlog: Outbox,
        encoder: BatchEncoder,
        alarms: Looks,
    ) -> None:
        _refuse_what_cannot_leave(config)
        job = Job(config, stream, os.getpid(), _log_level())

        def start_child(
            news: Callable[[], None], epoch_floor: int, gives_up: Callable[[], bool]
        ) -> ChildHandle:
            return ChildHandle(pack_job(replace(job, epoch_floor=epoch_floor)), news, gives_up)

        self._feeder = Feeder(
            stream,
            start_child,
            outbox=backlog,
            encoder=encoder,
            alarms=alarms,
            max_batches=config.max_queue_size,
        )

    def start(self) -> None:
        """Start the thread."""
        self._feeder.start()

    def abandon(self, timeout_s: float) -> None:
        """End the process, instead of ``start``."""
        self._feeder.abandon(timeout_s)

    def stop(self, timeout_s: float) -> bool:
        """Have sent what fits ``timeout_s``, and end thread and process. Any thread."""
        return self._feeder.stop(timeout_s)

    def disown(self) -> None:
        """Renew, in a forked child, the lock that a thread of the parent may hold."""
        self._feeder.lock = threading.Lock()

    def facts(self) -> SendingFacts:
        """Return how things stood when the process last told; losses of this side included."""
        feeder = self._feeder
        with feeder.lock:
            child, here = feeder.child, feeder.counters
            report = child.report
            behind = SendingFacts(alive=True) if report is None else report.facts
            return msgspec.structs.replace(
                behind,
                published_batches=here.published_batches + behind.published_batches,
                published_events=here.published_events + behind.published_events,
                published_bytes=here.published_bytes + behind.published_bytes,
                lost=stats.add(here.lost, behind.lost),
                lost_events=stats.add(here.lost_events, behind.lost_events),
                in_flight_batches=feeder.unsettled_batches(report),
                sender_errors=here.sender_errors + behind.sender_errors,
                alive=feeder.is_alive() and (behind.alive or child.has_ended),
                connected=behind.connected and not child.has_ended,
                error=feeder.error or behind.error,
            )

    def describe(self) -> dict[str, Any]:
        """Return what the sink told of itself when the process last reported. Any thread."""
        child = self._feeder.child
        told = {} if child.report is None else child.report.sink
        now = self.facts()
        return {
            **told,
            "connected": now.connected,
            "superseded_by": now.superseded_by,
            "error": now.error,
            "sender_pid": child.pid,
        }


def _log_level() -> int:
    """Return the lowest level that any of our loggers lets through; the engine filters the rest."""
    names = [
        "kvevents",
        *(name for name in list(logging.root.manager.loggerDict) if "kvevents." in name),
    ]
    return min(logging.getLogger(name).getEffectiveLevel() for name in names)


def _refuse_what_cannot_leave(config: KVEventsConfig) -> None:
    settings, origin = config.backend_settings, config.origin_of("sender")
    if os.name != "posix":
        raise ConfigError(
            'a sender process needs a POSIX system; leave "sender" at "thread"',
            key="sender",
            origin=origin,
        )
    if settings is not None and not settings.leaves_process():
        raise ConfigError(
            f"publisher {config.publisher!r}, as it is set up, reaches readers of this process only; "
            f'a sender in another process would reach nobody. Leave "sender" at "thread"',
            key="sender",
            origin=origin,
        )
