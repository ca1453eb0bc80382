"""What an engine holds: ``EventPublisher`` where a rank publishes, ``NullEventPublisher`` elsewhere.

``publish`` appends and returns. Everything else happens on the sender thread.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Final

from kvevents_core import metrics, stats
from kvevents_core.alarms import Alarms
from kvevents_core.naming import StreamId
from kvevents_core.outbox import Outbox
from kvevents_core.sender_thread import SenderThread, enabled_backend
from kvevents_core.settings import KVEventsConfig
from kvevents_core.wire import BatchEncoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvevents_core.sending import Sending

logger = logging.getLogger("kvevents")

_DIED: Final = "the sender died; nothing is sent any more"

_live: Final[set[EventPublisher]] = set()
"""Strong on purpose: an engine that drops its publisher without ``shutdown`` loses nothing either."""


class NullEventPublisher:
    """Publishes nothing: no socket, no thread, no client library. Takes what any engine passes."""

    records_events = False
    """The engine need not record events: nobody would drain them."""
    stream: StreamId | None = None

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        return

    def publish(self, events: Any) -> None:
        """Ignore ``events``."""

    def note_requests(self, count: int = 1) -> None:
        """Ignore ``count``."""

    def expect_block_size(self, block_size: int) -> None:
        """Ignore ``block_size``."""

    def shutdown(self, timeout_s: float | None = None) -> int:
        """Do nothing; return 0 batches unsent."""
        return 0

    def stats(self) -> stats.PublisherStats:
        """Return counters that are all 0."""
        return stats.PublisherStats()

    def describe(self) -> dict[str, Any]:
        """Return that nothing is published."""
        return {"publisher": "null", "stream": None}


class EventPublisher:
    """Publishes the batches of one data-parallel rank as one ordered, numbered stream.

    Made by ``RankGate.create_publisher`` or ``EventPublisherFactory.create``. A publisher lives
    once: after ``shutdown`` batches are counted as lost, and a new publisher is a new epoch.

    Args:
        config: An enabled configuration.
        stream_rank: The stream rank, 0..dp-1.
        clock: Unix milliseconds, for the epoch; tests turn it back. A sender process has its own.

    Raises:
        ConfigError: ``config`` is not enabled, or the rank has no legal address.
        TransportError: The stream's local address cannot be had (ZMQ bind).
    """

    records_events = True

    def __init__(
        self,
        config: KVEventsConfig,
        stream_rank: int = 0,
        *,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        _, settings = enabled_backend(config)
        settings.check_ranks(stream_rank + 1)
        self.stream = StreamId(config.tenant, config.model, config.instance, stream_rank)
        self._publisher_name = config.publisher
        self._shutdown_timeout_s = config.shutdown_timeout_s
        self._outbox = Outbox(config.max_queue_size, config.max_queue_bytes, config.overflow)
        self._alarms = Alarms(self.stream)
        encoder = BatchEncoder(
            stream_rank, dialect=config.dialect, omit_token_ids=config.omit_token_ids
        )
        self._sending = _open_sending(
            config,
            self.stream,
            backlog=self._outbox,
            encoder=encoder,
            alarms=self._alarms,
            clock=clock,
        )
        self._stop_metrics = self._serve_metrics(config.metrics_endpoint)
        self._is_shut_down = False
        self._told_unsent = False
        self._has_sender = True
        # One call fewer on the engine's thread: of all that publishing costs there, a third.
        self.publish = self._outbox.put  # type: ignore[assignment,method-assign]
        self._sending.start()
        _live.add(self)
        # Among others whether it binds or dials, which ZMQ's endpoint may leave to be inferred.
        logger.info("kvevents: stream %s goes out by %s", self.stream, self._sending.describe())

    def _serve_metrics(self, endpoint: str | None) -> Callable[[], None] | None:
        if endpoint is None:
            return None
        try:
            return metrics.serve(self, endpoint)
        except BaseException:
            self._sending.abandon(self._shutdown_timeout_s)
            raise

    def publish(self, events: Any) -> None:
        """Append one batch and return: no I/O, no encoding, no exception. The engine's thread.

        Args:
            events: An engine's own batch struct, or a ``KVEventBatch``. It must not be changed
                afterwards. A batch without events is ignored.
        """
        self._outbox.put(events)

    def shutdown(self, timeout_s: float | None = None) -> int:
        """Send what can be sent within the deadline and stop. Never raises; quiet when repeated.

        Args:
            timeout_s: Seconds; None takes ``shutdown_timeout_s`` of the configuration.

        Returns:
            How many batches could not be sent, or were sent and not confirmed.
        """
        if not self._is_shut_down and self._has_sender:
            self._is_shut_down = True
            self._outbox.refuse(stats.CLOSED)
            _live.discard(self)
            deadline_s = self._shutdown_timeout_s if timeout_s is None else timeout_s
            if not self._sending.stop(deadline_s):
                logger.error(
                    "kvevents: the sender of stream %s did not end within %.1f s: the %s client "
                    "does not let go; the thread is a daemon and ends with the process",
                    self.stream,
                    deadline_s,
                    self._publisher_name,
                )
            if self._stop_metrics is not None:
                self._stop_metrics()
        now = self.stats()
        unsent = now.lost.get(stats.UNSENT_AT_CLOSE, 0)
        unsent += now.lost.get(stats.UNCONFIRMED_AT_CLOSE, 0)
        # What a thread that hangs or died has left behind, and so cannot count.
        unsent += now.queued_batches + now.in_flight_batches
        if unsent and not self._told_unsent:
            self._told_unsent = True
            logger.warning(
                "kvevents: stream %s ended with %d batches that were not sent or not confirmed (%s)",
                self.stream,
                unsent,
                now.error or "the deadline passed",
            )
        return unsent

    def stats(self) -> stats.PublisherStats:
        """Return the counters. Any thread."""
        queued_batches, queued_bytes = self._outbox.size()
        behind = self._sending.facts()
        died = not behind.alive and not self._is_shut_down and self._has_sender
        return stats.PublisherStats(
            published_batches=behind.published_batches,
            published_events=behind.published_events,
            published_bytes=behind.published_bytes,
            lost=stats.add(behind.lost, self._outbox.lost),
            lost_events=stats.add(behind.lost_events, self._outbox.lost_events),
            queued_batches=queued_batches,
            queued_bytes=queued_bytes,
            in_flight_batches=behind.in_flight_batches,
            in_flight_bytes=behind.in_flight_bytes,
            replay_batches=behind.replay_batches,
            replay_bytes=behind.replay_bytes,
            sender_errors=behind.sender_errors,
            sender_alive=behind.alive,
            epoch=behind.epoch,
            next_seq=behind.next_seq,
            connected=behind.connected and not died,
            superseded_by=behind.superseded_by,
            error=_DIED if died else behind.error,
            alarms=self._alarms.raised,
        )

    def note_requests(self, count: int = 1) -> None:
        """Note that the engine served ``count`` requests; cheap. The engine's thread.

        An adapter that calls this gets the alarm ``no_events`` if no block is ever reported.
        """
        self._alarms.note_requests(count)

    def expect_block_size(self, block_size: int) -> None:
        """Note the block size readers were told; events with another raise the alarm ``block_size``."""
        self._alarms.expect_block_size(block_size)

    def describe(self) -> dict[str, Any]:
        """Return who publishes what and where, JSON-able and without secrets. Any thread."""
        behind = self._sending.facts()
        return {
            "publisher": self._publisher_name,
            "stream": str(self.stream),
            "stream_rank": self.stream.rank,
            "epoch": behind.epoch,
            "next_seq": behind.next_seq,
            "pid": os.getpid(),
            "sender_alive": behind.alive,
            **self._sending.describe(),
        }

    def _disown(self) -> None:
        """Refuse batches in a forked child: the sender thread and its client are the parent's."""
        self._has_sender = False
        self._outbox.after_fork_in_child(stats.FORKED)
        self._sending.disown()


class EventPublisherFactory:
    """Makes the publisher of one rank, called as the engines call their own factory."""

    @classmethod
    def create(
        cls, config: str | KVEventsConfig | None, attn_dp_rank: int = 0
    ) -> EventPublisher | NullEventPublisher:
        """Return the publisher of stream rank ``attn_dp_rank``.

        Whether this process publishes at all is ``RankGate``'s question, not this one's.

        Args:
            config: The text of ``--kv-events-config``, or the parsed configuration.
            attn_dp_rank: The stream rank, 0..dp-1.

        Raises:
            ConfigError: The configuration is wrong.
            BackendError: The backend cannot be loaded.
            TransportError: The stream's local address cannot be had (ZMQ bind).
        """
        parsed = config if isinstance(config, KVEventsConfig) else KVEventsConfig.from_cli(config)
        if not parsed.enabled:
            return NullEventPublisher()
        return EventPublisher(parsed, attn_dp_rank)


def _open_sending(
    config: KVEventsConfig, stream: StreamId, clock: Callable[[], int], **parts: Any
) -> Sending:
    if config.sender == "thread":
        return SenderThread(config, stream, clock=clock, **parts)
    # Imported by who uses it: subprocess and multiprocessing cost an engine 10 ms.
    from kvevents_core.sender_process.sending import SenderProcess

    return SenderProcess(config, stream, **parts)


def _shut_down_all() -> None:
    """At interpreter exit: an engine that never calls ``shutdown`` loses nothing that fits."""
    for publisher in list(_live):
        publisher.shutdown()


def _disown_all() -> None:
    for publisher in list(_live):
        publisher._disown()
    _live.clear()


atexit.register(_shut_down_all)
os.register_at_fork(after_in_child=_disown_all)
