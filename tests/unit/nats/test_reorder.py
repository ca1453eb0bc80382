"""Late records find their place; what cannot come is not waited for for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvevents_core import Record, StreamId
from kvevents_nats.reorder import Reorder, Stored

STREAM = StreamId("t", "m", "i", 0)


def stored(seq: int, *, epoch: int = 1, after: int | None = None, at: int = 0) -> Stored:
    """Return a record of the stream as read from the log."""
    return Stored(Record(STREAM, epoch, seq, b""), after, at or seq + 1)


def seqs(released: list[Stored]) -> list[int]:
    """Return the seqs of what was passed on."""
    return [s.record.seq for s in released]


def test_records_in_order_pass_at_once() -> None:
    """Records in order pass at once."""
    reorder = Reorder(1.0, 10)
    assert [seqs(reorder.push(stored(i), 0.0)) for i in (5, 6, 7)] == [[5], [6], [7]]


def test_a_late_record_is_put_back_into_its_place() -> None:
    """A late record is put back into its place."""
    reorder = Reorder(1.0, 10)
    reorder.push(stored(0), 0.0)
    assert seqs(reorder.push(stored(2), 0.0)) == []
    assert reorder.lowest_held() == 3
    assert seqs(reorder.push(stored(1, at=9), 0.0)) == [1, 2]
    assert reorder.lowest_held() is None


def test_a_hole_the_publisher_meant_is_not_waited_for() -> None:
    """A hole the publisher meant is not waited for."""
    reorder = Reorder(1.0, 10)
    reorder.push(stored(0), 0.0)
    assert seqs(reorder.push(stored(5, after=0), 0.0)) == [5]


def test_a_meant_hole_behind_an_unmeant_one_waits_with_it() -> None:
    """A meant hole behind an unmeant one waits with it."""
    reorder = Reorder(1.0, 10)
    reorder.push(stored(0), 0.0)
    assert seqs(reorder.push(stored(5, after=1), 0.0)) == []
    assert seqs(reorder.push(stored(1), 0.0)) == [1, 5]


def test_waiting_ends_with_time_or_number() -> None:
    """Waiting ends with time or number."""
    reorder = Reorder(1.0, 3)
    reorder.push(stored(0), 0.0)
    reorder.push(stored(2), 10.0)
    assert reorder.due(10.9) == []
    assert seqs(reorder.due(11.0)) == [2]
    for seq in (4, 5):
        assert reorder.push(stored(seq), 20.0) == []
    assert seqs(reorder.push(stored(6), 20.0)) == [4, 5, 6]


def test_what_is_held_is_bounded_in_bytes_too() -> None:
    """A hole before large batches is given up early."""
    reorder = Reorder(1.0, 1000, limit_bytes=100)
    reorder.push(stored(0), 0.0)
    large = Stored(Record(STREAM, 1, 2, bytes(60)), None, 3)
    assert reorder.push(large, 0.0) == []
    assert seqs(reorder.push(large._replace(record=large.record._replace(seq=3)), 0.0)) == [2, 3]


def test_a_new_epoch_lets_go_of_the_old_one_first() -> None:
    """A new epoch lets go of the old one first."""
    reorder = Reorder(1.0, 10)
    reorder.push(stored(0), 0.0)
    reorder.push(stored(2), 0.0)
    released = reorder.push(stored(0, epoch=2), 0.0)
    assert [(s.record.epoch, s.record.seq) for s in released] == [(1, 2), (2, 0)]
    assert seqs(reorder.push(stored(7, epoch=1), 0.0)) == [7], "the reader's core judges it"


@given(st.permutations(range(12)))
def test_nothing_is_lost_whatever_the_order(order: list[int]) -> None:
    """Nothing is lost whatever the order."""
    reorder = Reorder(1.0, 100)
    released = [s for seq in order for s in reorder.push(stored(seq), 0.0)]
    released += reorder.due(2.0)
    assert sorted(seqs(released)) == list(range(12))
    start = order[0]
    assert [s for s in seqs(released) if s > start] == list(range(start + 1, 12))
