"""The replay ring: the newest records within both bounds, readable from any number."""

from __future__ import annotations

import pytest

from kvevents_core.backend import Record
from kvevents_core.naming import StreamId
from kvevents_core.replay import RECORD_OVERHEAD_BYTES, ReplayRing

STREAM = StreamId("t", "m", "i", 0)


def filled(seqs: list[int], max_batches: int = 100, max_bytes: int = 1 << 30) -> ReplayRing:
    ring = ReplayRing(max_batches, max_bytes)
    for seq in seqs:
        ring.append(Record(STREAM, 1, seq, b"x" * 100))
    return ring


def test_reading_starts_at_the_first_number_asked_for() -> None:
    """Holes in the numbering do not confuse the ring."""
    ring = filled([0, 1, 5, 6, 9])
    assert [r.seq for r in ring.read(2, 10)] == [5, 6, 9]
    assert [r.seq for r in ring.read(0, 2)] == [0, 1]
    assert ring.read(10, 10) == []
    assert ring.bounds() == (0, 10)


def test_an_empty_ring_has_equal_bounds() -> None:
    """Nothing held: first and next are the same."""
    assert ReplayRing(10, 1000).bounds() == (0, 0)


@pytest.mark.parametrize(
    ("max_batches", "max_bytes", "held"),
    [(3, 1 << 30, 3), (100, 2 * (100 + RECORD_OVERHEAD_BYTES), 2), (0, 1 << 30, 0)],
)
def test_both_bounds_hold_and_the_oldest_go_first(
    max_batches: int, max_bytes: int, held: int
) -> None:
    """Whatever is reached first, batches or bytes, the newest stay."""
    ring = filled(list(range(10)), max_batches, max_bytes)
    assert [r.seq for r in ring.read(0, 100)] == list(range(10))[10 - held :]
    assert ring.size() == (held, held * (100 + RECORD_OVERHEAD_BYTES))
    assert ring.bounds()[1] == 10
