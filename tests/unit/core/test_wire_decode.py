"""What the decoder takes, what it skips, and that it raises one error only."""

import math
from typing import Any

import msgspec
import pytest

from kvevents_core.errors import DecodeError
from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.wire import BatchDecoder, normalise_hash

STORED_MAP = {"type": "BlockStored", "block_hashes": [1], "token_ids": [5], "block_size": 1}


def pack(value: Any) -> bytes:
    """Return ``value`` as msgpack, written by msgspec alone."""
    return msgspec.msgpack.encode(value)


def decode(*events: Any, ts: Any = 1.5, rest: tuple[Any, ...] = (0,)) -> tuple[KVEventBatch, int]:
    """Return the batch decoded from ``[ts, events, *rest]`` and the count of skipped events."""
    decoded = BatchDecoder().decode(pack([ts, list(events), *rest]))
    return decoded.batch, decoded.skipped_events


def one(event: Any) -> Any:
    """Return the one event decoded from ``event``, nothing skipped."""
    batch, skipped = decode(event)
    assert skipped == 0
    return batch.events[0]


def skipped(event: Any) -> bool:
    """Whether that event alone is skipped and its neighbour survives."""
    batch, count = decode(event, {"type": "AllBlocksCleared"})
    return count == 1 and batch.events == [AllBlocksCleared()]


def test_absent_optional_keys_read_as_none() -> None:
    """Dynamo's mocker omits lora_id and medium, SGLang omits lora_name."""
    assert one({"type": "BlockStored", "block_hashes": [1]}) == BlockStored([1])
    assert one({"type": "BlockRemoved", "block_hashes": [1]}) == BlockRemoved([1])


def test_unknown_keys_are_ignored() -> None:
    """A newer engine's key costs nothing, in any event."""
    assert one({**STORED_MAP, "origin": {"deep": [1]}}) == BlockStored([1], None, [5], 1)
    assert one({"type": "AllBlocksCleared", "tier": 3}) == AllBlocksCleared()


@pytest.mark.parametrize(
    "event",
    [
        {"type": "BlockTransferred", "block_hashes": [1]},
        {"type": 7},
        {"block_hashes": [1]},
        {},
        ["BlockTransferred", [1]],
        [],
        [["BlockStored"], [1]],
        [None],
        None,
        "BlockStored",
        5,
        {"type": "BlockStored"},
        {"type": "BlockStored", "block_hashes": None},
        {"type": "BlockStored", "block_hashes": ["hex"]},
        {"type": "BlockStored", "block_hashes": [True]},
        {"type": "BlockStored", "block_hashes": [1], "parent_block_hash": "x"},
        {"type": "BlockStored", "block_hashes": [1], "cache_salt": 5},
        ["BlockRemoved"],
        ["BlockRemoved", 5],
    ],
)
def test_unknown_and_malformed_events_are_skipped_one_at_a_time(event: Any) -> None:
    """Rather less than the cache than a guess; the rest of the batch is still true."""
    assert skipped(event)


def test_text_that_is_no_utf8_costs_its_event_only() -> None:
    """Invalid UTF-8 inside one event leaves its neighbours readable."""
    raw = msgspec.Raw(b"\x81\xa4type\xa2\xff\xff")
    assert skipped(raw)


@pytest.mark.parametrize("block_hash", [-1, -5, 0, 2**63, 2**64 - 1, -(2**63), b"x" * 32, b""])
def test_hashes_are_ints_of_either_sign_or_bytes_in_every_field(block_hash: Any) -> None:
    """Signed, unsigned and digests, mixed, as hash and as parent."""
    stored = one({**STORED_MAP, "block_hashes": [block_hash, 7], "parent_block_hash": block_hash})
    assert stored.block_hashes == [block_hash, 7]
    assert stored.parent_block_hash == block_hash
    assert one(["BlockRemoved", [block_hash]]).block_hashes == [block_hash]


@pytest.mark.parametrize("block_size", [0, None])
@pytest.mark.parametrize("tokens", [[], None])
def test_a_change_of_tier_without_tokens_or_block_size_is_an_event(
    block_size: Any, tokens: Any
) -> None:
    """CPU-tier stores look like this (vllm-project/vllm#39275, #43468)."""
    stored = one({**STORED_MAP, "block_size": block_size, "token_ids": tokens, "medium": "CPU"})
    assert (list(stored.token_ids), stored.block_size, stored.medium) == ([], block_size, "CPU")


def test_eagle_token_pairs_are_kept() -> None:
    """SGLang sends pairs under EAGLE; its own reader fails on them."""
    assert one({**STORED_MAP, "token_ids": [[1, 2], [2, 3]]}).token_ids == [[1, 2], [2, 3]]


@pytest.mark.parametrize("rest", [(), (3,), (3, "more"), (3, {"epoch": 1}, [2])])
def test_batches_of_two_three_and_more_elements(rest: tuple[Any, ...]) -> None:
    """A missing rank reads as None, further elements are ignored."""
    batch, count = decode({"type": "AllBlocksCleared"}, rest=rest)
    assert (batch.events, batch.dp_rank, count) == (
        [AllBlocksCleared()],
        rest[0] if rest else None,
        0,
    )


@pytest.mark.parametrize(
    ("ts", "read"),
    [(5, 5.0), (-1, -1.0), (2.5, 2.5)]
    + [(bad, 0.0) for bad in (math.nan, math.inf, -math.inf, True, None, "now", [1])],
)
def test_a_timestamp_is_a_finite_float_whatever_came(ts: Any, read: float) -> None:
    """An unusable timestamp reads as 0.0 and costs no event, in either form."""
    batch, _ = decode({"type": "AllBlocksCleared"}, ts=ts)
    assert (batch.ts, type(batch.ts), batch.events) == (read, float, [AllBlocksCleared()])
    legacy, _ = decode(["AllBlocksCleared"], ts=ts)
    assert (legacy.ts, legacy.events) == (read, [AllBlocksCleared()])


@pytest.mark.parametrize(("rank", "read"), [(-1, -1), (None, None), ("0", None), (True, None)])
def test_a_rank_that_is_no_int_reads_as_none(rank: Any, read: int | None) -> None:
    """An unusable rank costs no event."""
    batch, _ = decode({"type": "AllBlocksCleared"}, rest=(rank,))
    assert (batch.dp_rank, batch.events) == (read, [AllBlocksCleared()])


def test_maps_and_positional_events_mix_in_one_batch() -> None:
    """Each event is read by its own form."""
    batch, count = decode(
        ["BlockStored", [1], None, [5, 6], 2, None, "GPU", "adapter", [None], 0],
        STORED_MAP,
        ["BlockRemoved", [1], "CPU"],
        ["AllBlocksCleared"],
    )
    assert count == 0
    assert batch.events == [
        BlockStored([1], None, [5, 6], 2, None, "GPU", "adapter", [None], 0),
        BlockStored([1], None, [5], 1),
        BlockRemoved([1], "CPU"),
        AllBlocksCleared(),
    ]


@pytest.mark.parametrize("rank", [{}, {"data_parallel_rank": 3}])
def test_a_batch_as_a_map_is_read(rank: dict[str, int]) -> None:
    """One development version of vLLM wrote the batch, too, as a map."""
    payload = pack({"ts": 1.5, "events": [STORED_MAP, {"type": "New"}], **rank})
    decoded = BatchDecoder().decode(payload)
    assert decoded.batch.events == [BlockStored([1], None, [5], 1)]
    assert (decoded.batch.ts, decoded.batch.dp_rank, decoded.skipped_events) == (
        1.5,
        rank.get("data_parallel_rank"),
        1,
    )


def test_positional_events_alone_are_our_public_classes() -> None:
    """The quick path for the legacy form yields the same classes as the others."""
    batch, _ = decode(["BlockStored", [1], None, [5], 1, None], ["BlockRemoved", [1]])
    assert [type(event) for event in batch.events] == [BlockStored, BlockRemoved]


def test_positional_events_longer_than_we_know_are_read_as_far_as_we_know() -> None:
    """A longer array is a newer engine's, not an error."""
    assert one(["BlockRemoved", [1], "GPU", 0, "LOCAL", "tier", "new", {}]) == BlockRemoved(
        [1], "GPU", 0, "LOCAL", "tier"
    )


def test_mooncake_master_records_are_taken() -> None:
    """Ran with mooncake_master 0.3.14: no hash, nil block size and tokens, lower-case medium."""
    event = {
        "event_id": 1,
        "event_type": "stored",
        "type": "BlockStored",
        "block_size": None,
        "token_ids": None,
        "block_hashes": [],
        "object_key": "k",
        "medium": "cpu",
        "tenant_id": "t",
        "backend_id": "b",
    }
    assert decode(event, ts=1796097367970)[0].events == [
        BlockStored([], block_size=None, medium="cpu")
    ]


def test_the_names_of_mooncake_s_proposal_are_understood() -> None:
    """kvcache-ai/Mooncake#1527: event_type, seq_hashes, parent_hash, additional_salt."""
    stored = one(
        {
            "event_type": "stored",
            "seq_hashes": [2**63],
            "parent_hash": 9,
            "token_ids": [1],
            "block_size": 1,
            "additional_salt": "s",
        }
    )
    assert stored == BlockStored([2**63], 9, [1], 1, cache_salt="s")
    assert one({"event_type": "removed", "seq_hashes": [1]}) == BlockRemoved([1])
    assert one({"event_type": "cleared"}) == AllBlocksCleared()


def test_a_medium_of_another_type_is_read_as_text() -> None:
    """A medium is a name, whatever its type was."""
    assert one({"type": "BlockRemoved", "block_hashes": [1], "medium": 2}).medium == "2"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        pack(None),
        pack({"ts": 1.0}),
        pack([]),
        pack([1.0]),
        pack([1.0, None, 0]),
        pack([1.0, {}, 0]),
        pack([1.0, [], 0]) + b"\x00",
        pack([1.0, [STORED_MAP], 0])[:-3],
        b"\x91" * 100_000,
        b"\x93\xcb?\xf0\x00\x00\x00\x00\x00\x00\xdd\xff\xff\xff\xff",
        b"\x93\x01\xdc\xff\xff" + b"\xdc\xff\xff" * 1000,
        b"\xc7\xff\x01",
        None,
        "text",
    ],
    ids=range(16),
)
def test_what_is_no_batch_raises_decode_error(payload: Any) -> None:
    """Truncated, trailing, deeply nested, absurdly long: one error, at once."""
    with pytest.raises(DecodeError):
        BatchDecoder().decode(payload)


def test_deep_nesting_inside_an_event_costs_that_event() -> None:
    """Nesting within the decoder's depth is an unknown value, no error."""
    deep = msgspec.Raw(b"\x82\xa4type\xabBlockStored\xa1x" + b"\x91" * 500 + b"\xc0")
    batch, count = decode(deep, {"type": "AllBlocksCleared"})
    assert (len(batch.events) + count, batch.events[-1]) == (2, AllBlocksCleared())


def test_the_error_shows_size_and_beginning_of_the_bytes() -> None:
    """Whoever reads the log can tell what came."""
    with pytest.raises(DecodeError, match=r"3 bytes, starting with c0 c0 c0"):
        BatchDecoder().decode(b"\xc0\xc0\xc0")


def test_memoryviews_decode_like_bytes() -> None:
    """Frames of pyzmq need no copy."""
    payload = pack([1.5, [STORED_MAP, ["AllBlocksCleared"]], 0])
    assert BatchDecoder().decode(memoryview(payload)) == BatchDecoder().decode(payload)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [(-5, 2**64 - 5), (2**64 - 5, 2**64 - 5), (0, 0), (2**70 + 3, 3), (b"x" * 32, b"x" * 32)],
)
def test_equal_hashes_have_one_canonical_form(given: Any, canonical: Any) -> None:
    """Signed (SGLang) and unsigned (vLLM) are one hash; digests stay bytes."""
    assert normalise_hash(given) == canonical
