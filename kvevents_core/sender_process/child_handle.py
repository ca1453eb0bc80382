"""The sender process as the engine's process sees it: started, fed, listened to, ended.

Started by ``exec`` and not by a mere fork: an engine has threads, and a device that a forked child
cannot use.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.spawn
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Final

from kvevents_core.errors import TransportError
from kvevents_core.sender_process.held_write import writer
from kvevents_core.sender_process.messages import (
    ANSWER,
    LOG,
    REPORT,
    Report,
    unpack_failure,
    unpack_log,
    unpack_report,
)

START_S: Final = 60.0
"""Longest time until the process has opened its sink: an interpreter, imports, a bind."""
BUFFER_BYTES: Final = 4 * 2**20
"""What is asked for between the two processes; the system's own limit is often lower."""


class ChildHandle:
    """One sender process.

    Args:
        job: What ``pack_job`` made.
        news: Called, from a thread of this handle, with each report and when the process ended.

    Raises:
        KVEventsError: What opening the sink raised in the process.
        TransportError: The process could not be started or did not answer.
    """

    def __init__(self, job: bytes, news: Callable[[], None]) -> None:
        self._news = news
        self.report: Report | None = None
        self.has_ended = False
        """Whether it is gone; whatever was reported before stands."""
        ours, theirs = socket.socketpair()
        control, their_control = (Connection(end.detach()) for end in socket.socketpair())
        self._data, self._control = ours, control
        try:
            self._process = _start(theirs.fileno(), their_control.fileno())
        except OSError as error:
            self._release()
            raise TransportError(f"no sender process can be started: {error}") from error
        finally:
            theirs.close()
            their_control.close()
        self.pid = self._process.pid
        try:
            self._greet(job)
        except BaseException:
            self.kill()
            raise
        with contextlib.suppress(OSError):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        self.write = writer(ours)
        """Hand over as much of some bytes as fits; returns how much. Raises OSError: it is gone."""
        self._listener = threading.Thread(
            target=self._listen, name=f"kvevents-reports-{self.pid}", daemon=True
        )
        self._listener.start()

    def _greet(self, job: bytes) -> None:
        deadline = time.monotonic() + START_S
        try:
            self._control.send_bytes(job)
            while True:
                if not self._control.poll(max(0.0, deadline - time.monotonic())):
                    raise TransportError(
                        f"the sender process {self.pid} opened no sink within {START_S:.0f} s"
                    )
                answer = self._control.recv_bytes()
                if answer[:1] == ANSWER:
                    break
                self._take(answer)
        except (EOFError, ConnectionError) as error:
            code = self._process.wait()
            raise TransportError(
                f"the sender process ended at its start, {_how(code)}; what it printed stands in "
                f"the log of this process"
            ) from error
        if len(answer) > 1:
            raise unpack_failure(answer)

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._take(self._control.recv_bytes())
                self._news()
        self.has_ended = True
        self._news()

    def _take(self, message: bytes) -> None:
        if message[:1] == REPORT:
            self.report = unpack_report(message)
        elif message[:1] == LOG:
            line = unpack_log(message)
            logging.getLogger(line.logger).log(line.level, "%s", line.text)

    def end(self, timeout_s: float) -> None:
        """Have it send what it has within ``timeout_s`` and end."""
        with contextlib.suppress(OSError):
            self._control.send(timeout_s)

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; True if it ended. What it reported last is then known."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            self._listener.join(1.0)
            self._release()
            return True
        return False

    def kill(self) -> str:
        """End it at once, free everything, and return how it had ended, or that it was killed."""
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        listener = getattr(self, "_listener", None)
        if listener is not None:
            listener.join(1.0)
        self._release()
        return _how(code)

    def disown(self) -> None:
        """Close, in a forked child, what keeps the process from noticing that its parent is gone."""
        self._process.returncode = 0  # not ours to wait for
        self._release()

    def _release(self) -> None:
        self._data.close()
        self._control.close()


def _start(data_fd: int, control_fd: int) -> subprocess.Popen[bytes]:
    interpreter = os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable)
    # What the engine can import the process can, whatever was added to the path meanwhile.
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(  # noqa: S603 - our own module, in the interpreter that runs this
        [
            interpreter,
            "-P",
            "-m",
            "kvevents_core.sender_process",
            str(data_fd),
            str(control_fd),
        ],
        env={**os.environ, "PYTHONPATH": path},
        pass_fds=(data_fd, control_fd),
        stdin=subprocess.DEVNULL,
        # Not in the terminal's group: Ctrl-C is for the engine, which then says when to end.
        start_new_session=True,
    )


def _how(code: int) -> str:
    if code < 0:
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
    return f"with code {code}"
