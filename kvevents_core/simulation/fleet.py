"""All processes of one simulated engine, as their parent sees them.

It starts them, passes orders on, collects what they report and ends them. They are children of
this process in sessions of their own: an interrupt at the terminal reaches the parent alone, which
ends them in order, and if the parent dies their standard input ends and so do they.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from kvevents_core.simulation.job import GO, STOP, Job

_STOP_S: Final = 8.0
"""A process that has not ended this long after the order to stop is killed."""

Message = tuple[int, dict[str, Any]]
"""Index of the process, and what it reported; ``{"kind": "exited", "code": n}`` comes last."""


class Fleet:
    """The processes of one engine, in the order of ``jobs``. Use it as a context manager."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = tuple(jobs)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen[str]] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        try:
            for index, job in enumerate(self.jobs):
                self._start(index, job)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids, in the order of the jobs."""
        return tuple(process.pid for process in self._processes)

    def go(self) -> None:
        """Let every process begin to serve."""
        for process in self._processes:
            self._order(process, GO)

    def messages(self) -> list[Message]:
        """Return what the processes reported since the last call; never waits."""
        messages = []
        while True:
            try:
                messages.append(self._messages.get_nowait())
            except queue.Empty:
                return messages

    def close(self) -> None:
        """End every process, by force if need be, and free everything; quiet when called again."""
        for process in self._processes:
            self._order(process, STOP)
            self._close_orders(process)
        deadline_s = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for thread in self._threads:
            thread.join()
        for process in self._processes:
            if process.stdout:
                process.stdout.close()

    def _start(self, index: int, job: Job) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "kvevents_core.simulation.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._processes.append(process)
        thread = threading.Thread(
            target=self._collect, args=(index, process), name=f"engine-{index}", daemon=True
        )
        self._threads.append(thread)
        thread.start()
        self._order(process, job.to_line())

    def _collect(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                message = {"kind": "log", "level": "WARNING", "message": line.rstrip()}
            self._messages.put((index, message))
        self._messages.put((index, {"kind": "exited", "code": process.wait()}))

    def _order(self, process: subprocess.Popen[str], order: str) -> None:
        if process.stdin is None or process.stdin.closed:
            return
        try:
            process.stdin.write(order + "\n")
            process.stdin.flush()
        except OSError:
            return  # it has ended; its exit code is reported

    def _close_orders(self, process: subprocess.Popen[str]) -> None:
        if process.stdin is None:
            return
        try:
            process.stdin.close()
        except OSError:
            return
