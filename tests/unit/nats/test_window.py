"""The window between send and acknowledgement keeps order and forgets nothing."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvevents_core import Receipt, Record, StreamId
from kvevents_nats.window import Window

STREAM = StreamId("t", "m", "i", 0)


def record(seq: int, size: int = 1) -> Record:
    """Return a record of the stream."""
    return Record(STREAM, 1, seq, b"x" * size)


def seqs(popped: list[tuple[Record, int | None]]) -> list[int]:
    """Return the seqs of what is to be published."""
    return [record.seq for record, _ in popped]


def window(room: int = 10) -> Window:
    """Return an open window."""
    made = Window(lambda: None)
    made.open(room)
    return made


def test_nothing_is_taken_before_the_window_is_open() -> None:
    """Nothing is taken before the window is open."""
    assert Window(lambda: None).put([record(0)], None) == 0


def test_only_what_has_room_is_taken() -> None:
    """Only what has room is taken."""
    made = window(room=2)
    assert made.put([record(0), record(1), record(2)], None) == 2
    assert made.put([record(2)], None) == 0
    assert seqs(made.pop(10)) == [0, 1]
    assert made.settle(0)
    assert made.put([record(2)], None) == 1


def test_runs_of_acknowledgements_become_one_receipt() -> None:
    """Runs of acknowledgements become one receipt."""
    made = window()
    made.put([record(i) for i in range(5)], None)
    made.pop(10)
    for seq in (0, 1, 3, 4, 2):
        made.settle(seq)
    assert made.take_receipts() == [Receipt(0, 1), Receipt(3, 4), Receipt(2, 2)]
    assert made.take_receipts() == []


def test_a_record_above_the_limit_is_rejected_and_the_others_go_on() -> None:
    """A record above the limit is rejected and the others go on."""
    made = window()
    assert made.put([record(0), record(1, 100), record(2)], 50) == 3
    assert made.take_receipts() == [Receipt(1, 1, "too_large")]
    assert seqs(made.pop(10)) == [0, 2]


def test_seqs_that_will_never_come_are_marked_also_when_sent_again() -> None:
    """Left out by core, refused here, or refused by the server: the next record says so."""
    made = window()
    made.put([record(0), record(3), record(4, 100), record(5), record(9)], 50)
    assert [(r.seq, after) for r, after in made.pop(10)] == [(0, None), (3, 0), (5, 3), (9, 5)]
    made.settle(0)
    made.settle(5, "too_large")
    made.give_up()
    made.open(10)
    made.put([record(3), record(9), record(10)], 50)
    assert [(r.seq, after) for r, after in made.pop(10)] == [(3, 0), (9, 5), (10, None)]


def test_a_record_that_became_too_large_leaves_a_marked_hole() -> None:
    """The limit was lowered while it was on its way."""
    made = window()
    made.put([record(0), record(1, 100), record(2)], None)
    made.pop(10)
    made.give_up()
    made.open(10)
    made.put([record(0), record(1, 100), record(2)], 50)
    assert [(r.seq, after) for r, after in made.pop(10)] == [(0, None), (2, 0)]


def test_giving_up_raises_the_generation_only_if_something_was_unsettled() -> None:
    """Giving up raises the generation only if something was unsettled."""
    made = window()
    made.give_up()
    assert made.generation == 0
    made.open(10)
    made.put([record(0)], None)
    made.give_up()
    assert made.generation == 1
    assert made.wait_empty(0)


def test_after_giving_up_nothing_may_overtake_what_must_be_sent_again() -> None:
    """After giving up nothing may overtake what must be sent again."""
    made = window()
    made.put([record(0), record(1), record(2)], None)
    made.pop(2)
    made.settle(0)
    made.give_up()
    made.open(10)
    assert made.put([record(3)], None) == 0, "core has not seen the new generation yet"
    assert made.put([record(1), record(2)], None) == 2
    assert made.put([record(3)], None) == 1


def test_once_core_knows_the_generation_its_offer_is_trusted() -> None:
    """It may have dropped what it would have had to send again."""
    made = window()
    made.put([record(0)], None)
    made.give_up()
    made.open(10)
    assert made.put([record(5)], None) == 0
    assert made.tell_generation() == 1
    assert made.put([record(5)], None) == 1


def test_a_late_acknowledgement_of_a_given_up_window_counts_for_nothing() -> None:
    """A late acknowledgement of a given up window counts for nothing."""
    made = window()
    made.put([record(0)], None)
    made.pop(1)
    made.give_up()
    assert not made.settle(0)
    assert made.take_receipts() == []


def test_receipts_wake_core_once_until_they_are_taken() -> None:
    """Receipts wake core once until they are taken."""
    woken: list[int] = []
    made = Window(lambda: woken.append(1))
    made.open(10)
    made.put([record(i) for i in range(3)], None)
    made.pop(3)
    before = len(woken)
    made.settle(0)
    made.settle(1)
    assert len(woken) == before + 1
    made.take_receipts()
    made.settle(2)
    assert len(woken) == before + 2


class AnyHistory(RuleBasedStateMachine):
    """Core's side and the loop's side in any order: each record is settled once, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.window = window(room=5)
        self.generation = 0
        self.unconfirmed: set[int] = set()
        self.next_seq = 0
        self.published: list[int] = []
        self.settled: set[int] = set()

    def note_status(self) -> None:
        generation = self.window.tell_generation()
        if generation != self.generation:
            self.generation = generation
            self.again = sorted(self.unconfirmed)
            self.unconfirmed.clear()
            self.next_seq = min([*self.again, self.next_seq])

    @rule(count=st.integers(1, 8), stale=st.booleans())
    def send(self, count: int, stale: bool) -> None:
        if not stale:
            self.note_status()
        offer = [s for s in range(self.next_seq, self.next_seq + count) if s not in self.settled]
        taken = self.window.put([record(seq) for seq in offer], None)
        self.unconfirmed.update(offer[:taken])
        if taken:
            self.next_seq = offer[taken - 1] + 1

    @rule(count=st.integers(1, 4))
    def publish(self, count: int) -> None:
        self.published += seqs(self.window.pop(count))

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        if self.published:
            self.window.settle(data.draw(st.sampled_from(self.published)))

    @rule()
    def take_receipts(self) -> None:
        for first, last, _ in self.window.take_receipts():
            self.settled.update(range(first, last + 1))
            self.unconfirmed -= set(range(first, last + 1))

    @rule()
    def lose_connection(self) -> None:
        self.window.give_up()
        self.window.open(5)

    @invariant()
    def no_record_overtakes_an_unsettled_one(self) -> None:
        latest: dict[int, int] = {seq: at for at, seq in enumerate(self.published)}
        order = [seq for seq in sorted(latest) if seq in self.window._published]
        assert [latest[s] for s in order] == sorted(latest[s] for s in order)

    @invariant()
    def the_bound_holds(self) -> None:
        assert self.window.size() <= 5


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
