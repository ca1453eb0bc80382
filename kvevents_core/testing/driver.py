"""Drives one sink exactly as core does, on the test's own thread, and remembers all it was told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from kvevents_core.backend import Receipt, Record, Sink, SinkHost
from kvevents_core.in_flight import InFlight, Settled
from kvevents_core.naming import StreamId
from kvevents_core.replay import ReplayRing

GROUP: int = 512
_RING_BATCHES: int = 10_000
_BYTES: int = 32 * 1024 * 1024


class SinkDriver:
    """Core's sender without its thread: numbers payloads, offers them, takes receipts.

    Args:
        sink: A sink just opened; it is started here.
        stream: Its stream.
        confirms: The backend's capability.
        epoch: The epoch wanted; raised above the log's last one. None: the clock's.
        patience_s: Longest wait for what must happen.
    """

    def __init__(
        self,
        sink: Sink,
        stream: StreamId,
        *,
        confirms: bool,
        epoch: int | None = None,
        patience_s: float = 10.0,
    ) -> None:
        self.sink = sink
        self.stream = stream
        self.epoch: int | None = None
        self.next_seq = 0
        self.receipts: list[Receipt] = []
        """All receipts so far, as they came."""
        self.delivered: set[int] = set()
        """Numbers of the records that left the window and are not lost."""
        self.rejected: dict[int, str] = {}
        """Number of each record that the transport refused, and why."""
        self.ring = ReplayRing(_RING_BATCHES, _BYTES)
        self.patience_s = patience_s
        self._wanted_epoch = epoch
        self._generation = 0
        self._woken = threading.Event()
        self._window = InFlight(confirms=confirms, max_batches=4096, max_bytes=_BYTES)
        host = SinkHost(
            wake=self._woken.set,
            epoch=lambda: self.epoch,
            history=self.ring,
            identity="conformance:1",
            engine="kvevents",
        )
        sink.start(host)

    def wait_ready(self) -> None:
        """Wait until the sink is ready, and choose the epoch as core does."""
        self.run_until(lambda: self.epoch is not None, "the sink is ready")

    def number(self, payloads: Iterable[bytes]) -> list[Record]:
        """Return the next records of the stream; nothing is offered yet."""
        if self.epoch is None:
            self.wait_ready()
        records = []
        for payload in payloads:
            record = Record(self.stream, self.epoch, self.next_seq, payload)
            self.next_seq += 1
            self.ring.append(record)
            records.append(record)
        return records

    def queue(self, payloads: Iterable[bytes]) -> list[Record]:
        """Number ``payloads`` and put them before the sink; ``step`` offers them."""
        records = self.number(payloads)
        for record in records:
            self._window.add(record, 1)
        return records

    def send(self, payloads: Iterable[bytes]) -> list[Record]:
        """Queue ``payloads`` and wait until the sink took all of them."""
        records = self.queue(payloads)
        self.run_until(lambda: not self._window.pending, f"the sink takes {len(records)} records")
        return records

    def settle(self) -> None:
        """Wait until every record sent has a receipt, or was pushed out if there are none."""
        self.run_until(self._window.is_empty, "every record has a receipt")
        self.sink.flush(self.patience_s)

    def is_settled(self) -> bool:
        """Return whether no record waits, neither for the sink nor for a receipt."""
        return self._window.is_empty()

    def run_until(self, condition: Callable[[], bool], what: str) -> None:
        """Step until ``condition`` holds; fail after ``patience_s``."""
        deadline = time.monotonic() + self.patience_s
        while True:
            self.step()
            if condition():
                return
            if time.monotonic() > deadline:
                status = self.sink.status()
                raise AssertionError(f"not within {self.patience_s} s: {what} ({status})")
            self._woken.wait(0.005)
            self._woken.clear()

    def run_for(self, duration_s: float) -> None:
        """Step for a while, whatever happens."""
        deadline = time.monotonic() + duration_s
        while time.monotonic() < deadline:
            self.step()
            self._woken.wait(0.005)
            self._woken.clear()

    def step(self) -> int:
        """Do one round of core's work; return how many records the sink took."""
        status = self.sink.status()
        if self.epoch is None:
            if not status.ready:
                return 0
            above = -1 if status.last_epoch is None else status.last_epoch
            wanted = time.time_ns() // 1_000_000 if self._wanted_epoch is None else 0
            self.epoch = max(wanted, self._wanted_epoch or 0, above + 1)
        if status.superseded_by is not None:
            return 0
        receipts = list(self.sink.take_receipts())
        self.receipts += receipts
        self._note(self._window.settle(receipts))
        if status.generation != self._generation:
            self._generation = status.generation
            self._window.take_back()
        offer = self._window.offer()[:GROUP]
        taken = self.sink.send(offer) if offer else 0
        self._note(self._window.take(taken))
        return taken

    def _note(self, settled: Iterable[Settled]) -> None:
        for group in settled:
            seqs = [record.seq for record in group.records]
            if group.rejected is None:
                self.delivered.update(seqs)
            else:
                self.rejected.update(dict.fromkeys(seqs, group.rejected))
