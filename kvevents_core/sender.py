"""The one sender thread of a stream.

The path of a batch: ``Outbox.take`` -> ``Numbering.add`` -> ``InFlight`` -> ``Sink.send`` -> receipt.
Nothing here runs on the engine's thread, and no exception ends the thread.
"""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from kvevents_core import stats
from kvevents_core.backend import SinkHost, SinkStatus
from kvevents_core.loss_log import LOG_EVERY_S, LossLog
from kvevents_core.outbox import count_events
from kvevents_core.rhythm import GROUP_BATCHES, GROUP_BYTES, RHYTHM_S, STUCK_S, Rhythm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvevents_core.alarms import Looks
    from kvevents_core.backend import Sink
    from kvevents_core.backlog import Backlog
    from kvevents_core.in_flight import InFlight, Settled
    from kvevents_core.naming import StreamId
    from kvevents_core.numbering import Numbering
    from kvevents_core.replay import ReplayRing

logger = logging.getLogger("kvevents")

WATCH_S: Final = 0.05
"""Longest sleep while something is owed: a connection, a receipt, a hole to show."""
SLEEP_S: Final = 1.0
"""Longest sleep otherwise; a look at the sink's status, no more."""


class Sender:
    """Drives one sink from one outbox on a thread of its own.

    Args:
        stream: The stream, for the log.
        sink: Where records go; from ``start`` on only this thread calls it (``status`` aside).
        outbox: Where batches come from.
        numbering: What makes records of them.
        in_flight: What holds the records until they are settled.
        ring: What readers may replay; the sink reads it.
        counters: What the thread counts.
        alarms: What looks at the batches and at the time.
        engine: Name of the engine, for the records' headers.
        pid: Process id of the engine, by which others are told who publishes.
        heartbeat_s: Seconds without a record after which an empty batch is sent; 0 = never.
        clock: Unix milliseconds, for the epoch.
    """

    def __init__(
        self,
        stream: StreamId,
        sink: Sink,
        *,
        outbox: Backlog,
        numbering: Numbering,
        in_flight: InFlight,
        ring: ReplayRing,
        counters: stats.SenderCounters,
        alarms: Looks,
        engine: str,
        pid: int,
        heartbeat_s: float,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._stream = stream
        self._sink = sink
        self._outbox = outbox
        self._numbering = numbering
        self._in_flight = in_flight
        self._ring = ring
        self._counters = counters
        self._alarms = alarms
        self._engine = engine
        self._pid = pid
        self._heartbeat_s = heartbeat_s
        self._clock = clock
        self.status = SinkStatus(ready=False, connected=False)
        """The sink's status at the last step."""
        self._generation = 0
        self._losses = LossLog(stream)
        self._next_rejection_log_at = 0.0
        self._told_superseded = False
        self._stop_at: float | None = None
        self._thread = threading.Thread(
            target=self._run, name=f"kvevents-sender-{stream.rank}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Let the thread send what fits ``timeout_s`` and end; True if it ended. Any thread."""
        self._stop_at = time.monotonic() + timeout_s
        self._outbox.nudge()
        # Over the deadline comes closing the sink, which keeps a deadline of its own.
        self._thread.join(timeout_s + 1.0)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self._guarded(leave_signals_to_the_engine)
        self._guarded(self._start_sink)
        rhythm = Rhythm(self._outbox, self)
        while self._stop_at is None:
            rhythm.follow(self._guarded(self._step))
        self._finish(self._stop_at)

    def _start_sink(self) -> int:
        host = SinkHost(
            wake=self._outbox.nudge,
            epoch=lambda: self._numbering.epoch,
            history=self._ring,
            identity=f"{socket.gethostname()}:{self._pid}",
            engine=self._engine,
        )
        self._sink.start(host)
        return 0

    def _guarded(self, work: Callable[[], int]) -> int:
        """Run ``work``; whatever it raises is counted and logged, and the thread lives on."""
        try:
            return work()
        except BaseException:  # a client's SystemExit, too, would end a thread for good
            self._counters.sender_errors += 1
            if self._counters.sender_errors <= 10:
                logger.exception("kvevents: the sender of stream %s goes on after", self._stream)
            time.sleep(STUCK_S)
            return 0

    def owes_receipts(self) -> bool:
        """Return whether records wait for the sink or for a receipt; see ``rhythm.Work``."""
        return not self._in_flight.is_empty()

    def is_stuck(self) -> bool:
        """Return whether the sink takes nothing of what waits; see ``rhythm.Work``."""
        if self._in_flight.pending:
            return True
        return self._numbering.epoch is None and bool(self._outbox.size()[0])

    def longest_sleep_s(self, now: float) -> float:
        """Return how soon something owed has to be looked after; see ``rhythm.Work``."""
        numbering = self._numbering
        owed = numbering.epoch is None or not self._in_flight.is_empty()
        longest = WATCH_S if owed or numbering.has_hidden_hole() else SLEEP_S
        if self._heartbeat_s > 0:
            due_s = numbering.last_record_at + self._heartbeat_s - now
            longest = min(longest, max(due_s, RHYTHM_S))
        return longest

    # One step ----------------------------------------------------------------------------------

    def _step(self) -> int:
        """Do what can be done without waiting; return how many batches moved."""
        status = self._sink.status()
        if not isinstance(status, SinkStatus):
            raise TypeError(f"{type(self._sink).__name__}.status returned {status!r}")
        self.status = status
        self._losses.look(self._counters.lost, self._outbox.lost, error=status.error)
        if status.superseded_by is not None:
            return self._discard_superseded(status.superseded_by)
        opens = self._numbering.epoch is None
        if opens:
            if not status.ready:
                return 0
            above = -1 if status.last_epoch is None else status.last_epoch
            self._numbering.open(max(self._clock(), above + 1))
        moved = self._count(self._in_flight.settle(self._sink.take_receipts()))
        if status.generation != self._generation:
            self._generation = status.generation
            self._in_flight.take_back()
        if opens or not self._in_flight.pending:
            moved += self._fill()
        offer = self._in_flight.offer()
        if offer:
            taken = self._sink.send(offer)
            moved += taken
            self._count(self._in_flight.take(taken))
        return moved

    def _fill(self) -> int:
        waiting = self._outbox.take(GROUP_BATCHES, GROUP_BYTES)
        self._alarms.look(waiting)
        if waiting:
            self._numbering.add(waiting, self.status.max_message_bytes)
        else:
            self._numbering.skip(self._outbox.take_tail_loss())
        self._numbering.show_hidden_hole()
        if self._heartbeat_s > 0 and self._in_flight.is_empty():
            silent_s = time.monotonic() - self._numbering.last_record_at
            if silent_s >= self._heartbeat_s:
                self._numbering.beat()
        return len(waiting)

    def _count(self, settled: Iterable[Settled]) -> int:
        moved = 0
        counters = self._counters
        for group in settled:
            count = len(group.records)
            moved += count
            if group.rejected is None:
                counters.published_batches += count
                counters.published_events += group.events
                counters.published_bytes += sum([len(one.payload) for one in group.records])
                continue
            counters.lose(stats.REJECTED, count, group.events)
            for record in group.records:
                self._numbering.note_rejected(record.seq)
                self._log_rejected(record.seq, group.rejected)
        return moved

    def _discard_superseded(self, by: int) -> int:
        if not self._told_superseded:
            self._told_superseded = True
            logger.error(
                "kvevents: stream %s has a newer publisher (epoch %s, ours is %s); this one stops "
                "sending. Two engines share one identity: give each its own `instance`.",
                self._stream,
                by,
                self._numbering.epoch,
            )
        self._counters.lose(stats.SUPERSEDED, *self._in_flight.drop_unconfirmed())
        self._counters.lose(stats.SUPERSEDED, *self._in_flight.drop_pending())
        for item in self._outbox.take(GROUP_BATCHES, GROUP_BYTES):
            self._counters.lose(stats.SUPERSEDED, 1, count_events(item.batch))
        return 0

    # The end -----------------------------------------------------------------------------------

    def _finish(self, deadline: float) -> None:
        while time.monotonic() < deadline and not self._is_drained():
            if not self._guarded(self._step):
                time.sleep(RHYTHM_S)
        left_s = max(0.0, deadline - time.monotonic())
        self._guarded(lambda: int(self._sink.flush(left_s)))
        self._guarded(lambda: self._count(self._in_flight.settle(self._sink.take_receipts())))
        self._count_unsent()
        left_s = max(0.2, deadline - time.monotonic())
        self._guarded(lambda: self._close_sink(left_s))

    def _close_sink(self, timeout_s: float) -> int:
        self._sink.close(timeout_s)
        return 0

    def _is_drained(self) -> bool:
        waiting = self._outbox.size()[0] or self._outbox.has_tail_loss()
        if self._numbering.epoch is None and waiting:
            return False
        return not waiting and self._in_flight.is_empty() and not self._numbering.has_hidden_hole()

    def _count_unsent(self) -> None:
        self._counters.lose(stats.UNCONFIRMED_AT_CLOSE, *self._in_flight.drop_unconfirmed())
        self._counters.lose(stats.UNSENT_AT_CLOSE, *self._in_flight.drop_pending())
        while waiting := self._outbox.take(GROUP_BATCHES, GROUP_BYTES):
            events = sum(count_events(item.batch) for item in waiting)
            self._counters.lose(stats.UNSENT_AT_CLOSE, len(waiting), events)

    # What operators see ------------------------------------------------------------------------

    def _log_rejected(self, seq: int, why: str) -> None:
        now = time.monotonic()
        if now < self._next_rejection_log_at:
            return  # the next report of losses counts it
        self._next_rejection_log_at = now + LOG_EVERY_S
        logger.warning(
            "kvevents: stream %s lost batch %d: the transport refused it (%s)",
            self._stream,
            seq,
            why,
        )


def leave_signals_to_the_engine() -> int:
    """Have signals delivered to other threads, so that none interrupts a client's call half-way.

    Threads, and programs, that the sink starts from here inherit it. Faults of this very thread stay.
    """
    if hasattr(signal, "pthread_sigmask"):
        names = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")
        faults = {getattr(signal, name) for name in names if hasattr(signal, name)}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - faults)
    return 0
