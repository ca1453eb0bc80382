"""What the encoder writes, and what it does with what cannot be written."""

import enum
import threading
from array import array
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from interop.engine_schemas import SglangBatch, VllmBatch, VllmRemoved, VllmStored

from kvevents_core.errors import EncodeError
from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.wire import BatchDecoder, BatchEncoder

HASHES = [2**63 + 1, 2**64 - 1]
BAD_EVENT = object()


class Array4096:
    """Stands in for a numpy array: msgspec does not know it, it has ``tolist``."""

    def tolist(self) -> list[int]:
        return list(range(4096))


class Device:
    """Stands in for a device object given as ``medium``."""

    def __str__(self) -> str:
        return "GPU"


class Medium(enum.Enum):
    GPU = "GPU"


def decoded(payload: bytes) -> Any:
    """Return what is in ``payload``, read by msgspec alone."""
    return msgspec.msgpack.decode(payload)


def events_of(*events: Any, **options: Any) -> list[Any]:
    """Return the events of a batch as they are on the wire."""
    batch = KVEventBatch(1.0, list(events))
    return list(decoded(BatchEncoder(0, **options).encode(batch))[1])


def test_a_store_has_every_key_vllm_router_demands_and_none_it_rejects() -> None:
    """The nullable keys are always there; no other key is there with nil."""
    assert events_of(BlockStored([1])) == [
        {
            "type": "BlockStored",
            "block_hashes": [1],
            "parent_block_hash": None,
            "token_ids": [],
            "block_size": 0,
            "lora_id": None,
            "medium": None,
            "lora_name": None,
        }
    ]


def test_a_removal_always_has_its_medium() -> None:
    """Without the key vllm-router loses the batch; nil is allowed."""
    assert events_of(BlockRemoved([1])) == [
        {"type": "BlockRemoved", "block_hashes": [1], "medium": None}
    ]


def test_a_clear_is_the_tag_alone_unless_it_names_a_tier() -> None:
    """Both engines send the tag and nothing else."""
    assert events_of(AllBlocksCleared(), AllBlocksCleared("CPU")) == [
        {"type": "AllBlocksCleared"},
        {"type": "AllBlocksCleared", "medium": "CPU"},
    ]


def test_optional_keys_are_written_when_they_have_a_value() -> None:
    """0 is a value, None is not."""
    stored = BlockStored([1], extra_keys=[None], group_idx=0, cache_salt="s", session_id="x")
    (event,) = events_of(stored)
    assert (event["extra_keys"], event["group_idx"]) == ([None], 0)
    assert (event["cache_salt"], event["session_id"]) == ("s", "x")


@pytest.mark.parametrize("ts", [5, True, 5.0])
def test_the_batch_is_float_list_int(ts: Any) -> None:
    """AIBrix loses a batch whose timestamp is an int; Dynamo one without its third element."""
    payload = BatchEncoder(2).encode(KVEventBatch(ts, []))
    assert [type(element) for element in decoded(payload)] == [float, list, int]
    assert decoded(payload)[2] == 2


def test_a_rank_that_is_set_stays() -> None:
    """A relay passes other streams' ranks on."""
    assert decoded(BatchEncoder(2).encode(KVEventBatch(1.0, [], 7)))[2] == 7


def test_rank_zero_is_written() -> None:
    """Rank 0 is no default to be left out, also in a struct that omits defaults."""
    assert decoded(BatchEncoder(0).encode(VllmBatch(1.0, []))) == [1.0, [], 0]


class FrozenBatch(msgspec.Struct, array_like=True, frozen=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


@dataclass
class PlainBatch:
    ts: float
    events: list[Any]
    attn_dp_rank: int | None = None


class RanklessBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[Any]


@pytest.mark.parametrize("kind", [FrozenBatch, PlainBatch, RanklessBatch])
def test_batches_of_any_class_leave_as_three_elements(kind: Any) -> None:
    """A batch that cannot be stamped, or would not be an array, is sent in our own shape."""
    batch = kind(1, [AllBlocksCleared()])
    assert decoded(BatchEncoder(4).encode(batch)) == [1.0, [{"type": "AllBlocksCleared"}], 4]


def test_heartbeat_is_an_empty_batch_and_opening_a_clear() -> None:
    """Both are whole batches with the stream's rank, in the stream's dialect."""
    encoder = BatchEncoder(3)
    assert decoded(encoder.heartbeat(7)) == [7.0, [], 3]
    assert decoded(encoder.opening(7.5)) == [7.5, [{"type": "AllBlocksCleared"}], 3]
    array_opening = BatchEncoder(3, dialect="array").opening(7.5)
    assert decoded(array_opening) == [7.5, [["AllBlocksCleared"]], 3]


@pytest.mark.parametrize(
    ("given", "sent"),
    [(2**64 + 5, 5), (-(2**63) - 1, 2**63 - 1), (2**64 - 1, 2**64 - 1), (-(2**63), -(2**63))],
)
def test_hashes_msgpack_cannot_hold_keep_their_low_64_bits(given: int, sent: int) -> None:
    """A wide int costs no event (ai-dynamo/dynamo#5386); one that fits is untouched."""
    stored, removed = events_of(BlockStored([given], given), BlockRemoved([given]))
    assert stored["block_hashes"] == [sent]
    assert stored["parent_block_hash"] == sent
    assert removed["block_hashes"] == [sent]


@pytest.mark.parametrize("medium", [Device(), Medium.GPU, type("Str", (str,), {})("GPU")])
def test_a_medium_of_any_type_is_sent_as_its_name(medium: Any) -> None:
    """A device object or enum as medium costs no event (LMCache/LMCache#2441)."""
    assert events_of(BlockStored([1], medium=medium))[0]["medium"] == "GPU"
    assert events_of(BlockStored([2**64], medium=medium))[0]["medium"] == "GPU"


def test_text_that_is_no_unicode_is_escaped_rather_than_lost() -> None:
    """A lone surrogate in a name costs no event."""
    (event,) = events_of(BlockStored([1], session_id="a\ud800"))
    assert event["session_id"] == "a\\ud800"


@pytest.mark.parametrize(
    "tokens", [array("q", range(4096)), tuple(range(4096)), Array4096(), range(4096)]
)
@pytest.mark.parametrize("dialect", ["native", "array"])
def test_tokens_in_arrays_are_sent_as_a_list(tokens: Any, dialect: str) -> None:
    """The bytes are those of a list of ints, also when another field needs repair."""
    for block_hash in (1, 2**64 + 1):
        given = KVEventBatch(1.0, [BlockStored([block_hash], None, tokens, 4096)])
        same = KVEventBatch(1.0, [BlockStored([1], None, list(range(4096)), 4096)])
        encoder = BatchEncoder(0, dialect=dialect)
        assert encoder.encode(given) == encoder.encode(same)


def test_subclasses_of_int_and_float_are_sent_by_value() -> None:
    """Scalars of numpy are such subclasses or look like them."""
    big = type("Int", (int,), {})(2**63)
    batch = KVEventBatch(type("Float", (float,), {})(1.5), [BlockRemoved([big])])
    assert decoded(BatchEncoder(0).encode(batch))[:2] == [
        1.5,
        [{"type": "BlockRemoved", "block_hashes": [2**63], "medium": None}],
    ]


def test_one_event_that_cannot_be_encoded_costs_that_event() -> None:
    """The rest of the batch is sent, the loss is counted."""
    batch = KVEventBatch(1.0, [BlockRemoved([1]), BAD_EVENT, AllBlocksCleared()])
    payload, lost_events = BatchEncoder(0).encode_surviving(batch)
    assert lost_events == 1
    assert payload == BatchEncoder(0).encode(
        KVEventBatch(1.0, [BlockRemoved([1]), AllBlocksCleared()])
    )


def test_encode_refuses_to_lose_events_and_says_how_many() -> None:
    """``encode`` is all or nothing; its error gives the numbers."""
    batch = KVEventBatch(1.0, [BlockRemoved([1]), BAD_EVENT, BlockStored([BAD_EVENT])])  # type: ignore[list-item]
    with pytest.raises(EncodeError, match="2 of 3 events"):
        BatchEncoder(0).encode(batch)


@pytest.mark.parametrize(
    ("batch", "lost_events"),
    [(None, 0), (KVEventBatch("x", [1, 2]), 2), (KVEventBatch(1.0, None), 0), ([1.0, [], 0], 0)],  # type: ignore[arg-type]
)
def test_what_is_no_batch_is_lost_whole(batch: Any, lost_events: int) -> None:
    """None of it raises out of ``encode_surviving``."""
    encoder = BatchEncoder(0)
    assert encoder.encode_surviving(batch) == (None, lost_events)
    with pytest.raises(EncodeError, match="not a batch"):
        encoder.encode(batch)


def test_an_event_that_contains_itself_is_lost_alone() -> None:
    """Endless nesting is one more event that cannot be encoded."""
    loop: list[Any] = []
    loop.append(loop)
    batch = KVEventBatch(1.0, [BlockStored([1], extra_keys=loop), AllBlocksCleared()])
    payload, lost_events = BatchEncoder(0).encode_surviving(batch)
    assert payload is not None
    assert (decoded(payload)[1], lost_events) == ([{"type": "AllBlocksCleared"}], 1)


def test_events_handed_over_are_never_altered() -> None:
    """Repairs and omissions are made on copies: the engine may still hold its events."""
    stored = VllmStored([2**64 + 1], None, [1, 2], 2, None, "GPU", None, lookahead_token_ids=[[3]])
    before = msgspec.structs.astuple(stored)
    for options in ({}, {"omit_token_ids": True}, {"dialect": "array", "omit_token_ids": True}):
        BatchEncoder(0, **options).encode(VllmBatch(1.0, [stored]))
    assert msgspec.structs.astuple(stored) == before


@pytest.mark.parametrize("dialect", ["native", "array"])
def test_omit_token_ids_leaves_no_prompt_token_behind(dialect: str) -> None:
    """``token_ids`` is an empty list, tokens under any other name are gone, the rest stays."""
    stored = VllmStored(
        [1, 2], None, [9707, 11], 1, None, "GPU", None, lookahead_token_ids=[[77], [78]]
    )
    encoder = BatchEncoder(0, dialect=dialect, omit_token_ids=True)
    batch = VllmBatch(1.0, [stored, VllmRemoved([1], "GPU")])
    event = BatchDecoder().decode(encoder.encode(batch)).batch.events[0]
    assert event == BlockStored([1, 2], None, [], 1, medium="GPU")


def test_omit_token_ids_drops_what_it_cannot_look_into() -> None:
    """No prompt text leaves because an event came in an unknown form."""
    batch = KVEventBatch(1.0, [{"type": "BlockStored", "token_ids": [1]}, AllBlocksCleared()])
    payload, lost_events = BatchEncoder(0, omit_token_ids=True).encode_surviving(batch)
    assert payload is not None
    assert (decoded(payload)[1], lost_events) == ([{"type": "AllBlocksCleared"}], 1)


def test_array_dialect_trims_trailing_nils_but_not_the_first_six_items() -> None:
    """The first six items of a store were written by every engine that sent arrays."""
    assert events_of(
        BlockStored([1]),
        BlockStored([1], 2, [3], 1, medium="GPU"),
        BlockStored([1], token_ids=None, locality="LOCAL"),  # type: ignore[arg-type]
        BlockRemoved([1]),
        BlockRemoved([1], "CPU"),
        dialect="array",
    ) == [
        ["BlockStored", [1], None, [], 0, None],
        ["BlockStored", [1], 2, [3], 1, None, "GPU"],
        ["BlockStored", [1], None, [], 0, None, None, None, None, None, None, None, "LOCAL"],
        ["BlockRemoved", [1]],
        ["BlockRemoved", [1], "CPU"],
    ]


def test_array_dialect_counts_events_without_a_positional_form() -> None:
    """An event kind that arrays never had is lost alone and counted."""

    class BlockTransferred(msgspec.Struct, tag="BlockTransferred", tag_field="type"):
        block_hashes: list[int]

    batch = SglangBatch(1.0, [BlockTransferred([1]), AllBlocksCleared()])
    assert BatchEncoder(0).encode_surviving(batch)[1] == 0
    payload, lost_events = BatchEncoder(0, dialect="array").encode_surviving(batch)
    assert payload is not None
    assert (decoded(payload)[1], lost_events) == ([["AllBlocksCleared"]], 1)


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    """The error says what to type instead."""
    with pytest.raises(EncodeError, match="native, array"):
        BatchEncoder(0, dialect="json")


def test_encoders_start_no_thread() -> None:
    """Wire code is pure."""
    before = threading.active_count()
    BatchEncoder(0)
    BatchDecoder()
    assert threading.active_count() == before
