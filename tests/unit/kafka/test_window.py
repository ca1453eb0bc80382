"""What is under way, and the receipts it turns into."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvevents_core import Receipt
from kvevents_kafka.window import Sent, Window


def future(offset: int | None = None, error: Exception | None = None) -> Any:
    """Return a future that is done if it has an offset or an error."""
    done = offset is not None or error is not None
    return SimpleNamespace(
        is_done=done,
        exception=error,
        value=SimpleNamespace(offset=offset),
        add_callback=lambda _done: None,
    )


def filled(*futures: Any, first_seq: int = 0) -> Window:
    window = Window()
    for number, each in enumerate(futures):
        window.add(Sent(first_seq + number, 10, each))
    return window


def test_receipts_go_up_to_the_first_that_is_not_confirmed() -> None:
    """What comes behind an open record waits, so that receipts are in order."""
    window = filled(future(0), future(1), future(), future(3))
    assert window.take_confirmed() == [Receipt(0, 1)]
    assert window.take_confirmed() == []
    assert window.first_seq() == 2
    assert not window.is_settled()
    assert window.failed() is None


def test_a_failed_record_stops_the_receipts() -> None:
    """The first failed record is at the head, to be judged."""
    error = ValueError("no")
    window = filled(future(0), future(error=error), future(error=error))
    assert window.take_confirmed() == [Receipt(0, 0)]
    failed = window.failed()
    assert failed is not None
    assert failed.seq == 1
    window.drop_first()
    assert window.first_seq() == 2
    window.clear()
    assert window.first_seq() is None
    assert window.is_settled()


def test_numbers_with_a_hole_are_receipts_of_their_own() -> None:
    """A receipt never covers a number that was not sent."""
    window = Window()
    for seq in (3, 4, 9):
        window.add(Sent(seq, 10, future(seq)))
    assert window.take_confirmed() == [Receipt(3, 4), Receipt(9, 9)]


def test_the_own_run_ends_at_a_foreign_record() -> None:
    """The last offsets without a record of somebody else between them are known."""
    window = filled(future(5), future(6), future(9), future(10))
    window.take_confirmed()
    assert window.own_run == (9, 11)
    window.add(Sent(4, 10, future(11)))
    window.take_confirmed()
    assert window.own_run == (9, 12)


@given(st.lists(st.integers(1, 5), max_size=30), st.data())
def test_every_confirmed_number_gets_one_receipt(sizes: list[int], data: st.DataObject) -> None:
    """However confirmations are spread over calls, each number is told once, in order."""
    window, futures, told = Window(), [], []
    seq = 0
    for size in sizes:
        for _ in range(size):
            futures.append(future())
            window.add(Sent(seq, 1, futures[-1]))
            seq += 1
        ready = data.draw(st.integers(0, len(futures)))
        for number, each in enumerate(futures[:ready]):
            each.is_done, each.value.offset = True, number
        for receipt in window.take_confirmed():
            told += range(receipt.first_seq, receipt.last_seq + 1)
    assert told == list(range(len(told)))
    assert window.confirmed == len(told)
    assert len(window) == seq - len(told)
