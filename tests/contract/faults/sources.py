"""Sources that lose, mix, change or die."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contract.faults.planting import plant

from kvevents_core.backend import Arrival, ReaderOptions, Record
from kvevents_core.memory import MemorySource
from kvevents_core.naming import StreamId


@plant("C4")
class LooksQuietAfterClose(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return [] if self._closed else super().receive(timeout_s)


@plant("C5")
class FailsWhenASourceIsClosedTwice(MemorySource):
    def close(self) -> None:
        if self._closed:
            self._closed = False
            raise RuntimeError("already closed")
        super().close()


@plant("C8")
class SaysRankZeroOfEveryRecord(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return [_as_rank_zero(found) for found in super().receive(timeout_s)]


def _as_rank_zero(found: Arrival) -> Arrival:
    if not isinstance(found, Record):
        return found
    stream = found.stream
    return found._replace(stream=StreamId(stream.tenant, stream.model, stream.instance, 0))


@plant("C33")
class DropsARecordNowAndThen(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        found = super().receive(timeout_s)
        return [a for a in found if not isinstance(a, Record) or a.seq % 150 != 149]


@plant("C33")
class ForgetsTheEpoch(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        found = super().receive(timeout_s)
        return [a._replace(epoch=0) if isinstance(a, Record) else a for a in found]


@plant("C33")
class HandsOutAGroupBackwards(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return list(super().receive(timeout_s))[::-1]


@plant("C34")
class StartsInTheMiddle(MemorySource):
    def __init__(self, settings: Any, reader: ReaderOptions) -> None:
        super().__init__(settings, reader)
        if reader.start == "earliest" and self._hub.records:
            self._offset = len(self._hub.records) // 2


@plant("C34")
class ReadsTheOldWhenAskedForTheLatest(MemorySource):
    def __init__(self, settings: Any, reader: ReaderOptions) -> None:
        super().__init__(settings, reader)
        if reader.start == "latest":
            self._offset = 0


@plant("C34")
class ResumesOneTooEarly(MemorySource):
    def position(self) -> dict[str, Any]:
        return {"offset": max(0, self._offset - 1)}


@plant("C35")
class StaysDeafAfterARestart(MemorySource):
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return [] if self._hub.generation else super().receive(timeout_s)


@plant("C35")
class RaisesWhenThePeerStops(MemorySource):
    _heard = False

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        if not self._hub.running and self._heard:
            raise ConnectionError("the hub is gone")
        found = super().receive(timeout_s)
        self._heard = self._heard or bool(found)
        return found


@plant("C32")
class TellsItsPositionInBytes(MemorySource):
    def position(self) -> Any:
        return {"offset": self._offset, "raw": b"0"}
