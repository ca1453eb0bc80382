"""One stream's numbers: next, gap, duplicate, restart, stale, conflict."""

from __future__ import annotations

import pytest

from kvevents_core.sequence import StreamSequence, Verdict


def after(
    *records: tuple[int | None, int, str], ordered: bool = True, next_seq: int | None = 0
) -> StreamSequence:
    sequence = StreamSequence(ordered_epochs=ordered, next_seq=next_seq)
    for record in records:
        sequence.accept(*record)
    return sequence


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ((7, 2, "c"), Verdict.NEXT),
        ((7, 5, "f"), Verdict.GAP),
        ((7, 1, "b"), Verdict.DUPLICATE),
        ((7, 1, "other"), Verdict.CONFLICT),
        ((8, 0, "a"), Verdict.RESTARTED),
        ((8, 3, "d"), Verdict.RESTARTED),
        ((6, 2, "c"), Verdict.STALE),
        ((6, 9, "c"), Verdict.STALE),
    ],
)
def test_with_ordered_epochs_the_highest_owns_the_stream(
    record: tuple[int, int, str], verdict: Verdict
) -> None:
    """C19: lower epochs are stale whatever their number; higher ones restart."""
    assert after((7, 0, "a"), (7, 1, "b")).judge(*record) is verdict


@pytest.mark.parametrize(
    ("record", "verdict"),
    [
        ((None, 2, "c"), Verdict.NEXT),
        ((None, 4, "c"), Verdict.GAP),
        ((None, 1, "b"), Verdict.DUPLICATE),
        ((None, 0, "new"), Verdict.UNCLEAR),
        ((3, 2, "c"), Verdict.RESTARTED),
        ((9, 2, "c"), Verdict.RESTARTED),
        ((7, 2, "c"), Verdict.NEXT),
    ],
)
def test_without_epochs_in_the_frames_any_other_epoch_is_a_restart(
    record: tuple[int | None, int, str], verdict: Verdict
) -> None:
    """ZMQ: magnitude decides nothing; a used number with other bytes needs a question."""
    sequence = after((7, 0, "a"), (None, 1, "b"), ordered=False)
    assert sequence.epoch == 7
    assert sequence.judge(*record) is verdict


def test_the_first_record_needs_history_unless_any_start_is_taken() -> None:
    """From the start: a first number above 0 is a gap; from now on: it is the start."""
    assert after().judge(7, 5, "x") is Verdict.GAP
    assert after(next_seq=None).judge(7, 5, "x") is Verdict.NEXT


def test_a_restart_forgets_numbers_and_fingerprints() -> None:
    """The new life begins at 0 and none of its batches is taken for an old one."""
    sequence = after((7, 0, "a"), (7, 1, "b"))
    sequence.restart(8)
    assert sequence.judge(8, 0, "a") is Verdict.NEXT
    assert (sequence.epoch, sequence.next_seq) == (8, 0)


def test_a_long_stream_keeps_a_bounded_memory() -> None:
    """An old duplicate is dropped even when its bytes are forgotten."""
    sequence = StreamSequence(ordered_epochs=True)
    for seq in range(10_000):
        sequence.accept(7, seq, seq)
    assert len(sequence._fingerprints) <= 2048
    assert sequence.judge(7, 3, "anything") is Verdict.DUPLICATE
