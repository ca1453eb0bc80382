"""Faults that need a transport with topics, replay, garbage or one owner of an address."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from contract.faults.planting import plant
from contract.zmq_place import ZmqPlace

from kvevents_core.backend import Arrival, Head, Malformed, Record
from kvevents_core.naming import StreamId
from kvevents_zmq import ZmqBackend
from kvevents_zmq.sink import ZmqSink
from kvevents_zmq.source import ZmqSource


class _Faulty(ZmqBackend):
    name = "faulty"
    sink: type[ZmqSink] = ZmqSink
    source: type[ZmqSource] = ZmqSource

    def open_sink(self, settings: Any, stream: Any) -> ZmqSink:
        return self.sink(settings, stream)

    def open_source(self, settings: Any, reader: Any) -> ZmqSource:
        return self.source(settings, reader)


@plant("C2", place=ZmqPlace.on_ipc)
class LosesTheEmptyTopic(_Faulty):
    class sink(ZmqSink):
        """Faulty."""

        def send(self, records: Sequence[Record]) -> int:
            if self._topic or self._closed:
                return super().send(records)
            for record in records:
                self._pub.send_multipart([record.seq.to_bytes(8, "big"), record.payload])
            return len(records)


@plant("C13", place=ZmqPlace.on_ipc)
class LosesTheLastReplayedRecord(_Faulty):
    class source(ZmqSource):
        """Faulty."""

        def recover(
            self, channel: int, stream: StreamId, first_seq: int, timeout_s: float
        ) -> Sequence[Record] | None:
            found = super().recover(channel, stream, first_seq, timeout_s)
            return found and found[:-1]


@plant("C13", place=ZmqPlace.on_ipc)
class ReplaysOtherBytes(_Faulty):
    class source(ZmqSource):
        """Faulty."""

        def recover(
            self, channel: int, stream: StreamId, first_seq: int, timeout_s: float
        ) -> Sequence[Record] | None:
            found = super().recover(channel, stream, first_seq, timeout_s)
            return found and [r._replace(payload=r.payload.upper()) for r in found]


@plant("C13", place=ZmqPlace.on_ipc)
class TellsTheWrongHead(_Faulty):
    class source(ZmqSource):
        """Faulty."""

        def head(self, channel: int, timeout_s: float) -> Head | None:
            found = super().head(channel, timeout_s)
            return found and Head(found.stream, found.epoch, found.first_seq, found.next_seq - 1)


@plant("C36", place=ZmqPlace.on_ipc)
class SaysNothingOfGarbage(_Faulty):
    class source(ZmqSource):
        """Faulty."""

        def receive(self, timeout_s: float) -> Sequence[Arrival]:
            return [a for a in super().receive(timeout_s) if not isinstance(a, Malformed)]


@plant("C36", place=ZmqPlace.on_ipc)
class DiesOfGarbage(_Faulty):
    class source(ZmqSource):
        """Faulty."""

        def receive(self, timeout_s: float) -> Sequence[Arrival]:
            found = super().receive(timeout_s)
            if any(isinstance(a, Malformed) for a in found):
                raise ValueError("not three frames")
            return found
