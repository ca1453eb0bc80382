"""The window: bounds, receipts in any shape, re-sending in order, and sums that always agree."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvevents_core.backend import Receipt, Record
from kvevents_core.in_flight import InFlight, Settled
from kvevents_core.naming import StreamId

STREAM = StreamId("t", "m", "i", 0)


def record(seq: int, size_bytes: int = 10) -> Record:
    return Record(STREAM, 1, seq, b"x" * size_bytes)


def window(
    *, confirms: bool = True, max_batches: int = 100, max_bytes: int = 10_000, records: int = 0
) -> InFlight:
    """Return a window with ``records`` records waiting for the sink, two events each."""
    made = InFlight(confirms=confirms, max_batches=max_batches, max_bytes=max_bytes)
    for seq in range(records):
        made.add(record(seq), 2)
    return made


def seqs(settled: list[Settled]) -> list[int]:
    return [record.seq for group in settled for record in group.records]


def test_without_receipts_what_is_taken_is_settled() -> None:
    """A transport that confirms nothing settles a record when the client takes it."""
    made = window(confirms=False, records=3)
    settled = made.take(2)
    assert settled == [Settled([record(0), record(1)], 4, None)]
    assert made.size() == (1, 10)


@pytest.mark.parametrize("claimed", [4, 1000])
@pytest.mark.parametrize("confirms", [False, True])
def test_a_sink_that_claims_too_much_upsets_nothing(claimed: int, confirms: bool) -> None:
    """C17: a third party's sink says it took more than it was offered: the sums still agree."""
    made = window(confirms=confirms, records=3)
    assert seqs(made.take(claimed)) == ([] if confirms else [0, 1, 2])
    assert made.size() == ((3, 30) if confirms else (0, 0))


def test_receipts_may_come_in_any_order_and_more_than_once() -> None:
    """Ranges, single numbers, repeats and numbers never sent: each record is settled once."""
    made = window(records=10)
    made.take(10)
    receipts = [Receipt(5, 7), Receipt(6, 6), Receipt(0, 2**63), Receipt(3, 3, "late")]
    assert seqs(made.settle(receipts)) == [5, 6, 7, 0, 1, 2, 3, 4, 8, 9]
    assert made.is_empty()
    assert made.size() == (0, 0)


def test_a_huge_range_costs_no_more_than_what_waits() -> None:
    """A receipt for 2**63 numbers is applied at once."""
    made = window(records=3)
    made.take(3)
    assert seqs(made.settle([Receipt(0, 2**63)])) == [0, 1, 2]


def test_what_is_taken_back_stands_before_what_waits() -> None:
    """C18: unconfirmed records go first, in seq order, whatever order receipts came in."""
    made = window(records=6)
    made.take(4)
    made.settle([Receipt(1, 1)])
    made.take_back()
    assert [r.seq for r in made.offer()] == [0, 2, 3, 4, 5]
    assert made.size() == (5, 50)


def test_events_leave_with_their_records() -> None:
    """Settled, dropped or taken back: the events of a record are counted once, with it."""
    made = InFlight(confirms=True, max_batches=100, max_bytes=10_000)
    made.extend([record(seq) for seq in range(5)], [1, 2, 4, 8, 16])
    made.take(4)
    refused, delivered = made.settle([Receipt(1, 1, "no"), Receipt(0, 0)])
    assert refused == Settled([record(1)], 2, "no")
    assert delivered == Settled([record(0)], 1, None)
    made.take_back()
    made.take(1)
    assert made.drop_unconfirmed() == (1, 4)
    assert made.drop_pending() == (2, 24)
    assert made.size() == (0, 0)


class Window(RuleBasedStateMachine):
    """Any sequence of calls: nothing leaves twice or unseen, and the bounds hold."""

    def __init__(self) -> None:
        super().__init__()
        self.made = window(max_batches=5, max_bytes=100)
        self.next_seq = 0
        self.left: list[int] = []

    @rule(size_bytes=st.integers(1, 150))
    def add(self, size_bytes: int) -> None:
        self.made.add(record(self.next_seq, size_bytes), 1)
        self.next_seq += 1

    @rule(most=st.integers(0, 10))
    def take(self, most: int) -> None:
        offer = self.made.offer()
        before = self.made.size()[0] - len(self.made.pending)
        assert before + len(offer) <= 5
        assert [r.seq for r in offer] == [r.seq for r in list(self.made.pending)[: len(offer)]]
        assert self.made.take(min(most, len(offer))) == []

    @rule(first=st.integers(0, 30), length=st.integers(0, 5), rejected=st.none() | st.just("no"))
    def settle(self, first: int, length: int, rejected: str | None) -> None:
        self.left += seqs(self.made.settle([Receipt(first, first + length, rejected)]))

    @precondition(lambda self: self.next_seq > 0)
    @rule()
    def rebuild(self) -> None:
        self.made.take_back()
        waiting = [r.seq for r in self.made.pending]
        assert waiting == sorted(set(range(self.next_seq)) - set(self.left))

    @invariant()
    def sums_agree(self) -> None:
        records, size_bytes = self.made.size()
        assert records == self.next_seq - len(self.left)
        assert (size_bytes == 0) == (records == 0)
        assert len(set(self.left)) == len(self.left)


TestWindow = Window.TestCase
TestWindow.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, database=None
)
