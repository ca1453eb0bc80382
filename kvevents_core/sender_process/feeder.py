"""The thread in the engine's process that encodes batches and hands them to the sender process.

The path of a batch: ``Outbox.take`` -> ``BatchEncoder`` -> ``ChildHandle.write``. A process that died is
replaced; what it had not settled is counted as lost, and the new one opens a new epoch, so that
readers begin anew. Nothing here runs on the engine's thread, and no exception ends the thread.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kvevents_core import stats
from kvevents_core.errors import EncodeError
from kvevents_core.loss_log import LossLog
from kvevents_core.outbox import count_events
from kvevents_core.rhythm import GROUP_BATCHES, GROUP_BYTES, RHYTHM_S, STUCK_S, Rhythm
from kvevents_core.sender import leave_signals_to_the_engine
from kvevents_core.sender_process.child_handle import ChildHandle
from kvevents_core.sender_process.frames import (
    MOST_ON_THE_WAY,
    batch_frame,
    end_frame,
    loss_frame,
)
from kvevents_core.sender_process.messages import Report
from kvevents_core.sending import SendingFacts
from kvevents_core.surviving import keep_what_survives

if TYPE_CHECKING:
    from kvevents_core.alarms import Looks
    from kvevents_core.naming import StreamId
    from kvevents_core.outbox import Outbox, Waiting
    from kvevents_core.wire import BatchEncoder

logger = logging.getLogger("kvevents")

SLEEP_S: Final = 1.0
"""Longest sleep; the process's own news wake the thread."""
FIRST_RETRY_S: Final = 1.0
LONGEST_RETRY_S: Final = 30.0
"""Pauses between attempts to start a process in the place of one that died."""
SOUND_AFTER_S: Final = 10.0
"""A process that lived for so long is replaced at once; one that dies sooner waits as a failed attempt."""
ENDING_S: Final = 1.0
"""What an ending process gets beyond the deadline, for closing, before it is killed."""


StartChild = Callable[[Callable[[], None], int, Callable[[], bool]], ChildHandle]


class Feeder:
    """Feeds one sender process after the other.

    Args:
        stream: The stream, for the log.
        start_child: Starts a process, given what to call for news, the epoch to stay above, and when
            to give up; raises as ``ChildHandle`` does.
        outbox: Where batches come from.
        encoder: Turns them into payloads.
        alarms: What looks at them on the way.
        max_batches: The outbox's bound, which holds for what is on the way, too.
    """

    def __init__(
        self,
        stream: StreamId,
        start_child: StartChild,
        *,
        outbox: Outbox,
        encoder: BatchEncoder,
        alarms: Looks,
        max_batches: int,
    ) -> None:
        self._stream = stream
        self._start_child = start_child
        self._outbox = outbox
        self._encoder = encoder
        self._alarms = alarms
        self.counters = stats.SenderCounters()
        """What is lost on this side, and what processes that died had published."""
        self.lock = threading.Lock()
        """Held while what a process reported moves into ``counters``."""
        self.error: str | None = None
        """Why there is no process, if there is none."""
        self._most_on_the_way = min(max_batches, MOST_ON_THE_WAY)
        self._losses = LossLog(stream)
        self._unsent = b""
        self._went = 0
        self._pending_loss = 0
        self.fed_batches = 0
        """Handed over, or about to be, to the present process."""
        self._fed_events = 0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._stop_at: float | None = None
        self._superseded_by: int | None = None
        self._epoch_floor = 0
        self.child = start_child(outbox.nudge, self._epoch_floor, self._gives_up)
        self._started_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, name=f"kvevents-feeder-{stream.rank}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def stop(self, timeout_s: float) -> bool:
        """Hand over and have sent what fits ``timeout_s``, and end; True if it ended. Any thread."""
        self._stop_at = time.monotonic() + timeout_s
        self._outbox.nudge()
        self._thread.join(timeout_s + 2 * ENDING_S)
        return not self._thread.is_alive()

    def unsettled_batches(self, report: Report | None) -> int:
        """Return how many batches were handed over and are not settled, as ``report`` has it."""
        in_flight = 0 if report is None else report.facts.in_flight_batches
        return self._on_the_way(report) + in_flight

    def _on_the_way(self, report: Report | None) -> int:
        return max(0, self.fed_batches - (0 if report is None else report.numbered_batches))

    def _room(self) -> int:
        return self._most_on_the_way - self._on_the_way(self.child.report)

    def abandon(self, timeout_s: float) -> None:
        """End the process, instead of ``start``."""
        self._end_child(time.monotonic() + timeout_s)

    def _run(self) -> None:
        self._guarded(leave_signals_to_the_engine)
        rhythm = Rhythm(self._outbox, self)
        while self._stop_at is None:
            rhythm.follow(self._guarded(self._step))
        deadline = self._stop_at
        self._guarded(lambda: self._finish(deadline))

    def _guarded(self, work: Callable[[], int]) -> int:
        """Run ``work``; whatever it raises is counted and logged, and the thread lives on."""
        try:
            return work()
        except BaseException:
            self.counters.sender_errors += 1
            if self.counters.sender_errors <= 10:
                logger.exception("kvevents: the feeder of stream %s goes on after", self._stream)
            time.sleep(STUCK_S)
            return 0

    def owes_receipts(self) -> bool:
        """Return whether the process has still to make room; see ``rhythm.Work``."""
        return bool(self._unsent)

    def is_stuck(self) -> bool:
        """Return whether the process takes nothing of what waits; see ``rhythm.Work``."""
        takes = self._is_open() and self._room() > 0
        return bool(self._unsent) or (not takes and bool(self._outbox.size()[0]))

    def longest_sleep_s(self, now: float) -> float:
        """Return how soon to look again; see ``rhythm.Work``."""
        # Also where something else holds the process's end of the connection, and nothing is heard.
        if not self.child.has_ended and self.child.is_gone():
            self.child.has_ended = True
            return RHYTHM_S
        return max(RHYTHM_S, self._retry_at - now) if self.child.has_ended else SLEEP_S

    # One step ----------------------------------------------------------------------------------

    def _step(self) -> int:
        """Do what can be done without waiting; return how many batches moved."""
        self._losses.look(self.counters.lost, self._outbox.lost, error=self._trouble())
        if self.child.has_ended and not self._is_replaced():
            return 0
        if not self._hand_over():
            return 0
        # As with a sink that is not ready, nothing is taken before the stream is open.
        if not self._is_open():
            return 0
        room = self._room()
        if room <= 0:
            return 0
        waiting = self._outbox.take(min(room, GROUP_BATCHES), GROUP_BYTES)
        self._alarms.look(waiting)
        self._encode(waiting)
        self._hand_over()
        return len(waiting)

    def _trouble(self) -> str | None:
        report = self.child.report
        return self.error or (None if report is None else report.facts.error)

    def _is_open(self) -> bool:
        report = self.child.report
        if report is None or self.child.has_ended:
            return False
        return report.facts.epoch is not None

    def _encode(self, waiting: list[Waiting]) -> None:
        parts: list[bytes] = []
        report = self.child.report
        limit = sys.maxsize
        if report is not None and report.max_message_bytes is not None:
            limit = report.max_message_bytes
        encode = self._encoder.encode

        def keep(payload: bytes, events: int) -> None:
            parts.extend(batch_frame(self._pending_loss, events, payload))
            self._pending_loss = 0
            self.fed_batches += 1
            self._fed_events += events

        for item in waiting:
            self._pending_loss += item.lost_before
            batch = item.batch
            try:
                try:
                    payload = encode(batch)
                except EncodeError:
                    payload = None
                if payload is not None and len(payload) <= limit:
                    keep(payload, count_events(batch))
                else:
                    keep_what_survives(self._encoder, batch, limit, keep=keep, lose=self._lose)
            except Exception:  # it costs itself, not the batches behind it
                self.counters.sender_errors += 1
                if self.counters.sender_errors <= 10:
                    logger.exception("kvevents: a batch of %s is lost by", self._stream)
                self._lose(stats.ENCODE, count_events(batch))
        if not waiting:
            self._pending_loss += self._outbox.take_tail_loss()
        if self._pending_loss:
            parts.append(loss_frame(self._pending_loss))
            self._pending_loss = 0
        self._unsent = b"".join(parts)

    def _lose(self, reason: str, events: int) -> None:
        self.counters.lose(reason, 1, events)
        self._pending_loss += 1

    def _hand_over(self) -> bool:
        """Hand over what fits of what is encoded; True if nothing is left."""
        if not self._unsent:
            return True
        try:
            self._went += self.child.write(self._unsent, self._went)
        except OSError:
            self.child.has_ended = True
            return False
        if self._went < len(self._unsent):
            return False
        self._unsent, self._went = b"", 0
        return True

    # Another process -----------------------------------------------------------------------------

    def _is_replaced(self) -> bool:
        """Put another process in the place of one that ended; False if that cannot be done now."""
        if self.error is None:
            self._notice_the_end()
        if self._superseded_by is not None:
            self._discard_superseded()
            return False
        if time.monotonic() < self._retry_at:
            return False
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)
        try:
            child = self._start_child(self._outbox.nudge, self._epoch_floor, self._gives_up)
        except Exception as failure:
            self.error = f"no sender process: {failure}"
            logger.error("kvevents: stream %s: %s", self._stream, self.error)  # noqa: TRY400
            return False
        with self.lock:
            self.child, self.error = child, None
        self._started_at = time.monotonic()
        return True

    def _notice_the_end(self) -> None:
        report = self.child.report
        if report is not None:
            self._superseded_by = report.facts.superseded_by
            self._epoch_floor = max(self._epoch_floor, report.facts.epoch or 0)
        how = self.child.kill()
        batches = self._bury(stats.SENDER_DIED)
        self.error = f"the sender process {self.child.pid} ended ({how})"
        logger.error(
            "kvevents: stream %s: %s with %d batches that nobody has confirmed; %s",
            self._stream,
            self.error,
            batches,
            "another one is started, and readers begin anew"
            if self._superseded_by is None
            else f"a newer publisher (epoch {self._superseded_by}) owns the stream",
        )
        now = time.monotonic()
        if now - self._started_at >= SOUND_AFTER_S:
            self._retry_at, self._retry_s = now, FIRST_RETRY_S

    def _gives_up(self) -> bool:
        """Whether shutdown no longer waits for a process that starts."""
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def _discard_superseded(self) -> None:
        for item in self._outbox.take(GROUP_BATCHES, GROUP_BYTES):
            self.counters.lose(stats.SUPERSEDED, 1, count_events(item.batch))

    def _bury(self, reason: str) -> int:
        """Count what the process leaves behind under ``reason``; return how many batches are lost."""
        with self.lock:
            return self._bury_locked(reason)

    def _bury_locked(self, reason: str) -> int:
        report = self.child.report
        facts = SendingFacts() if report is None else report.facts
        batches = self.unsettled_batches(report)
        settled = facts.published_events + sum(facts.lost_events.values())
        settled -= int(facts.published_batches > 0)  # the opening's event was nobody's
        counters = self.counters
        counters.lose(reason, batches, max(0, self._fed_events - settled) if batches else 0)
        counters.published_batches += facts.published_batches
        counters.published_events += facts.published_events
        counters.published_bytes += facts.published_bytes
        counters.sender_errors += facts.sender_errors
        for why, lost in facts.lost.items():
            counters.lose(why, lost, facts.lost_events.get(why, 0))
        self.fed_batches = self._fed_events = 0
        self._unsent, self._went = b"", 0
        # What it told of the stream stays true; what it counted is counted here now.
        told = SendingFacts(
            epoch=facts.epoch,
            next_seq=facts.next_seq,
            superseded_by=facts.superseded_by,
            error=facts.error,
        )
        self.child.report = Report(told, 0, None, {} if report is None else report.sink)
        return batches

    # The end -----------------------------------------------------------------------------------

    def _finish(self, deadline: float) -> int:
        while time.monotonic() < deadline and self._has_more():
            if not self._guarded(self._step):
                time.sleep(RHYTHM_S)
        self._end_child(deadline)
        self._bury(stats.UNCONFIRMED_AT_CLOSE)
        while waiting := self._outbox.take(GROUP_BATCHES, GROUP_BYTES):
            events = sum(count_events(item.batch) for item in waiting)
            self.counters.lose(stats.UNSENT_AT_CLOSE, len(waiting), events)
        return 0

    def _has_more(self) -> bool:
        return bool(self._outbox.size()[0] or self._unsent or self._outbox.has_tail_loss())

    def _end_child(self, deadline: float) -> None:
        child = self.child
        if not child.has_ended:
            self._unsent += end_frame()
            while (
                not self._hand_over() and not self.child.has_ended and time.monotonic() < deadline
            ):
                time.sleep(RHYTHM_S)
            child.end(max(0.1, deadline - time.monotonic()))
            if child.wait(max(0.0, deadline - time.monotonic()) + ENDING_S):
                return
            logger.error(
                "kvevents: the sender process %d of stream %s did not end in time and is killed",
                child.pid,
                self._stream,
            )
        child.kill()
