"""The reader's rule over any log: each batch once and in order, every hole told, one owner."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kvevents_core.backend import Arrival, Capabilities, Record, Source
from kvevents_core.events import BlockRemoved, KVEventBatch
from kvevents_core.items import Batch, Conflict, Gap, Item, Restarted
from kvevents_core.naming import StreamId
from kvevents_core.stream_reader import StreamReader
from kvevents_core.wire import BatchEncoder

STREAM = StreamId("t", "m", "i", 0)
ENCODER = BatchEncoder(0)


class Silence(Source):
    """A source without history."""

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        return []

    def close(self) -> None:
        return


def record(epoch: int, seq: int) -> Record:
    """The one record of this epoch and number: the same bytes whenever it comes."""
    batch = KVEventBatch(float(epoch * 1000 + seq), [BlockRemoved([epoch * 1000 + seq])])
    return Record(STREAM, epoch, seq, ENCODER.encode(batch))


def read(log: list[tuple[int, int]]) -> list[Item]:
    """Return what a reader of ``log`` (epoch, seq) is told."""
    reader = StreamReader(
        Silence(),
        Capabilities(carries_epoch=True, durable=True),
        expected={},
        next_seqs={},
        from_start=True,
        recover=True,
        silent_after_s=0,
    )
    return reader.take([record(epoch, seq) for epoch, seq in log])


logs = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=60)


@settings(max_examples=300, deadline=None)
@given(logs)
def test_any_log_is_read_without_repeats_and_with_every_hole_told(
    log: list[tuple[int, int]],
) -> None:
    """C40: in each epoch batches and gaps together are the numbers from 0 on, each once."""
    numbers: dict[int | None, list[int]] = {}
    for item in read(log):
        if isinstance(item, Batch):
            assert (item.epoch, item.seq) in log
            assert item.events == [BlockRemoved([(item.epoch or 0) * 1000 + item.seq])]
            numbers.setdefault(item.epoch, []).append(item.seq)
        elif isinstance(item, Gap):
            missing = range(item.first_seq, item.last_seq + 1)
            numbers.setdefault(item.epoch, []).extend(missing)
    for told in numbers.values():
        assert told == list(range(len(told)))


@settings(max_examples=300, deadline=None)
@given(logs)
def test_the_highest_epoch_owns_the_stream(log: list[tuple[int, int]]) -> None:
    """C19: epochs only rise; what a lower one still sends is dropped and told once for each."""
    owner: int | None = None
    conflicts = []
    for item in read(log):
        if isinstance(item, Restarted):
            assert item.previous_epoch == owner
            assert item.epoch is not None
            assert owner is None or item.epoch > owner
            owner = item.epoch
            conflicts = []
        elif isinstance(item, Conflict):
            conflicts.append(item.epoch)
        elif isinstance(item, Batch | Gap):
            owner = owner if owner is not None else item.epoch
            assert item.epoch == owner
        assert len(set(conflicts)) == len(conflicts)


@settings(max_examples=200, deadline=None)
@given(logs, st.integers(0, 60))
def test_reading_in_portions_changes_nothing(log: list[tuple[int, int]], cut: int) -> None:
    """C40: where one call of ``receive`` ends and the next begins cannot be told from the items."""
    reader = StreamReader(
        Silence(),
        Capabilities(carries_epoch=True, durable=True),
        expected={},
        next_seqs={},
        from_start=True,
        recover=True,
        silent_after_s=0,
    )
    records = [record(epoch, seq) for epoch, seq in log]
    assert reader.take(records[:cut]) + reader.take(records[cut:]) == read(log)
