"""The sender process: ``Sender`` and sink as in a thread, with an ``Inbox`` for an outbox.

It ends when the engine's process says so or is gone, after sending what it was handed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from kvevents_core.errors import ConfigError, DecodeError
from kvevents_core.events import KVEventBatch
from kvevents_core.sender_process.frames import MOST_ON_THE_WAY, Encoded
from kvevents_core.sender_process.inbox import Inbox
from kvevents_core.sender_process.messages import (
    ANSWER,
    Job,
    LogLine,
    Report,
    pack_failure,
    pack_log,
    pack_report,
    unpack_job,
    unpack_report,
)
from kvevents_core.sender_thread import SenderThread
from kvevents_core.wire import BatchDecoder, BatchEncoder
from kvevents_core.wire.split import SplitBatch

if TYPE_CHECKING:
    from kvevents_core.outbox import Waiting

logger = logging.getLogger("kvevents")

LOOK_S: Final = 0.02
"""How often it looks whether there is something to report, while there is."""
MOST_LOG_LINES: Final = 1000
REPORT_S: Final = 0.1
"""Least time between two reports while counters go on moving: the engine's process must take its
interpreter lock for each."""
IDLE_LOOK_S: Final = 0.25
IDLE_AFTER_S: Final = 1.0


class EncodedAlready(BatchEncoder):
    """Hands on what the engine's process encoded; encodes openings and heartbeats itself."""

    def encode(self, batch: Encoded | KVEventBatch) -> bytes:
        """Return the payload of ``batch``."""
        return batch.payload if isinstance(batch, Encoded) else super().encode(batch)

    def split(self, batch: Encoded, max_message_bytes: int) -> SplitBatch:
        """Cut what was encoded under a higher limit, or none, than the transport has now."""
        try:
            whole = BatchDecoder().decode(batch.payload).batch
        except DecodeError:
            return SplitBatch([], len(batch.events), 0)
        return super().split(whole, max_message_bytes)


class NoAlarms:
    """The engine's process looks at the batches itself."""

    def look(self, taken: Iterable[Waiting] = ()) -> None:
        """Look at nothing."""


class LogToEngine(logging.Handler):
    """Keeps what is logged until the main thread hands it to the engine, whose operator reads one log.

    No thread of a client writes to the connection: it could be full, and a line may be logged from
    within another one, by a destructor for instance.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: queue.SimpleQueue[LogLine] = queue.SimpleQueue()
        self._dropped = 0

    def createLock(self) -> None:  # noqa: N802 - logging's own name
        """Have no lock: what ``emit`` does needs none, and a destructor may log inside it."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Keep ``record`` as one text."""
        try:
            if self._lines.qsize() >= MOST_LOG_LINES:
                self._dropped += 1
                return
            self._lines.put(LogLine(record.name, record.levelno, self.format(record)))
        except Exception:
            self.handleError(record)

    def take(self) -> Iterator[LogLine]:
        """Give what was kept."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._lines.get_nowait()
        dropped, self._dropped = self._dropped, 0
        if dropped:
            text = f"kvevents: {dropped} more lines of the sender process were not kept"
            yield LogLine("kvevents", logging.WARNING, text)


class SenderMain:
    """One stream's sender, seen from inside its process."""

    def __init__(
        self, job: Job, data: socket.socket, control: Connection, log: LogToEngine
    ) -> None:
        self._job = job
        self._control = control
        self._log = log
        self._inbox = Inbox(data)
        config = job.config
        self._sending = SenderThread(
            config,
            job.stream,
            backlog=self._inbox,
            encoder=EncodedAlready(
                job.stream.rank, dialect=config.dialect, omit_token_ids=config.omit_token_ids
            ),
            alarms=NoAlarms(),
            pid=job.parent,
            clock=lambda: max(time.time_ns() // 1_000_000, job.epoch_floor + 1),
        )
        self._sending.start()
        self._seen: Report | None = None
        self._told: Report | None = None
        self._told_at = 0.0
        self._has_faulted = False

    def run(self) -> None:
        """Report until told to end; then send what is left and end."""
        timeout_s = self._job.config.shutdown_timeout_s
        changed_at = time.monotonic()
        with contextlib.suppress(EOFError, OSError):  # the engine's process is gone
            while os.getppid() == self._job.parent:
                now = time.monotonic()
                if self.tell(now):
                    changed_at = now
                busy = now - changed_at < IDLE_AFTER_S
                if self._control.poll(LOOK_S if busy else IDLE_LOOK_S):
                    timeout_s = float(self._control.recv())
                    break
        self._inbox.close()
        # Told of while it goes on: should closing hang, what was sent before is known.
        ending = threading.Thread(target=self._sending.stop, args=(timeout_s,), daemon=True)
        ending.start()
        with contextlib.suppress(OSError):
            while ending.is_alive():
                ending.join(LOOK_S)
                self.tell(time.monotonic())
            self.tell(time.monotonic(), whatever=True)
        ending.join()

    def tell(self, now: float, *, whatever: bool = False) -> bool:
        """Send what was logged, and how things stand if that is news, or ``whatever``.

        Returns:
            Whether anything changed since the last call.

        Raises:
            OSError: The engine's process is gone.
        """
        for line in self._log.take():
            self._control.send_bytes(pack_log(line))
        report = self._now()
        moves = report != self._seen
        self._seen = report
        if whatever or self._is_due(report, moves=moves, now=now):
            self._control.send_bytes(self._packed(report))
            self._told, self._told_at = report, now
        return moves

    def _is_due(self, report: Report, *, moves: bool, now: float) -> bool:
        told = self._told
        if report == told:
            return False
        return (
            told is None
            or not moves  # it has come to rest
            or now - self._told_at >= REPORT_S
            or _condition(report) != _condition(told)
            or report.numbered_batches - told.numbered_batches >= MOST_ON_THE_WAY // 4
        )

    def _packed(self, report: Report) -> bytes:
        try:
            packed = pack_report(report)
            unpack_report(packed)
        except Exception as error:  # a package's fault, which must not cost the stream
            fault = f"what the sink tells of itself cannot be passed on: {error!r}"
            if not self._has_faulted:
                self._has_faulted = True
                logger.error("kvevents: stream %s: %s", self._job.stream, fault)  # noqa: TRY400
            return pack_report(report.without_what_a_sink_said(fault))
        return packed

    def _now(self) -> Report:
        # First of all: what is numbered in between is then counted twice, not missed.
        numbered = self._inbox.numbered_batches
        return Report(
            self._sending.facts(),
            numbered,
            self._sending.sender.status.max_message_bytes,
            self._sending.describe(),
        )


def _condition(report: Report) -> tuple[object, ...]:
    facts = report.facts
    return (
        facts.epoch,
        facts.connected,
        facts.superseded_by,
        facts.error,
        facts.alive,
        report.max_message_bytes,
    )


def main(data_fd: int, control_fd: int) -> None:
    """Run the sender process on the two descriptors that it inherited."""
    # Its end is the engine's to say, or the engine's own; a process that replaces another was
    # started from a thread that leaves signals to the engine.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Waking up must not take the processor of the engine's thread, which wakes it.
    with contextlib.suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    data, control, log = socket.socket(fileno=data_fd), Connection(control_fd), LogToEngine()
    with contextlib.suppress(EOFError, OSError):  # the engine's process is gone
        _serve(data, control, log)
    # Whatever a client library left running must not keep the process.
    os._exit(0)


def _serve(data: socket.socket, control: Connection, log: LogToEngine) -> None:
    packed = control.recv_bytes()
    try:
        job = _job_of(packed)
        logging.basicConfig(level=job.log_level, handlers=[log], format="%(message)s")
        made = SenderMain(job, data, control, log)
    except BaseException as error:
        for line in log.take():
            control.send_bytes(pack_log(line))
        control.send_bytes(pack_failure(error))
        return
    made.tell(time.monotonic())
    control.send_bytes(ANSWER)
    made.run()


def _job_of(packed: bytes) -> Job:
    try:
        return unpack_job(packed)
    except Exception as error:
        raise ConfigError(
            f"this publisher cannot run in a process of its own: what it is made of is not found "
            f'there ({type(error).__name__}: {error}); leave "sender" at "thread"',
            key="sender",
        ) from error
