"""The reader's rules, with a source the test writes by hand."""

from __future__ import annotations

import pytest
from history_source import RANK0, RANK1, HistorySource, brief, reader, record

from kvevents_core.backend import Malformed, PeersCounted, Reconnected, Record
from kvevents_core.items import Batch


def test_a_gap_without_history_is_told_before_the_batch_that_revealed_it() -> None:
    """The batch after a hole is handed out once, behind the gap."""
    assert brief(reader().take([record(0), record(3), record(4)])) == [0, ("gap", 1, 2), 3, 4]


def test_a_gap_is_recovered_before_anything_later_in_portions() -> None:
    """History fills the hole in order; nothing comes twice."""
    history = HistorySource([record(n) for n in range(8)])
    subject = reader(history)
    assert brief(subject.take([record(0), record(6), record(7)])) == list(range(8))
    assert history.asked == [0, 1, 3, 5]  # first whether it is the same life
    assert subject.stats.replayed_batches == 5


def test_what_history_lost_is_a_gap_and_the_rest_is_recovered() -> None:
    """A ring that has rolled over: the missing beginning is named exactly."""
    history = HistorySource([record(n) for n in range(4, 8)])
    assert brief(reader(history).take([record(7)])) == [("gap", 0, 3), 4, 5, 6, 7]


def test_history_that_begins_after_the_gap_takes_nothing_from_live_traffic() -> None:
    """The ring has rolled over what is missing: only that is a gap, the rest comes live."""
    history = HistorySource([record(n) for n in range(8, 10)])
    live = [record(n) for n in range(3, 10)]
    assert brief(reader(history).take(live)) == [("gap", 0, 2), *range(3, 10)]


def test_a_dead_replay_socket_is_not_asked_again_at_once() -> None:
    """After a failed recovery there is a pause, and the stream goes on with a gap."""
    history = HistorySource([])
    history.answers = False
    subject = reader(history)
    assert brief(subject.take([record(2), record(5)])) == [("gap", 0, 1), 2, ("gap", 3, 4), 5]
    assert history.asked == [0]


def test_a_late_joiner_gets_the_history_of_an_idle_publisher() -> None:
    """Connected for the first time: history comes without any live batch."""
    history = HistorySource([record(0), record(1), record(2)], epoch=9)
    items = reader(history).take([Reconnected(0, first=True)])
    assert brief(items) == [0, 1, 2]
    assert all(isinstance(item, Batch) and item.epoch == 9 for item in items)


def test_what_history_lost_may_still_come_live_before_it_is_called_a_gap() -> None:
    """Connected in time but read late: the ring has rolled over, the socket holds it all."""
    clock = [0.0]
    history = HistorySource([record(3), record(4)], epoch=9)
    subject = reader(history, clock=clock)
    assert brief(subject.take([Reconnected(0, first=True)])) == []
    live = [record(n) for n in range(5)]
    assert brief(subject.take(live)) == [0, 1, 2, 3, 4]


def test_history_that_lost_its_beginning_is_handed_out_when_nothing_comes_live() -> None:
    """An idle publisher with a ring that has rolled over: a gap, then what is left."""
    clock = [0.0]
    history = HistorySource([record(3), record(4)], epoch=9)
    subject = reader(history, clock=clock)
    subject.take([Reconnected(0, first=True)])
    clock[0] = 1.0
    assert brief(subject.take([])) == [("gap", 0, 2), 3, 4]


def test_two_ranks_on_one_socket_have_numbers_of_their_own() -> None:
    """Interleaved 0, 0, 1, 1 is no gap: the rank is in the batch."""
    items = reader().take([record(n, rank=r) for n in (0, 1) for r in (0, 1)])
    assert brief(items) == [0, 0, 1, 1]
    assert [item.stream for item in items] == [RANK0, RANK1] * 2


def test_a_restart_with_fewer_batches_is_told_and_starts_at_0() -> None:
    """Numbers going backwards in another life: Restarted, never a conflict or silence."""
    subject = reader()
    subject.take([record(n) for n in range(5)])
    assert brief(subject.take([record(0, life=9), record(1, life=9)])) == [
        ("restarted", None),
        0,
        1,
    ]


def test_a_restart_with_more_batches_is_told_when_the_connection_was_made_anew() -> None:
    """Without replay, a reconnect followed by anything but the next number is a restart."""
    subject = reader()
    subject.take([record(0), record(1)])
    assert brief(subject.take([Reconnected(0), record(5, life=9)])) == [
        ("restarted", None),
        ("gap", 0, 4),
        5,
    ]


def test_a_reconnect_followed_by_the_next_number_is_no_restart() -> None:
    """A short break of the connection costs nothing."""
    subject = reader()
    subject.take([record(0)])
    assert brief(subject.take([Reconnected(0), record(1), record(2)])) == [1, 2]


def test_the_publishers_epoch_tells_a_restart_at_once_and_history_fills_it() -> None:
    """With the extension request the new life is known on reconnect, before any live batch."""
    history = HistorySource([record(0)], epoch=1)
    subject = reader(history)
    subject.take([Reconnected(0, first=True)])
    history.epoch, history.history = 2, [record(n, life=9) for n in range(3)]
    assert brief(subject.take([Reconnected(0), record(2, life=9)])) == [
        ("restarted", 2),
        0,
        1,
        2,
    ]


def test_the_same_number_with_other_bytes_from_two_publishers_is_a_conflict_told_once() -> None:
    """Reader binds, two publishers connect: the second one's batches are dropped."""
    subject = reader()
    items = subject.take(
        [PeersCounted(0, 2), record(0), record(0, life=9), record(1), record(1, life=9)]
    )
    assert brief(items) == [0, ("conflict", 0), 1]
    assert subject.stats.conflicts == 2


def test_the_same_number_with_the_same_bytes_is_a_duplicate() -> None:
    """Dropped, counted, and no conflict."""
    subject = reader()
    assert brief(subject.take([PeersCounted(0, 2), record(0), record(0)])) == [0]
    assert subject.stats.duplicates == 1


def test_epochs_in_the_records_a_higher_one_takes_over_and_a_lower_one_is_dropped() -> None:
    """C19: one clean stream: Restarted once, Conflict once, nothing of the old publisher."""
    subject = reader(carries_epoch=True)
    items = subject.take(
        [
            record(0, epoch=5),
            record(0, epoch=6),
            record(1, epoch=5),
            record(1, epoch=6),
            record(2, epoch=5),
        ]
    )
    assert brief(items) == [0, ("restarted", 6), 0, ("conflict", 1), 1]
    assert subject.stats.conflicts == 2


def test_an_undecodable_batch_is_a_gap_of_its_own_number() -> None:
    """Counted, skipped, the stream goes on."""
    subject = reader()
    broken = Record(RANK0, None, 1, b"\xc1")
    assert brief(subject.take([record(0), broken, record(2)])) == [0, ("gap", 1, 1), 2]
    assert subject.stats.undecodable == 1


def test_nonsense_frames_are_counted_and_change_nothing() -> None:
    """A malformed message costs itself."""
    subject = reader()
    assert brief(subject.take([record(0), Malformed(0, "two frames"), record(1)])) == [0, 1]
    assert subject.stats.malformed == 1


def test_a_stream_that_says_nothing_is_silent_once_until_heard_again() -> None:
    """An expected stream that never came counts too; an idle one with heartbeats does not."""
    clock = [0.0]
    subject = reader(silent_after_s=3.0, clock=clock)
    assert brief(subject.silences()) == []
    clock[0] = 3.5
    assert brief(subject.silences()) == [("silent", 0)]
    assert brief(subject.silences()) == []
    subject.take([record(0)])
    clock[0] = 8.0
    assert brief(subject.silences()) == [("silent", 0)]


@pytest.mark.parametrize("from_start", [True, False])
def test_from_now_on_takes_the_first_record_as_it_comes(from_start: bool) -> None:
    """start=latest asks for no history and reports no gap before the first batch."""
    items = reader(from_start=from_start).take([record(5), record(6)])
    assert brief(items) == ([("gap", 0, 4)] if from_start else []) + [5, 6]


def test_a_position_goes_on_where_it_was_taken() -> None:
    """The next number and epoch of each stream, as text keys."""
    subject = reader(carries_epoch=True)
    subject.take([record(0, epoch=5), record(1, epoch=5)])
    assert subject.position() == {str(RANK0): (5, 2)}


def test_where_records_carry_epochs_a_gap_after_a_reconnect_is_a_gap() -> None:
    """C19: only a higher epoch is a restart there, whatever the connection went through."""
    subject = reader(carries_epoch=True)
    items = subject.take([record(0, epoch=5), Reconnected(0), record(3, epoch=5)])
    assert brief(items) == [0, ("gap", 1, 2), 3]
