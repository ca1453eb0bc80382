"""The mirror holds what the stream said it holds, and forgets when it cannot know."""

from typing import Any

import pytest

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvevents_core.items import Batch, Conflict, Gap, Restarted, Silent
from kvevents_core.mirror import Mirror
from kvevents_core.naming import StreamId

STREAM = StreamId("default", "m", "engine", 0)
OTHER = StreamId("default", "m", "engine", 1)


def batch(
    *events: Any, stream: StreamId = STREAM, epoch: int | None = 1, skipped_events: int = 0
) -> Batch:
    """A batch of ``events``."""
    return Batch(stream, epoch, 0, 1.0, list(events), skipped_events)


def mirror_of(*items: Any, count_copies: bool = False) -> Mirror:
    """A mirror that has applied ``items``."""
    mirror = Mirror(count_copies=count_copies)
    for item in items:
        mirror.apply(item)
    return mirror


def gpu(*hashes: Any) -> BlockStored:
    """A store on the device."""
    return BlockStored(list(hashes), medium="GPU")


def cpu(*hashes: Any) -> BlockStored:
    """A store in host memory, by vLLM's name."""
    return BlockStored(list(hashes), medium="CPU")


def test_stores_add_and_removals_take_away() -> None:
    """Also a removal of what was never seen, which is no error."""
    mirror = mirror_of(batch(gpu(1, 2, 3)), batch(BlockRemoved([2, 9], "GPU")))
    assert mirror.blocks(STREAM) == {1, 3}


def test_hashes_are_canonical_whichever_sign_they_came_with() -> None:
    """-5 and 2**64 - 5 are one block; digests are themselves."""
    digest = b"d" * 32
    mirror = mirror_of(batch(gpu(-5, digest)))
    assert mirror.blocks(STREAM) == {2**64 - 5, digest}
    mirror.apply(batch(BlockRemoved([2**64 - 5], "GPU")))
    assert mirror.blocks(STREAM) == {digest}


def test_a_removal_concerns_its_tier_only() -> None:
    """Store on GPU, store on CPU, remove from GPU: still on CPU (sgl-project/sglang#38486)."""
    mirror = mirror_of(batch(gpu(1), cpu(1), BlockRemoved([1], "GPU")))
    assert mirror.blocks_by_tier(STREAM) == {"CPU": {1}}
    assert mirror.blocks(STREAM) == {1}


@pytest.mark.parametrize(
    ("stored", "removed"),
    [
        ("CPU", "CPU_PINNED"),
        ("CPU_PINNED", "cpu"),
        ("DISK", "STORAGE"),
        (None, "GPU"),
        ("GPU", None),
    ],
)
def test_names_of_one_tier_are_one_tier(stored: str | None, removed: str | None) -> None:
    """VLLM's and SGLang's names of a tier, either case, and no name for the device."""
    mirror = mirror_of(
        batch(BlockStored([1], medium=stored), BlockRemoved([1], removed)),
    )
    assert mirror.blocks(STREAM) == frozenset()


def test_tiers_are_shown_by_the_name_the_engine_gave() -> None:
    """The raw value is kept for people; an absent one is GPU."""
    mirror = mirror_of(
        batch(
            BlockStored([1]), BlockStored([2], medium="CPU_PINNED"), BlockStored([3], medium="x")
        )
    )
    assert mirror.blocks_by_tier(STREAM) == {"GPU": {1}, "CPU_PINNED": {2}, "x": {3}}


def test_distinct_tiers_stay_distinct() -> None:
    """SGLang's DISK and EXTERNAL are two places."""
    stores = [BlockStored([1], medium=medium) for medium in ("DISK", "EXTERNAL")]
    mirror = mirror_of(batch(*stores, BlockRemoved([1], "DISK")))
    assert mirror.blocks_by_tier(STREAM) == {"EXTERNAL": {1}}


def test_a_clear_empties_its_stream_and_no_other() -> None:
    """Rank 0 clears, rank 1 keeps (vllm-project/aibrix#2385)."""
    mirror = mirror_of(
        batch(gpu(1), cpu(2)), batch(gpu(3), stream=OTHER), batch(AllBlocksCleared())
    )
    assert mirror.blocks(STREAM) == frozenset()
    assert mirror.blocks(OTHER) == {3}


def test_a_clear_of_one_tier_leaves_the_others() -> None:
    """A device-only reset keeps host memory (vllm-project/vllm#57296)."""
    mirror = mirror_of(batch(gpu(1), cpu(2), AllBlocksCleared("GPU")))
    assert mirror.blocks_by_tier(STREAM) == {"CPU": {2}}


def test_events_count_in_their_order() -> None:
    """Store, clear, store in one batch leaves the last store."""
    mirror = mirror_of(batch(gpu(1), AllBlocksCleared(), gpu(2), BlockRemoved([2], "GPU"), gpu(3)))
    assert mirror.blocks(STREAM) == {3}


def test_applying_a_batch_twice_changes_nothing() -> None:
    """Duplicate stores inflate no count (smg-project/smg#946)."""
    mirror = mirror_of(batch(gpu(1, 1, 2)), batch(gpu(1, 1, 2)))
    assert mirror.blocks(STREAM) == {1, 2}
    mirror.apply(batch(BlockRemoved([1], "GPU")))
    assert mirror.blocks(STREAM) == {2}


def test_copies_are_counted_when_asked() -> None:
    """Store, store, remove: present; second remove: absent; a clear resets the count."""
    mirror = mirror_of(batch(gpu(1), gpu(1), BlockRemoved([1], "GPU")), count_copies=True)
    assert mirror.blocks(STREAM) == {1}
    mirror.apply(batch(BlockRemoved([1], "GPU")))
    assert mirror.blocks(STREAM) == frozenset()
    mirror.apply(batch(gpu(1), gpu(1), AllBlocksCleared(), gpu(1), BlockRemoved([1], "GPU")))
    assert mirror.blocks(STREAM) == frozenset()


def test_an_unrecovered_gap_forgets_the_stream() -> None:
    """The missing batches may have held removals; later stores count again."""
    mirror = mirror_of(
        batch(gpu(1)), batch(gpu(2), stream=OTHER), Gap(STREAM, 1, 1, 4, "lost"), batch(gpu(3))
    )
    assert mirror.blocks(STREAM) == {3}
    assert mirror.blocks(OTHER) == {2}


def test_a_batch_with_unreadable_events_forgets_the_stream() -> None:
    """An event nobody could read may have been a removal or a clear, before or after the rest."""
    mirror = mirror_of(batch(gpu(1)), batch(gpu(2), skipped_events=1))
    assert mirror.blocks(STREAM) == frozenset()
    mirror.apply(batch(gpu(3)))
    assert mirror.blocks(STREAM) == {3}


def test_a_restart_forgets_the_stream_and_takes_the_new_epoch() -> None:
    """No block survives its engine."""
    mirror = mirror_of(batch(gpu(1)), Restarted(STREAM, 1, 2))
    assert (mirror.blocks(STREAM), mirror.epoch(STREAM)) == (frozenset(), 2)
    mirror.apply(Restarted(STREAM, 2, None))
    assert mirror.epoch(STREAM) is None


def test_a_batch_of_another_epoch_forgets_what_was_before() -> None:
    """Even if nobody said Restarted; an epoch that was merely not known yet is no change."""
    mirror = mirror_of(batch(gpu(1)), batch(gpu(2), epoch=2))
    assert (mirror.blocks(STREAM), mirror.epoch(STREAM)) == ({2}, 2)
    mirror = mirror_of(
        batch(gpu(1), epoch=None), batch(gpu(2), epoch=5), batch(gpu(3), epoch=None)
    )
    assert (mirror.blocks(STREAM), mirror.epoch(STREAM)) == ({1, 2, 3}, 5)


@pytest.mark.parametrize("item", [Conflict(STREAM, 0, 3, "two publishers"), Silent(STREAM, 9.0)])
def test_conflict_and_silence_change_nothing(item: Any) -> None:
    """What was dropped was not applied, and an idle engine still holds its cache."""
    mirror = mirror_of(batch(gpu(1)), item)
    assert mirror.blocks(STREAM) == {1}


def test_a_stream_never_heard_of_is_empty() -> None:
    """Asking creates nothing."""
    mirror = Mirror()
    assert mirror.blocks(STREAM) == frozenset()
    assert mirror.blocks_by_tier(STREAM) == {}
    assert mirror.epoch(STREAM) is None
    assert mirror.streams() == ()


def test_streams_are_those_heard_of() -> None:
    """An empty batch is news too."""
    mirror = mirror_of(batch(stream=OTHER), Gap(STREAM, None, 0, 1, "lost"))
    assert mirror.streams() == (OTHER, STREAM)


def test_answers_are_snapshots() -> None:
    """What was returned does not change with later batches."""
    mirror = mirror_of(batch(gpu(1)))
    blocks, tiers = mirror.blocks(STREAM), mirror.blocks_by_tier(STREAM)
    mirror.apply(batch(AllBlocksCleared()))
    assert (blocks, tiers) == ({1}, {"GPU": {1}})


def test_changes_of_tier_without_tokens_count() -> None:
    """``block_size`` 0 and no tokens: a location, not an error (vllm-project/vllm#39275)."""
    mirror = mirror_of(batch(BlockStored([1], None, [], 0, medium="CPU")))
    assert mirror.blocks(STREAM) == {1}
