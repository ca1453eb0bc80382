"""The sender process: ``Sender`` and sink as in a thread, with an ``Inbox`` for an outbox.

It ends when the engine's process says so or is gone, after sending what it was handed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from kvevents_core.events import KVEventBatch
from kvevents_core.sender_process.frames import Encoded
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
)
from kvevents_core.sender_thread import SenderThread
from kvevents_core.wire import BatchEncoder
from kvevents_core.wire.split import SplitBatch

if TYPE_CHECKING:
    from kvevents_core.outbox import Waiting

logger = logging.getLogger("kvevents")

LOOK_S: Final = 0.02
"""How often it looks whether there is something to report, while there is."""
REPORT_S: Final = 0.1
"""Least time between two reports that tell of nothing but counters: the engine's process must take
its interpreter lock for each."""
IDLE_LOOK_S: Final = 0.25
IDLE_AFTER_S: Final = 1.0


class EncodedAlready(BatchEncoder):
    """Hands on what the engine's process encoded; encodes openings and heartbeats itself."""

    def encode(self, batch: Encoded | KVEventBatch) -> bytes:
        """Return the payload of ``batch``."""
        return batch.payload if isinstance(batch, Encoded) else super().encode(batch)

    def split(self, batch: Any, max_message_bytes: int) -> SplitBatch:
        """Return that nothing fits: what was too large had been cut before, by an older limit."""
        return SplitBatch([], len(batch.events), 0)


class NoAlarms:
    """The engine's process looks at the batches itself."""

    def look(self, taken: Iterable[Waiting] = ()) -> None:
        """Look at nothing."""


class Control:
    """What goes to the engine's process; any thread may send."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def send(self, message: bytes) -> None:
        """Send ``message``; OSError: the engine's process is gone."""
        with self._lock:
            self.connection.send_bytes(message)


class LogToEngine(logging.Handler):
    """Hands log records to the engine's process, whose operator reads its log and no other."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Send ``record`` as one text; with nobody to read it, it is dropped."""
        with contextlib.suppress(OSError, ValueError):
            line = LogLine(record.name, record.levelno, self.format(record))
            self._control.send(pack_log(line))


class SenderMain:
    """One stream's sender, seen from inside its process."""

    def __init__(self, job: Job, data: socket.socket, control: Control) -> None:
        self._job = job
        self._control = control
        self._inbox = Inbox(data)
        config = job.config
        self._sending = SenderThread(
            config,
            job.stream,
            backlog=self._inbox,
            encoder=EncodedAlready(job.stream.rank, dialect=config.dialect),
            alarms=NoAlarms(),
        )
        self._sending.start()
        self._last: Report | None = None
        self._reported_at = 0.0

    def run(self) -> None:
        """Report until told to end; then send what is left and end."""
        timeout_s = self._job.config.shutdown_timeout_s
        changed_at = time.monotonic()
        with contextlib.suppress(EOFError, OSError):  # the engine's process is gone
            while os.getppid() == self._job.parent:
                now = time.monotonic()
                if self._report(now):
                    changed_at = now
                busy = now - changed_at < IDLE_AFTER_S
                if self._control.connection.poll(LOOK_S if busy else IDLE_LOOK_S):
                    timeout_s = float(self._control.connection.recv())
                    break
        self._inbox.close()
        self._sending.stop(timeout_s)
        with contextlib.suppress(OSError):
            self._control.send(pack_report(self._now()))

    def _report(self, now: float) -> bool:
        """Send how things stand if that is news; True if anything changed since the last report."""
        report, last = self._now(), self._last
        if report == last:
            return False
        is_urgent = last is None or _condition(report) != _condition(last)
        if is_urgent or now - self._reported_at >= REPORT_S:
            self._control.send(pack_report(report))
            self._last, self._reported_at = report, now
        return True

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the engine, which then says when to end
    # Waking up must not take the processor of the engine's thread, which wakes it.
    with contextlib.suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    data, control = socket.socket(fileno=data_fd), Control(Connection(control_fd))
    try:
        job = unpack_job(control.connection.recv_bytes())
        logging.basicConfig(
            level=job.log_level, handlers=[LogToEngine(control)], format="%(message)s"
        )
        made = SenderMain(job, data, control)
    except BaseException as error:
        control.send(pack_failure(error))
        sys.exit(1)
    control.send(ANSWER)
    made.run()
    # Whatever a client library left running must not keep the process.
    logging.shutdown()
    os._exit(0)
