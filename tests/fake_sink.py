"""A sink whose peer the test controls, and a sender that drives it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvevents_core.alarms import Alarms
from kvevents_core.backend import Receipt, Record, Sink, SinkHost, SinkStatus
from kvevents_core.errors import ClosedError
from kvevents_core.in_flight import InFlight
from kvevents_core.naming import StreamId
from kvevents_core.numbering import Numbering
from kvevents_core.outbox import Outbox
from kvevents_core.replay import ReplayRing
from kvevents_core.sender import Sender
from kvevents_core.stats import SenderCounters
from kvevents_core.wire import BatchDecoder, BatchEncoder

STREAM = StreamId("tenant", "model", "instance", 0)


class FakeSink(Sink):
    """Takes what ``room`` allows; confirms when the test says so."""

    def __init__(self) -> None:
        self.state = SinkStatus(ready=True, connected=True)
        self.room: int | None = None
        self.sent: list[Record] = []
        self.receipts: list[Receipt] = []
        self.raises: BaseException | None = None
        self.host: SinkHost | None = None
        self.closed = False

    def start(self, host: SinkHost) -> None:
        self.host = host

    def status(self) -> SinkStatus:
        return self.state

    def become(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)
        if self.host is not None:
            self.host.wake()

    def send(self, records: Sequence[Record]) -> int:
        if self.closed:
            raise ClosedError("closed")
        if self.raises is not None:
            raise self.raises
        count = len(records) if self.room is None else min(self.room, len(records))
        if self.room is not None:
            self.room -= count
        self.sent.extend(records[:count])
        return count

    def take_receipts(self) -> Sequence[Receipt]:
        receipts, self.receipts = self.receipts, []
        return receipts

    def close(self, timeout_s: float) -> None:
        self.closed = True

    @property
    def seqs(self) -> list[int]:
        return [record.seq for record in self.sent]

    def events(self, index: int) -> list[object]:
        return BatchDecoder().decode(self.sent[index].payload).batch.events


class Line:
    """Outbox, numbering, window and sender around a ``FakeSink``; the thread is not started."""

    def __init__(
        self,
        *,
        confirms: bool = False,
        capacity: int = 1000,
        window: int = 1000,
        window_bytes: int = 1 << 30,
        heartbeat_s: float = 0.0,
        now_ms: int = 1_000,
    ) -> None:
        self.sink = FakeSink()
        self.counters = SenderCounters()
        self.outbox = Outbox(capacity, 1 << 30, "drop_newest")
        self.ring = ReplayRing(100, 1 << 30)
        self.in_flight = InFlight(confirms=confirms, max_batches=window, max_bytes=window_bytes)
        self.numbering = Numbering(
            STREAM,
            BatchEncoder(0),
            in_flight=self.in_flight,
            ring=self.ring,
            counters=self.counters,
        )
        self.sender = Sender(
            STREAM,
            self.sink,
            outbox=self.outbox,
            numbering=self.numbering,
            in_flight=self.in_flight,
            ring=self.ring,
            counters=self.counters,
            alarms=Alarms(STREAM),
            engine="test",
            pid=1,
            heartbeat_s=heartbeat_s,
            clock=lambda: now_ms,
        )

    def step(self) -> int:
        return self.sender._step()
