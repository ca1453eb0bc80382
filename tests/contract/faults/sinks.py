"""Sinks that lose, mix, change or keep what they were given."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from contract.faults.planting import plant

from kvevents_core.backend import Receipt, Record, SinkHost, SinkStatus
from kvevents_core.memory import MemorySink


@plant("C1")
class SwapsTwoRecordsInAGroupOfSeven(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        group = list(records)
        if len(group) == 7:
            group[2], group[3] = group[3], group[2]
        taken = super().send(group)
        if taken:
            self._receipts[-1] = Receipt(records[0].seq, records[-1].seq)
        return taken


@plant("C1")
class SendsTheLastOfALargeGroupTwice(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        taken = super().send(records)
        if taken == 512:
            self._hub.append(records[-1:], self._settings.capacity)
        return taken


@plant("C1")
class RenumbersFromOne(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        if len(records) != 64:
            return super().send(records)
        taken = super().send([r._replace(seq=r.seq + 1) for r in records])
        self._receipts[-1] = Receipt(records[0].seq, records[-1].seq)
        return taken


@plant("C3")
class StripsTrailingZeros(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        return super().send([r._replace(payload=r.payload.rstrip(b"\0")) for r in records])


@plant("C4")
class SwallowsAfterClose(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        return len(records) if self._closed else super().send(records)


@plant("C5")
class FailsWhenClosedTwice(MemorySink):
    def close(self, timeout_s: float) -> None:
        if self._closed:
            self._closed = False
            raise RuntimeError("already closed")
        super().close(timeout_s)


@plant("C5")
class WaitsWhenClosedTwice(MemorySink):
    def close(self, timeout_s: float) -> None:
        if self._closed:
            time.sleep(timeout_s)
        super().close(timeout_s)


@plant("C6")
class BlocksInCloseWithoutAPeer(MemorySink):
    def close(self, timeout_s: float) -> None:
        if not self._hub.running and not self._closed:
            time.sleep(1.5)
        super().close(timeout_s)


@plant("C6")
class BlocksInFlushWithoutAPeer(MemorySink):
    def flush(self, timeout_s: float) -> bool:
        if not self._hub.running:
            time.sleep(1.5)
        return True


@plant("C6")
class NeverSaysThatItHasFlushed(MemorySink):
    def flush(self, timeout_s: float) -> bool:
        return False


@plant("C8")
class SendsEveryRankToRankZero(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        return super().send([r._replace(stream=_rank_zero(r)) for r in records])


def _rank_zero(record: Record) -> Any:
    stream = record.stream
    return type(stream)(stream.tenant, stream.model, stream.instance, 0)


@plant("C8")
class TakesADotForAnUnderscore(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        return super().send([r._replace(stream=_without_dots(r)) for r in records])


def _without_dots(record: Record) -> Any:
    stream = record.stream
    instance = stream.instance.replace(".", "_")
    return type(stream)(stream.tenant, stream.model, instance, stream.rank)


@plant("C9")
class KeepsTheFirstRecordItDidNotTake(MemorySink):
    _kept: Sequence[Record] = ()

    def send(self, records: Sequence[Record]) -> int:
        if self._hub.running and self._kept:
            self._hub.append(self._kept, self._settings.capacity)
            self._kept = ()
        taken = super().send(records)
        if taken == 0 and not self._hub.running and records:
            self._kept = records[:1]
        return taken


@plant("C12")
class NeverComesBackFromASecondOutage(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        return super().send(records) if self._hub.generation < 2 else 0


@plant("C12")
class LosesHalfOfWhatItBufferedInAnOutage(MemorySink):
    _buffer: Sequence[Record] = ()

    def send(self, records: Sequence[Record]) -> int:
        if self._hub.running or self._closed or records[0].payload[:9] != b"meanwhile":
            return super().send(records)
        self._buffer = (*self._buffer, *records)
        return len(records)

    def status(self) -> SinkStatus:
        if self._hub.running and self._buffer:
            buffer, self._buffer = self._buffer, ()
            self._hub.append(buffer[::2], self._settings.capacity)
            self._receipts.append(Receipt(buffer[0].seq, buffer[-1].seq))
        status = super().status()
        return _with(status, generation=0)


def _with(status: SinkStatus, **changes: Any) -> SinkStatus:
    fields = {name: getattr(status, name) for name in SinkStatus.__slots__}
    return SinkStatus(**{**fields, **changes})


@plant("C14")
class ConfirmsBeforeThePeerSaidYes(MemorySink):
    _buffer: Sequence[Record] = ()

    def send(self, records: Sequence[Record]) -> int:
        if self._closed or self._hub.running:
            return super().send(records)
        self._buffer = (*self._buffer, *records)
        self._receipts.append(Receipt(records[0].seq, records[-1].seq))
        return len(records)

    def status(self) -> SinkStatus:
        if self._hub.running and self._buffer:
            self._hub.append(self._buffer, self._settings.capacity)
            self._buffer = ()
        return super().status()


@plant("C14")
class ConfirmsWhatItDropped(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        if records and records[0].payload == b"confirm me" and len(records) == 10:
            taken = super().send(records[:9])
            self._receipts.append(Receipt(records[9].seq, records[9].seq))
            return taken + 1
        return super().send(records)


@plant("C18")
class SendsWhatItBufferedBackwards(MemorySink):
    _buffer: Sequence[Record] = ()

    def send(self, records: Sequence[Record]) -> int:
        if self._hub.running or self._closed:
            return super().send(records)
        if len(self._buffer) >= 500:
            return 0
        self._buffer = (*self._buffer, *records)
        return len(records)

    def status(self) -> SinkStatus:
        if self._hub.running and self._buffer:
            buffer, self._buffer = self._buffer, ()
            self._hub.append(buffer[::-1], self._settings.capacity)
            self._receipts.append(Receipt(buffer[0].seq, buffer[-1].seq))
        return _with(super().status(), generation=0)


@plant("C19")
class WritesAnotherEpoch(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        if self._superseded_by is None and records and not self._closed:
            newest = self._hub.last_epoch(self._stream) or 0
            if newest > (records[0].epoch or 0) + 1:
                return super().send(records)
        return super().send([r._replace(epoch=(r.epoch or 0) + 1) for r in records])


@plant("C19")
class NeverLooksForTheLastEpoch(MemorySink):
    def status(self) -> SinkStatus:
        return _with(super().status(), last_epoch=None)


@plant("C19")
class NeverLearnsOfASuccessor(MemorySink):
    def status(self) -> SinkStatus:
        return _with(super().status(), superseded_by=None)


@plant("C19")
class GivesWayToAnOlderEpoch(MemorySink):
    def status(self) -> SinkStatus:
        status = super().status()
        if self._hub.last_epoch(self._stream) == 1_700_000_001_000:
            return _with(status, superseded_by=1_700_000_000_000 + (not status.superseded_by))
        return status


class _LeaksAThread(MemorySink):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._end = threading.Event()

    def start(self, host: SinkHost) -> None:
        self._thread = threading.Thread(target=self._end.wait, args=(8.0,), daemon=True)
        self._thread.start()


@plant("C23")
class LeavesItsThread(_LeaksAThread):
    """The thread ends by itself after some seconds."""


@plant("C23")
class LeavesADescriptor(MemorySink):
    def start(self, host: SinkHost) -> None:
        self._read, self._write = os.pipe()

    def __del__(self) -> None:
        os.close(self._read)
        os.close(self._write)


@plant("C26")
class WaitsInSendWithoutAPeer(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        if not self._hub.running and not self._closed:
            time.sleep(0.1)
        return super().send(records)


@plant("C26")
class ToleratesOneThreadOnly(MemorySink):
    _thread: int | None = None

    def describe(self) -> dict[str, Any]:
        self._thread = self._thread or threading.get_ident()
        if self._thread != threading.get_ident():
            raise RuntimeError("not my thread")
        return super().describe()


@plant("C27")
class TellsNoTrouble(MemorySink):
    def status(self) -> SinkStatus:
        return _with(super().status(), error=None)


@plant("C27")
class AlwaysClaimsToBeConnected(MemorySink):
    def status(self) -> SinkStatus:
        return _with(super().status(), connected=True)


@plant("C27")
class WaitsForThePeerWhenOpened(MemorySink):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if not self._hub.running:
            time.sleep(1.2)


@plant("C28")
class ConfirmsTwice(MemorySink):
    def take_receipts(self) -> Sequence[Receipt]:
        receipts = super().take_receipts()
        return [*receipts, *receipts[-1:]]


@plant("C28")
class ConfirmsWhatWasNeverSent(MemorySink):
    def take_receipts(self) -> Sequence[Receipt]:
        receipts = list(super().take_receipts())
        return [*receipts, Receipt(10**9, 10**9)] if receipts else receipts


@plant("C29")
class RefusesTheLargestPayloadItStates(MemorySink):
    def send(self, records: Sequence[Record]) -> int:
        taken = super().send(records)
        if any(len(r.payload) == self._settings.max_message_bytes for r in records[:taken]):
            self._receipts[-1] = Receipt(records[0].seq, records[taken - 1].seq, "too_large")
        return taken


@plant("C29")
class TakesARefusalForAYes(MemorySink):
    def take_receipts(self) -> Sequence[Receipt]:
        return [receipt._replace(rejected=None) for receipt in super().take_receipts()]


@plant("C32")
class DescribesItselfInBytes(MemorySink):
    def describe(self) -> dict[str, Any]:
        return {"hub": self._settings.hub.encode()}
