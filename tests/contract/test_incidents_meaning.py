"""What events mean, where readers in the field took them for something else."""

from __future__ import annotations

import msgspec
import pytest

from kvevents_core import Batch, BlockRemoved, BlockStored, KVEventBatch, Mirror, StreamId
from kvevents_core.wire import BatchDecoder, BatchEncoder

STREAM = StreamId("t", "m", "i", 0)


def decode(*events: object) -> Batch:
    """Return what a reader gets when an engine sends ``events`` as they stand here."""
    read = BatchDecoder().decode(msgspec.msgpack.encode([1.0, list(events), 0]))
    return Batch(STREAM, 1, 0, 1.0, read.batch.events, read.skipped_events)


def store(hashes: list[int], parent: int | None = None, **more: object) -> dict[str, object]:
    fixed = {"type": "BlockStored", "token_ids": [1] * len(hashes), "block_size": 1}
    return {**fixed, "block_hashes": hashes, "parent_block_hash": parent, **more}


def test_a_block_whose_parent_is_unknown_is_kept_with_all_that_hangs_on_it() -> None:
    """After a restart or a gap the reader may not know the parent: nothing is dropped for that.

    Whether such a block can be used is the reader's decision; its parent stands in the event
    (llm-d/llm-d-kv-cache#372, #663, #347).
    """
    mirror = Mirror()
    batch = decode(store([11, 12], parent=10), store([13], parent=12), store([1], parent=0))
    mirror.apply(batch)
    assert mirror.blocks(STREAM) == {11, 12, 13, 1}
    assert [event.parent_block_hash for event in batch.events] == [10, 12, 0]


@pytest.mark.parametrize(("parent", "is_root"), [(None, True), (0, False)])
def test_only_none_means_root(parent: int | None, is_root: bool) -> None:
    """A parent of 0 is a hash like any other (LMCache/LMCache#2441)."""
    event = decode(store([5], parent=parent)).events[0]
    assert (event.parent_block_hash is None) is is_root


def test_a_chain_is_one_event_and_its_first_block_alone_has_the_parent_given() -> None:
    """Block i hangs on block i - 1 (ai-dynamo/dynamo#693): the order of hashes is kept."""
    event = decode(store([21, 22, 23], parent=20)).events[0]
    chain = [event.parent_block_hash, *event.block_hashes]
    assert list(zip(chain[1:], chain, strict=False)) == [(21, 20), (22, 21), (23, 22)]


def test_an_event_of_a_newer_engine_does_not_cost_its_batch() -> None:
    """TierBlocksCleared is unknown here: skipped and counted, the rest is read.

    It may have cleared something, so the mirror forgets the stream (vllm-project/vllm#57296).
    """
    mirror = Mirror()
    mirror.apply(decode(store([1])))
    batch = decode(store([2]), {"type": "TierBlocksCleared", "medium": "GPU"}, store([3]))
    assert [event.block_hashes for event in batch.events] == [[2], [3]]
    assert batch.skipped_events == 1
    mirror.apply(batch)
    assert mirror.blocks(STREAM) == frozenset()


class StoredByANewerEngine(msgspec.Struct, tag="BlockStored", tag_field="type"):
    """An engine's own event with keys this release has never heard of."""

    block_hashes: list[int]
    token_ids: list[int]
    block_size: int = 1
    medium: str = "GPU"
    origin: str = "reused"
    image_digest: bytes = b"\x01"


def test_what_a_newer_engine_adds_is_sent_on_unchanged() -> None:
    """Identity fields of the future survive publishing; readers of today pass over them.

    sgl-project/sglang#24568, vllm-project/vllm#33304, #51699.
    """
    payload = BatchEncoder(0).encode(KVEventBatch(1.0, [StoredByANewerEngine([7], [1])]))
    sent = msgspec.msgpack.decode(payload)[1][0]
    assert (sent["origin"], sent["image_digest"]) == ("reused", b"\x01")
    assert BatchDecoder().decode(payload).batch.events[0].block_hashes == [7]


def test_the_same_tokens_under_lora_and_salt_are_told_apart_by_what_is_sent() -> None:
    """Adapter, salt and other keys reach the reader as they were (vllm-project/aibrix#2285)."""
    event = BlockStored(
        [7],
        None,
        [1],
        1,
        3,
        "GPU",
        "adapter-a",
        extra_keys=[["img", 5]],
        cache_salt="s",
    )
    payload = BatchEncoder(0).encode(KVEventBatch(1.0, [event]))
    read = BatchDecoder().decode(payload).batch.events[0]
    assert (read.lora_id, read.lora_name) == (3, "adapter-a")
    assert (read.extra_keys, read.cache_salt) == ([["img", 5]], "s")


def test_storing_a_known_block_and_removing_an_unknown_one_is_normal() -> None:
    """Engines repeat stores; the first removal counts, and replaying changes no number.

    vllm-project/vllm#55092, smg-project/smg#946. ``count_copies`` waits for as many removals.
    """
    plain, counting = Mirror(), Mirror(count_copies=True)
    twice = Batch(STREAM, 1, 0, 0.0, [BlockStored([7], None, [1], 1, None, "GPU")] * 2)
    once = Batch(STREAM, 1, 1, 0.0, [BlockRemoved([7], "GPU"), BlockRemoved([8], "GPU")])
    for mirror in (plain, counting):
        mirror.apply(twice)
        mirror.apply(once)
    assert (plain.blocks(STREAM), counting.blocks(STREAM)) == (frozenset(), {7})
    counting.apply(once)
    assert counting.blocks(STREAM) == frozenset()
