"""A source whose history the test writes by hand, a reader over it, and items in short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvevents_core.backend import Arrival, Capabilities, Head, Record, Source
from kvevents_core.events import BlockRemoved, KVEventBatch
from kvevents_core.items import Batch, Conflict, Gap, Item, Restarted, Silent
from kvevents_core.naming import StreamId
from kvevents_core.stream_reader import StreamReader
from kvevents_core.wire import BatchEncoder

RANK0 = StreamId("t", "m", "i", 0)
RANK1 = StreamId("t", "m", "i", 1)


def record(
    seq: int, *, epoch: int | None = None, rank: int = 0, channel: int = 0, life: float = 0.0
) -> Record:
    batch = KVEventBatch(life + seq, [BlockRemoved([seq + (1 << 40)])])
    return Record(RANK0, epoch, seq, BatchEncoder(rank).encode(batch), channel)


class HistorySource(Source):
    """Answers ``head`` and ``recover`` from a list; counts what it was asked."""

    def __init__(self, history: Sequence[Record] = (), epoch: int | None = None) -> None:
        self.history = list(history)
        self.epoch = epoch
        self.answers = True
        self.asked: list[int] = []

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return ()

    def channels(self) -> Mapping[int, StreamId]:
        return {0: RANK0}

    def head(self, channel: int, timeout_s: float) -> Head | None:
        if not self.answers or self.epoch is None:
            return None
        seqs = [r.seq for r in self.history]
        return Head(RANK0, self.epoch, min(seqs, default=0), max(seqs, default=-1) + 1)

    def recover(
        self, channel: int, stream: StreamId, first_seq: int, timeout_s: float
    ) -> Sequence[Record] | None:
        self.asked.append(first_seq)
        if not self.answers:
            return None
        return [r._replace(epoch=self.epoch) for r in self.history if r.seq >= first_seq][:2]

    def close(self) -> None:
        return


def reader(
    source: Source | None = None,
    *,
    carries_epoch: bool = False,
    from_start: bool = True,
    silent_after_s: float = 0.0,
    clock: list[float] | None = None,
) -> StreamReader:
    now = clock or [0.0]
    return StreamReader(
        source or HistorySource(),
        Capabilities(replays=isinstance(source, HistorySource), carries_epoch=carries_epoch),
        expected={RANK0: 0},
        next_seqs={},
        from_start=from_start,
        recover=True,
        silent_after_s=silent_after_s,
        clock=lambda: now[0],
    )


def brief(items: list[Item]) -> list[object]:
    shown: list[object] = []
    for item in items:
        match item:
            case Batch():
                shown.append(item.seq)
            case Gap():
                shown.append(("gap", item.first_seq, item.last_seq))
            case Restarted():
                shown.append(("restarted", item.epoch))
            case Conflict():
                shown.append(("conflict", item.seq))
            case Silent():
                shown.append(("silent", item.stream.rank))
    return shown
