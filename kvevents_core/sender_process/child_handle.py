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
import weakref
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
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

logger = logging.getLogger("kvevents")

START_S: Final = 60.0
"""Longest time until the process has opened its sink: an interpreter, imports, a bind."""
BUFFER_BYTES: Final = 4 * 2**20
"""What is asked for between the two processes; the system's own limit is often lower."""


class ChildHandle:
    """One sender process.

    Args:
        job: What ``pack_job`` made.
        news: Called, from a thread of this handle, with each report and when the process ended.
        gives_up: Asked while the process starts.

    Raises:
        KVEventsError: What opening the sink raised in the process.
        TransportError: The process could not be started or did not answer.
    """

    def __init__(self, job: bytes, news: Callable[[], None], gives_up: Callable[[], bool]) -> None:
        self._news = news
        self.report: Report | None = None
        self.has_ended = False
        """Whether it is gone; whatever was reported before stands."""
        self._ends: list[socket.socket | Connection] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        _handles.add(self)
        try:
            self._open(job, gives_up)
        except OSError as error:
            self.kill()
            if isinstance(error, TransportError):
                raise
            raise TransportError(f"no sender process can be started: {error}") from error
        except BaseException:
            self.kill()
            raise

    def _open(self, job: bytes, gives_up: Callable[[], bool]) -> None:
        ours, theirs = socket.socketpair()
        self._ends += [ours, theirs]
        self._control, their_control = (Connection(end.detach()) for end in socket.socketpair())
        self._ends += [self._control, their_control]
        with contextlib.suppress(OSError):
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        ours.setblocking(False)
        self.write = writer(ours)
        """Hand over some bytes from a place on; returns how much fitted. Raises OSError: it is gone."""
        self._process = _start(theirs.fileno(), their_control.fileno())
        self.pid = self._process.pid
        theirs.close()
        their_control.close()
        self._greet(job, gives_up)
        self._listener = threading.Thread(
            target=self._listen, name=f"kvevents-reports-{self.pid}", daemon=True
        )
        self._listener.start()

    def _greet(self, job: bytes, gives_up: Callable[[], bool]) -> None:
        try:
            self._control.send_bytes(job)
            answer = self._await_answer(gives_up)
        except (EOFError, ConnectionError) as error:
            raise TransportError(
                f"the sender process ended at its start, {self.kill()}; what it printed stands in "
                f"the log of this process"
            ) from error
        if len(answer) > 1:
            raise unpack_failure(answer)

    def _await_answer(self, gives_up: Callable[[], bool]) -> bytes:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and not gives_up():
            if self._control.poll(0.1):
                message = self._control.recv_bytes()
                if message[:1] == ANSWER:
                    return message
                self._take(message)
        raise TransportError(f"the sender process {self.pid} opened no sink in time")

    def _listen(self) -> None:
        try:
            while True:
                message = self._control.recv_bytes()
                try:
                    self._take(message)
                except Exception:
                    logger.exception(
                        "kvevents: a message of sender process %d is lost by", self.pid
                    )
                self._news()
        except (EOFError, OSError):
            pass
        finally:
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

    def is_gone(self) -> bool:
        """Return whether the process has ended, whoever still holds its end of the connection."""
        return self._process is None or self._process.poll() is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; True if it ended. What it reported last is then known."""
        if self._process is not None:
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        self.kill()
        return True

    def kill(self) -> str:
        """End it at once, free everything, and return how it had ended, or that it was killed."""
        if self._process is None:
            self._release()
            return "it was never there"
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        if self._listener is not None:
            self._listener.join(1.0)
        self._release()
        return _how(code)

    def disown(self) -> None:
        """Close, in a forked child, what keeps the process from noticing that its parent is gone."""
        if self._process is not None:
            self._process.returncode = 0  # not ours to wait for
        self._release()

    def _release(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):  # closed already
                end.close()


_handles: Final[weakref.WeakSet[ChildHandle]] = weakref.WeakSet()
"""All of this process, those that are being started included."""


def _disown_all() -> None:
    for handle in list(_handles):
        handle.disown()


os.register_at_fork(after_in_child=_disown_all)


def _start(data_fd: int, control_fd: int) -> subprocess.Popen[bytes]:
    interpreter = os.fsdecode(multiprocessing.spawn.get_executable() or sys.executable)
    # What the engine can import the process can, whatever was added to the path meanwhile.
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
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
