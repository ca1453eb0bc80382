"""The reader's rules where lives of a publisher meet: late notices, leftovers, lost ends."""

from __future__ import annotations

import pytest
from history_source import RANK0, HistorySource, brief, reader, record

from kvevents_core.backend import PeersCounted, Reconnected, Record


@pytest.mark.parametrize("replay", [True, False])
def test_what_waited_in_the_socket_belongs_to_the_former_life(replay: bool) -> None:
    """A restart is told where the new life begins, not where the notice came.

    A reader that lags hears of the reconnect before it has read the old batches
    (llm-d/llm-d-router#2853).
    """
    history = HistorySource([record(n) for n in range(2)], epoch=1)
    subject = reader(history if replay else None)
    subject.take([record(0), record(1)])
    history.epoch, history.history = 2, [record(n, life=9) for n in range(7)]
    items = subject.take([Reconnected(0), record(2), record(3), record(6, life=9)])
    new = list(range(7)) if replay else [("gap", 0, 5), 6]
    assert brief(items) == [2, 3, ("restarted", 2 if replay else None), *new]


@pytest.mark.parametrize("already_sent", [2, 4, 9])
def test_leftovers_of_the_former_life_are_dropped_and_are_no_conflict(already_sent: int) -> None:
    """No old batch passes for one of the new life, whatever its number is there.

    Where the reader binds, what is left of the old connection comes in turns with the new one.
    """
    history = HistorySource([record(n) for n in range(4)], epoch=1)
    subject = reader(history)
    subject.take([Reconnected(0, first=True)])
    history.epoch, history.history = 2, [record(n, life=9) for n in range(already_sent)]
    subject.take([PeersCounted(0, 1), Reconnected(0)])
    assert brief(subject.take([])) == [("restarted", 2), *range(already_sent)]
    history.history.append(record(already_sent, life=9))
    leftovers = [record(n) for n in (4, 5, 6)]
    items = subject.take([*leftovers, record(already_sent, life=9)])
    assert brief(items) == [already_sent]
    assert subject.stats.outdated == 3
    assert subject.stats.conflicts == 0


def test_a_restart_of_a_stock_engine_shows_although_its_numbers_follow_on() -> None:
    """No epoch and the very next number: history no longer holds the last batch as it came."""
    history = HistorySource([record(n) for n in range(3)])
    subject = reader(history)
    subject.take([record(n) for n in range(3)])
    history.history = [record(n, life=9) for n in range(4)]
    subject.take([Reconnected(0)])
    assert brief(subject.take([])) == [("restarted", None), 0, 1, 2, 3]
    history.history.append(record(4, life=9))
    assert brief(subject.take([record(3, life=9), record(4, life=9)])) == [4]


def test_a_broken_connection_to_a_stock_engine_is_no_restart() -> None:
    """History still holds the last batch as it came: what was missed is fetched, nothing else."""
    history = HistorySource([record(n) for n in range(5)])
    subject = reader(history)
    subject.take([record(n) for n in range(3)])
    subject.take([Reconnected(0)])
    assert brief(subject.take([])) == [3, 4]
    assert brief(subject.take([record(5)])) == [5]


def test_a_lost_end_is_fetched_once_the_stream_is_quiet() -> None:
    """The transport dropped the end of a burst: history is asked once, not again and again.

    Nothing follows that would show it (zeromq/libzmq#1156).
    """
    clock = [0.0]
    history = HistorySource([record(n) for n in range(4)], epoch=1)
    subject = reader(history, clock=clock)
    subject.take([record(0), record(1)])
    assert brief(subject.take([])) == []
    clock[0] = 1.5
    assert brief(subject.take([])) == [2, 3]
    asked = len(history.asked)
    clock[0] = 100.0
    assert brief(subject.take([])) == []
    assert len(history.asked) == asked


def test_nonsense_on_a_socket_of_several_ranks_is_nobodys_batch() -> None:
    """No stream restarts because of it; the one it belonged to shows the gap.

    Whose number an unreadable batch had is unknown (ai-dynamo/dynamo#5873).
    """
    subject = reader()
    subject.take([record(n, rank=0) for n in range(9)])
    subject.take([record(n, rank=1) for n in range(2)])
    broken = Record(RANK0, None, 2, b"\xc1")
    items = subject.take([broken, record(9, rank=0), record(3, rank=1)])
    assert brief(items) == [9, ("gap", 2, 2), 3]
    assert subject.stats.undecodable == 1


def test_a_new_connection_ends_the_pause_after_a_failed_recovery() -> None:
    """The publisher was down when it was asked for history; its next life is asked at once."""
    clock = [0.0]
    history = HistorySource([record(0), record(1)], epoch=1)
    subject = reader(history, clock=clock)
    subject.take([record(0), record(1)])
    clock[0], history.answers = 1.5, False
    assert brief(subject.take([])) == []
    history.answers, history.epoch, history.history = (
        True,
        2,
        [record(n, life=9) for n in range(4)],
    )
    items = subject.take([Reconnected(0), record(3, life=9)])
    assert brief(items) == [("restarted", 2), 0, 1, 2, 3]
