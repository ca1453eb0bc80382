"""Cutting batches that are too large, between events and between blocks."""

from array import array
from typing import Any

import msgspec
import pytest
from interop.engine_schemas import SglangBatch, SglangStored, VllmBatch, VllmStored

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.wire import BatchDecoder, BatchEncoder, SplitBatch

BLOCKS = 64
BLOCK_SIZE = 4
HASHES = [2**63 + number for number in range(BLOCKS)]
TOKENS = list(range(BLOCKS * BLOCK_SIZE))
LIMIT_BYTES = 400


class Unsized:
    """Tokens that can be encoded, but neither counted nor sliced."""

    def tolist(self) -> list[int]:
        """Return them as msgspec is given them."""
        return TOKENS


def store(**fields: Any) -> BlockStored:
    """A store of 64 blocks under parent 7."""
    return BlockStored(
        **{
            "block_hashes": HASHES,
            "parent_block_hash": 7,
            "token_ids": TOKENS,
            "block_size": BLOCK_SIZE,
            "medium": "GPU",
            **fields,
        }
    )


def split(*events: Any, limit_bytes: int = LIMIT_BYTES, **options: Any) -> SplitBatch:
    """Split a batch of ``events`` and check that every part keeps the limit."""
    parts = BatchEncoder(3, **options).split(KVEventBatch(1.5, list(events)), limit_bytes)
    assert all(len(payload) <= limit_bytes for payload in parts.payloads)
    return parts


def events_in(parts: SplitBatch) -> list[Any]:
    """Return the events of all parts, which must be whole batches of the same step and rank."""
    events = []
    for payload in parts.payloads:
        decoded = BatchDecoder().decode(payload)
        assert (decoded.batch.ts, decoded.batch.dp_rank, decoded.skipped_events) == (1.5, 3, 0)
        events += decoded.batch.events
    return events


def test_a_batch_that_fits_stays_one_payload() -> None:
    """Splitting changes no byte of what needs no splitting."""
    batch = KVEventBatch(1.5, [BlockRemoved([1]), AllBlocksCleared()], 3)
    payload = BatchEncoder(3).encode(batch)
    assert BatchEncoder(3).split(batch, len(payload)) == SplitBatch([payload], 0, 0)


def test_events_are_kept_in_order_and_packed_together_while_they_fit() -> None:
    """No part could take the first event of the next one."""
    events = [BlockRemoved([2**40 + number], "GPU") for number in range(100)]
    parts = split(*events)
    assert events_in(parts) == events
    size = len(BatchEncoder(3).encode(KVEventBatch(1.5, events[:1], 3)))
    per_event = len(BatchEncoder(3).encode(KVEventBatch(1.5, events[:2], 3))) - size
    for payload in parts.payloads[:-1]:
        assert len(payload) + per_event > LIMIT_BYTES - 2


@pytest.mark.parametrize("count", [15, 16, 17, 40])
def test_the_growing_array_header_is_counted(count: int) -> None:
    """From 16 events on the header takes two more bytes; no payload exceeds its limit by them."""
    events = [AllBlocksCleared()] * count
    exact_bytes = len(BatchEncoder(3).encode(KVEventBatch(1.5, events, 3)))
    assert len(split(*events, limit_bytes=exact_bytes).payloads) == 1
    assert len(split(*events, limit_bytes=exact_bytes - 1).payloads) == 2


@pytest.mark.parametrize("dialect", ["native", "array"])
def test_a_store_is_cut_at_block_boundaries_into_one_chain(dialect: str) -> None:
    """Each part's parent is the last hash of the part before; together they are the store."""
    parts = split(store(), dialect=dialect)
    events = events_in(parts)
    assert (parts.too_large_events, parts.unencodable_events) == (0, 0)
    assert len(events) > 2
    parent = 7
    for event in events:
        assert event.parent_block_hash == parent
        assert len(event.token_ids) == len(event.block_hashes) * BLOCK_SIZE
        assert (event.block_size, event.medium) == (BLOCK_SIZE, "GPU")
        parent = event.block_hashes[-1]
    assert [h for event in events for h in event.block_hashes] == HASHES
    assert [token for event in events for token in event.token_ids] == TOKENS


def test_every_list_per_block_is_cut_with_the_blocks() -> None:
    """Extra keys and lookahead tokens stay with their block."""
    keys = [[f"k{number}"] for number in range(BLOCKS)]
    lookahead = [[number] for number in range(BLOCKS)]
    events = events_in(split(store(extra_keys=keys, lookahead_token_ids=lookahead)))
    for event in events:
        first = HASHES.index(event.block_hashes[0])
        last = first + len(event.block_hashes)
        assert event.extra_keys == keys[first:last]
        assert event.lookahead_token_ids == lookahead[first:last]


def test_token_pairs_and_arrays_are_cut_alike() -> None:
    """EAGLE pairs count one per token; an array is cut without becoming a list first."""
    pairs = [[token, token + 1] for token in TOKENS]
    events = events_in(split(store(token_ids=pairs)))
    assert [pair for event in events for pair in event.token_ids] == pairs
    events = events_in(split(store(token_ids=array("q", TOKENS))))
    assert [token for event in events for token in event.token_ids] == TOKENS


def test_a_store_without_tokens_is_cut_by_its_hashes() -> None:
    """A change of tier has hashes only; so has every store under ``omit_token_ids``."""
    for parts in (
        split(store(token_ids=[], block_size=0)),
        split(store(token_ids=TOKENS[:-1]), omit_token_ids=True),
    ):
        assert [h for event in events_in(parts) for h in event.block_hashes] == HASHES


def test_a_removal_is_cut_between_its_hashes() -> None:
    """SGLang merges removals, so one event may name very many blocks."""
    events = events_in(split(BlockRemoved(HASHES, "CPU")))
    assert [h for event in events for h in event.block_hashes] == HASHES
    assert {event.medium for event in events} == {"CPU"}


@pytest.mark.parametrize(
    "event",
    [
        store(token_ids=TOKENS[:-1]),
        store(token_ids=Unsized()),
        store(block_size=None),
        store(extra_keys=[["k"]]),
        store(lookahead_token_ids=[[1]] * (BLOCKS + 1)),
        BlockStored([1], None, TOKENS, len(TOKENS)),
        BlockRemoved([b"x" * LIMIT_BYTES]),
        AllBlocksCleared("m" * LIMIT_BYTES),
        BlockStored([1, 2], None, [1, 2], 1, extra_keys=["k" * LIMIT_BYTES, None]),
    ],
    ids=range(9),
)
def test_what_cannot_be_cut_without_guessing_is_counted(event: Any) -> None:
    """That event is missing whole; its neighbours are sent."""
    parts = split(BlockRemoved([1]), event, AllBlocksCleared())
    assert (parts.too_large_events, parts.unencodable_events) == (1, 0)
    assert events_in(parts) == [BlockRemoved([1]), AllBlocksCleared()]


def test_events_that_cannot_be_encoded_are_counted_apart() -> None:
    """A broken event is not called too large."""
    parts = split(object(), BlockRemoved([1]), {"no": object()})
    assert (parts.too_large_events, parts.unencodable_events) == (0, 2)
    assert events_in(parts) == [BlockRemoved([1])]


def test_an_empty_batch_stays_a_heartbeat() -> None:
    """A heartbeat is never lost to splitting."""
    assert split().payloads == [BatchEncoder(3).heartbeat(1.5)]


@pytest.mark.parametrize("limit_bytes", [-1, 0, 5, 11])
def test_a_limit_below_an_empty_batch_loses_all_events_and_counts_them(limit_bytes: int) -> None:
    """Nonsense limits neither hang nor raise."""
    assert split(store(), AllBlocksCleared(), limit_bytes=limit_bytes) == SplitBatch([], 2, 0)
    assert split(limit_bytes=limit_bytes) == SplitBatch([], 0, 0)


@pytest.mark.parametrize("batch", [None, KVEventBatch(1.0, None), KVEventBatch("x", [1])])  # type: ignore[arg-type]
def test_what_is_no_batch_splits_into_nothing(batch: Any) -> None:
    """Its events, as far as there are any, are counted as not encodable."""
    events = len(getattr(batch, "events", None) or ())
    assert BatchEncoder(0).split(batch, 100) == SplitBatch([], 0, events)


@pytest.mark.parametrize(
    ("batch", "kind"),
    [
        (
            VllmBatch(1.5, [VllmStored(HASHES, None, TOKENS, BLOCK_SIZE, None, "GPU", None)]),
            VllmBatch,
        ),
        (SglangBatch(1.5, [SglangStored(HASHES, None, TOKENS, BLOCK_SIZE, None)]), None),
    ],
)
def test_engine_structs_are_cut_in_the_engine_s_own_form(batch: Any, kind: Any) -> None:
    """The parts have the keys of the engine's event, and the original is as it was."""
    parts = BatchEncoder(3).split(batch, LIMIT_BYTES)
    whole = msgspec.msgpack.decode(BatchEncoder(3).encode(batch))[1][0]
    for payload in parts.payloads:
        for event in msgspec.msgpack.decode(payload)[1]:
            assert event.keys() == whole.keys()
    assert [h for event in events_in(parts) for h in event.block_hashes] == HASHES
    assert (batch.events[0].block_hashes, batch.events[0].token_ids) == (HASHES, TOKENS)
