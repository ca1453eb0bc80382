"""The engine process that the demo starts: ``python -m kvevents_core.simulation.process``.

Reads its job and its orders from standard input, reports on standard output (``job`` describes
both). It ends when it is told to or when its parent is gone, whichever comes first.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final, TextIO

from kvevents_core.errors import KVEventsError, TransportError
from kvevents_core.gate import RankGate
from kvevents_core.settings import KVEventsConfig
from kvevents_core.simulation import evidence
from kvevents_core.simulation.engine import SimulatedEngine
from kvevents_core.simulation.job import GO, Job
from kvevents_core.simulation.traffic import Request

_PROGRESS_S: Final = 0.25
_DRAIN_S: Final = 15.0
_EXIT_S: Final = 5.0
"""Longest time between the order to stop and the end of the process."""


class Reporter(logging.Handler):
    """Writes one JSON object a line; warnings of the libraries go the same way. Any thread."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(logging.WARNING)
        self._out = out

    def report(self, kind: str, **facts: Any) -> None:
        """Write one message; a parent that is gone is no error, its absence is noticed elsewhere."""
        line = json.dumps({"kind": kind, **facts}, default=str)
        with self.lock:  # type: ignore[union-attr]  # logging.Handler always makes one
            try:
                self._out.write(line + "\n")
                self._out.flush()
            except (OSError, ValueError):
                return

    def emit(self, record: logging.LogRecord) -> None:
        """Report a log record."""
        self.report("log", level=record.levelname, message=record.getMessage())


class EngineProcess:
    """One engine process from its job to its end."""

    def __init__(self, job: Job, reporter: Reporter) -> None:
        self.job = job
        self.go = threading.Event()
        self.stop = threading.Event()
        self._report = reporter.report
        self._next_report_s = 0.0

    def obey(self, orders: TextIO) -> None:
        """Set the events as orders arrive; the end of ``orders`` means stop. Own thread."""
        for line in orders:
            if line.strip() != GO:
                break
            self.go.set()
        self.stop.set()
        self.go.set()
        time.sleep(_EXIT_S)
        os._exit(1)

    def run(self) -> int:
        """Live as an engine process does and return the exit code."""
        threads = evidence.count_threads()
        try:
            config = KVEventsConfig.from_mapping(self.job.config)
            engine = SimulatedEngine(
                RankGate.resolve(config, self.job.claimed),
                self.job.capacity_blocks,
                self.job.block_size,
            )
        except KVEventsError as exc:
            self._report(
                "failed",
                error=str(exc),
                error_type=type(exc).__name__,
                address=exc.address if isinstance(exc, TransportError) else None,
                publishes=self.job.claimed.is_publisher,
            )
            return 1
        try:
            self._report("ready", **self._holdings(engine, threads))
            self.go.wait()
            engine.run(self._traffic(engine), self.stop)
            self._drain(engine)
            self._report(
                "done",
                dump=sorted(engine.cache.dump()),
                **self._progress(engine),
                **self._holdings(engine, threads),
            )
            self.stop.wait()
        finally:
            engine.publisher.shutdown()
        return 0

    def _traffic(self, engine: SimulatedEngine) -> Iterator[Request]:
        for index, request in enumerate(self.job.traffic()):
            if index == self.job.flush_before:
                engine.flush_cache()
            if time.monotonic() >= self._next_report_s:
                self._next_report_s = time.monotonic() + _PROGRESS_S
                self._report("progress", **self._progress(engine))
            yield request

    def _drain(self, engine: SimulatedEngine) -> None:
        """Wait until everything published is on the wire, so that the dump can be compared."""
        deadline_s = time.monotonic() + _DRAIN_S
        while time.monotonic() < deadline_s and not self.stop.is_set():
            stats = engine.publisher.stats()
            waiting = stats.queued_batches or stats.in_flight_batches
            if not waiting or stats.superseded_by is not None:
                return
            self.stop.wait(0.02)

    def _progress(self, engine: SimulatedEngine) -> dict[str, Any]:
        stats = engine.publisher.stats()
        return {
            "requests": engine.requests,
            "hit_blocks": engine.hit_blocks,
            "prompt_blocks": engine.prompt_blocks,
            "cached_blocks": len(engine.cache),
            "recorded_events": engine.cache.recorded_events,
            "metrics": asdict(engine.metrics),
            "published_batches": stats.published_batches,
            "published_events": stats.published_events,
            "published_bytes": stats.published_bytes,
            "lost": dict(stats.lost),
            "next_seq": stats.next_seq,
            "epoch": stats.epoch,
            "superseded_by": stats.superseded_by,
            "error": stats.error,
        }

    def _holdings(self, engine: SimulatedEngine, threads_before: int | None) -> dict[str, Any]:
        """Return who this process is and what it holds open, by the system's own account."""
        sockets = evidence.socket_inodes()
        threads = evidence.count_threads()
        started = None if threads is None or threads_before is None else threads - threads_before
        return {
            "pid": os.getpid(),
            "publishes": engine.gate.publishes,
            "stream_rank": self.job.claimed.stream_rank,
            "describe": engine.publisher.describe() if engine.gate.publishes else {},
            "sockets": None if sockets is None else len(sockets),
            "listening": evidence.listening_addresses(),
            "publisher_threads": started,
        }


def main() -> int:
    """Run one engine process on standard input and output."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not break the protocol
    reporter = Reporter(out)
    logging.getLogger().addHandler(reporter)
    process = EngineProcess(Job.from_line(sys.stdin.readline()), reporter)
    threading.Thread(target=process.obey, args=(sys.stdin,), name="orders", daemon=True).start()
    return process.run()


if __name__ == "__main__":
    sys.exit(main())
