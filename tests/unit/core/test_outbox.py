"""The outbox: never blocks, keeps its bounds, and shows exactly where a batch was lost."""

from __future__ import annotations

import threading
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents_core.events import AllBlocksCleared, BlockStored, KVEventBatch
from kvevents_core.outbox import (
    SMALL_BYTES,
    SMALL_EVENTS,
    SMALL_ITEMS,
    Outbox,
    estimate_bytes,
    is_small,
)

BIG = 1 << 40


def batch(number: int, tokens: int = 0) -> KVEventBatch:
    stored = BlockStored(block_hashes=[number], token_ids=list(range(1000, 1000 + tokens)))
    return KVEventBatch(float(number), [stored])


def drain(outbox: Outbox) -> list[tuple[int, float]]:
    return [(w.lost_before, w.batch.ts) for w in outbox.take(1 << 20, BIG)]


def test_batches_leave_in_the_order_they_came() -> None:
    """What is put comes out once, in order, with no loss between."""
    outbox = Outbox(10, BIG, "drop_newest")
    for number in range(5):
        outbox.put(batch(number))
    assert drain(outbox) == [(0, float(n)) for n in range(5)]
    assert outbox.take_tail_loss() == 0
    assert outbox.size() == (0, 0)


def test_drop_newest_keeps_the_oldest_and_marks_the_hole_before_the_next_kept() -> None:
    """Three lost batches are seen exactly between the last kept and the next one put."""
    outbox = Outbox(2, BIG, "drop_newest")
    for number in range(5):
        outbox.put(batch(number))
    assert drain(outbox) == [(0, 0.0), (0, 1.0)]
    outbox.put(batch(5))
    assert drain(outbox) == [(3, 5.0)]
    assert outbox.lost["overflow"] == 3
    assert outbox.lost_events["overflow"] == 3


def test_drop_oldest_keeps_the_newest_and_marks_the_hole_before_them() -> None:
    """The oldest go first, and the hole stands where they stood."""
    outbox = Outbox(2, BIG, "drop_oldest")
    for number in range(5):
        outbox.put(batch(number))
    assert drain(outbox) == [(3, 3.0), (0, 4.0)]
    assert outbox.lost["overflow"] == 3


def test_a_loss_at_the_tail_is_told_once_and_only_when_nothing_waits() -> None:
    """A hole behind the last batch is known as soon as the outbox is empty."""
    outbox = Outbox(1, BIG, "drop_newest")
    outbox.put(batch(0))
    outbox.put(batch(1))
    assert outbox.take_tail_loss() == 0
    assert not outbox.has_tail_loss()
    drain(outbox)
    assert outbox.has_tail_loss()
    assert outbox.take_tail_loss() == 1
    assert outbox.take_tail_loss() == 0


def test_the_byte_bound_holds_whatever_the_number_of_batches() -> None:
    """Large batches are refused by memory before the count is reached."""
    large = estimate_bytes(batch(0, 4096))
    outbox = Outbox(1000, 3 * large, "drop_newest")
    for number in range(10):
        outbox.put(batch(number, 4096))
    assert outbox.size() == (3, 3 * large)
    assert outbox.lost["overflow"] == 7


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest", "block"])
def test_a_batch_above_the_whole_bound_is_lost_and_costs_nothing_else(policy: str) -> None:
    """One impossible batch neither blocks nor empties the outbox."""
    outbox = Outbox(10, estimate_bytes(batch(0)) * 3, policy)
    outbox.put(batch(0))
    outbox.put(batch(1, 100_000))
    outbox.put(batch(2))
    assert drain(outbox) == [(0, 0.0), (1, 2.0)]


def test_batches_put_without_measuring_count_as_soon_as_more_waits() -> None:
    """A burst is held to the byte bound with all that waited before it, measured or not."""
    large = estimate_bytes(batch(0, 100_000))
    outbox = Outbox(1000, 12 * large, "drop_newest")
    for number in range(20):
        outbox.put(batch(number, 100_000))
    assert outbox.size() == (12, 12 * large)
    assert outbox.lost["overflow"] == 8


def test_a_loss_beside_unmeasured_batches_stands_where_it_happened() -> None:
    """What is no batch leaves its hole between its neighbours, however little waits."""
    outbox = Outbox(1000, BIG, "drop_newest")
    for item in (batch(0), None, batch(1), batch(2), 7, "text", batch(3)):
        outbox.put(item)
    assert drain(outbox) == [(0, 0.0), (1, 1.0), (0, 2.0), (2, 3.0)]
    outbox.put(None)
    assert outbox.take_tail_loss() == 1
    outbox.put(batch(4))
    assert drain(outbox) == [(0, 4.0)]


def test_block_waits_until_there_is_room() -> None:
    """With overflow block a publisher waits, loses nothing, and goes on when the sender takes."""
    outbox = Outbox(1, BIG, "block")
    outbox.put(batch(0))
    entered = threading.Event()

    def publish_second() -> None:
        entered.set()
        outbox.put(batch(1))

    thread = threading.Thread(target=publish_second)
    thread.start()
    assert entered.wait(5)
    assert drain(outbox) == [(0, 0.0)]
    thread.join(5)
    assert not thread.is_alive()
    assert drain(outbox) == [(0, 1.0)]
    assert outbox.lost["overflow"] == 0


def test_block_ends_with_the_publisher() -> None:
    """A publisher that waits for room is let go by shutdown, and its batch is counted."""
    outbox = Outbox(1, BIG, "block")
    outbox.put(batch(0))
    thread = threading.Thread(target=outbox.put, args=(batch(1),))
    thread.start()
    outbox.refuse("closed")
    thread.join(5)
    assert not thread.is_alive()
    assert outbox.lost["closed"] == 1


def test_after_refusal_batches_are_counted_and_take_no_number() -> None:
    """Published after shutdown: counted under closed, no hole in the stream."""
    outbox = Outbox(10, BIG, "drop_newest")
    outbox.put(batch(0))
    outbox.refuse("closed")
    outbox.put(batch(1))
    assert drain(outbox) == [(0, 0.0)]
    assert outbox.take_tail_loss() == 0
    assert outbox.lost["closed"] == 1


def test_an_empty_batch_sends_nothing() -> None:
    """An idle engine loop costs no batch and no number."""
    outbox = Outbox(10, BIG, "drop_newest")
    outbox.put(KVEventBatch(1.0, []))
    assert outbox.size() == (0, 0)
    assert outbox.take_tail_loss() == 0


@pytest.mark.parametrize("nonsense", [None, 7, "text", KVEventBatch(1.0, [object()])])
def test_nonsense_never_raises_on_the_engines_thread(nonsense: object) -> None:
    """Whatever is published, put returns; what is no batch is a counted hole."""
    outbox = Outbox(10, BIG, "drop_newest")
    outbox.put(nonsense)
    outbox.put(batch(1))
    taken = outbox.take(10, BIG)
    assert taken[-1].batch.ts == 1.0
    assert outbox.lost["encode"] == taken[-1].lost_before


def test_take_is_bounded_in_batches_and_bytes() -> None:
    """A group ends at either bound, but holds one batch at least."""
    outbox = Outbox(100, BIG, "drop_newest")
    for number in range(10):
        outbox.put(batch(number, 100))
    assert len(outbox.take(3, BIG)) == 3
    assert len(outbox.take(100, 1)) == 1
    assert len(outbox.take(100, BIG)) == 6


def test_wait_returns_when_something_is_put_or_nudged() -> None:
    """The sleeping sender is woken by a batch and by a nudge, long before its timeout."""
    for wake in (lambda o: o.put(batch(0)), lambda o: o.nudge()):
        outbox = Outbox(10, BIG, "drop_newest")
        sleeper = threading.Thread(target=outbox.wait, args=(30.0,))
        sleeper.start()
        wake(outbox)
        sleeper.join(5)
        assert not sleeper.is_alive()


def test_several_publishing_threads_lose_nothing_uncounted() -> None:
    """Kept plus lost equals put, and the holes equal the losses, under real contention."""
    outbox = Outbox(50, BIG, "drop_oldest")
    per_thread = 2000
    threads = [
        threading.Thread(target=lambda: [outbox.put(batch(n)) for n in range(per_thread)])
        for _ in range(3)
    ]
    kept = holes = 0
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken = outbox.take(10, BIG)
        kept += len(taken)
        holes += sum(item.lost_before for item in taken)
    for thread in threads:
        thread.join()
    while taken := outbox.take(1000, BIG):
        kept += len(taken)
        holes += sum(item.lost_before for item in taken)
    holes += outbox.take_tail_loss()
    assert kept + holes == 3 * per_thread
    assert outbox.lost["overflow"] == holes
    assert outbox.size() == (0, 0)


def test_tokens_count_by_what_they_hold() -> None:
    """A list of ints weighs more than the same tokens in an array; pairs weigh most."""

    def weight(tokens: object) -> int:
        return estimate_bytes(KVEventBatch(0.0, [BlockStored(block_hashes=[1], token_ids=tokens)]))

    assert weight(array("q", range(1000))) < weight(list(range(1000)))
    assert weight(list(range(1000))) < weight([(n, n) for n in range(1000)])
    assert estimate_bytes(KVEventBatch(0.0, [AllBlocksCleared()])) > 0


def test_batches_put_without_measuring_never_widen_the_byte_bound() -> None:
    """However many came and went before: the bound holds for the next burst."""
    large = estimate_bytes(batch(0, 100_000))
    outbox = Outbox(1000, 12 * large, "drop_newest")
    for _ in range(100_000):
        outbox.put(batch(0))
        assert len(outbox.take(512, BIG)) == 1
    for number in range(20):
        outbox.put(batch(number, 100_000))
    assert outbox.lost["overflow"] == 8


def test_small_batches_that_wait_unmeasured_count_too() -> None:
    """When measuring begins behind hundreds of them, they are in the sum, near enough."""
    small, large = estimate_bytes(batch(0, 60)), estimate_bytes(batch(0, 100_000))
    outbox = Outbox(10_000, BIG, "drop_newest")
    for number in range(400):
        outbox.put(batch(number, 60))
    outbox.put(batch(400, 100_000))
    count, held = outbox.size()
    assert count == 401
    assert held == 400 * small + large
    drain(outbox)
    assert outbox.size() == (0, 0)


@pytest.mark.parametrize("large_at", [0, 5])
def test_a_large_batch_among_small_ones_counts_once(large_at: int) -> None:
    """It stands for itself, not for its neighbours, wherever it is."""
    small, large = estimate_bytes(batch(0, 60)), estimate_bytes(batch(0, 100_000))
    outbox = Outbox(10_000, BIG, "drop_newest")
    for number in range(300):
        outbox.put(batch(number, 100_000 if number == large_at else 60))
    assert outbox.size() == (300, 299 * small + large)


@pytest.mark.parametrize("tokens", [1, 60])
def test_small_batches_keep_the_byte_bound(tokens: int) -> None:
    """A transport that takes nothing: what waits stays within a tenth of the bound."""
    size, bound = estimate_bytes(batch(0, tokens)), 3_000_000
    outbox = Outbox(1_000_000, bound, "drop_newest")
    for number in range(2 * bound // size):
        outbox.put(batch(number, tokens))
    count, _ = outbox.size()
    assert 0.9 * bound <= count * size <= 1.1 * bound
    assert count + outbox.lost["overflow"] == 2 * bound // size


@given(
    st.lists(
        st.builds(
            lambda hashes, tokens: BlockStored(hashes, None, tokens, 16, None),
            st.lists(st.binary(min_size=32, max_size=32), max_size=SMALL_ITEMS + 1),
            st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=SMALL_ITEMS + 1),
        ),
        max_size=SMALL_EVENTS + 1,
    )
)
def test_what_is_called_small_is_small(events: list[BlockStored]) -> None:
    """Digests for hashes and pairs for tokens included."""
    if is_small(events):
        assert estimate_bytes(KVEventBatch(0.0, events)) <= SMALL_BYTES


@pytest.mark.parametrize("policy", ["drop_newest", "drop_oldest"])
@pytest.mark.parametrize("capacity", [1, 3, 20])
def test_under_load_every_hole_stands_exactly_where_batches_were_lost(
    policy: str, capacity: int
) -> None:
    """While one thread puts and another takes, each batch taken has its own place in the row."""
    outbox, count = Outbox(capacity, BIG, policy), 40_000
    batches = [batch(number) for number in range(count)]
    ended = threading.Event()

    def put_all() -> None:
        for number, each in enumerate(batches):
            outbox.put(each)
            if number % 500 == 0:
                ended.wait(0.0002)  # lets the other thread empty the outbox now and then
        ended.set()

    putting = threading.Thread(target=put_all)
    putting.start()
    place = kept = 0
    while not ended.is_set() or outbox.size()[0] or outbox.has_tail_loss():
        for item in outbox.take(7, BIG):
            place += item.lost_before
            assert item.batch.ts == place
            place += 1
            kept += 1
        place += outbox.take_tail_loss()
    putting.join()
    assert place == count
    assert kept + outbox.lost["overflow"] == count
