"""Properties of the wire: round trips, garbage, splitting, salvage."""

import math
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from interop.golden import GOLDEN

from kvevents_core.errors import DecodeError
from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.wire import BatchDecoder, BatchEncoder, normalise_hash

hashes = st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=32)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
tokens = st.integers(0, 2**32 - 1)
token_lists = st.lists(tokens, max_size=9) | st.lists(st.lists(tokens, min_size=2, max_size=2))
media = st.none() | st.sampled_from(["GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL"])
small = st.none() | st.integers(0, 2**31)
extra_keys = st.lists(st.none() | st.lists(text | st.integers(0, 9), max_size=3), max_size=3)

stored = st.builds(
    BlockStored,
    block_hashes=st.lists(hashes, max_size=4),
    parent_block_hash=st.none() | hashes,
    token_ids=token_lists,
    block_size=small,
    lora_id=small,
    medium=media,
    lora_name=st.none() | text,
    extra_keys=st.none() | extra_keys,
    group_idx=small,
    kv_cache_spec_kind=st.none() | text,
    kv_cache_spec_sliding_window=small,
    locality=st.none() | st.sampled_from(["LOCAL", "REMOTE"]),
    ownership=st.none() | text,
    session_id=st.none() | text,
    lookahead_token_ids=st.none() | st.lists(st.lists(tokens, max_size=3), max_size=3),
    cache_salt=st.none() | text,
)
removed = st.builds(
    BlockRemoved,
    block_hashes=st.lists(hashes, max_size=4),
    medium=media,
    group_idx=small,
    locality=st.none() | text,
    ownership=st.none() | text,
)
cleared = st.builds(AllBlocksCleared, medium=media)
events = stored | removed | cleared
batches = st.builds(
    KVEventBatch,
    ts=st.floats(allow_nan=False, allow_infinity=False),
    events=st.lists(events, max_size=5),
    dp_rank=st.integers(0, 63),
)
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | text
    | st.binary(max_size=9)
    | st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "type", "block_hashes"])
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=9)),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["type", "event_type", *BlockStored.__struct_fields__]) | text,
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(batch=batches, dialect=st.sampled_from(["native", "array"]))
def test_a_batch_survives_the_round_trip_in_every_dialect(
    batch: KVEventBatch, dialect: str
) -> None:
    """What is encoded is what is decoded, nothing skipped, hashes as they were."""
    decoded = BatchDecoder().decode(BatchEncoder(0, dialect=dialect).encode(batch))
    assert decoded.batch == batch
    assert decoded.skipped_events == 0


@given(given_events=st.lists(st.tuples(events, st.booleans()), max_size=6))
def test_dialects_may_mix_within_a_batch(given_events: list[tuple[Any, bool]]) -> None:
    """Each event is read by its own form, wherever it stands."""
    forms = [
        msgspec.Raw(
            msgspec.msgpack.encode(
                msgspec.msgpack.decode(
                    BatchEncoder(0, dialect="array" if positional else "native").encode(
                        KVEventBatch(1.0, [event])
                    )
                )[1][0]
            )
        )
        for event, positional in given_events
    ]
    decoded = BatchDecoder().decode(msgspec.msgpack.encode([1.0, forms, 0]))
    assert decoded.batch.events == [event for event, _ in given_events]
    assert decoded.skipped_events == 0


def check_decoding(payload: bytes) -> None:
    """Decode; the only error is DecodeError, and a result is always well formed."""
    try:
        decoded = BatchDecoder().decode(payload)
    except DecodeError:
        return
    batch = decoded.batch
    assert type(batch.ts) is float
    assert math.isfinite(batch.ts)
    assert batch.dp_rank is None or type(batch.dp_rank) is int
    for event in batch.events:
        assert type(event) in (BlockStored, BlockRemoved, AllBlocksCleared)
        for block_hash in getattr(event, "block_hashes", []):
            assert type(block_hash) in (int, bytes)
            normalise_hash(block_hash)
    BatchEncoder(0).encode(batch)


@given(payload=st.binary(max_size=200))
@example(b"\x91" * 100_000)
@example(b"\x93\x00\xdd\xff\xff\xff\xff")
@example(b"\x93\x00\x91" + b"\x81\xa1x" * 100_000)
@example(b"\x93\xd7\xff" + b"\xff" * 8 + b"\x90\x00")
@example(b"\x93\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00\x90\x00")
def test_no_bytes_raise_anything_but_decode_error(payload: bytes) -> None:
    """Garbage, bombs, truncation: one error, whatever came."""
    check_decoding(payload)


@given(
    golden=st.sampled_from([bytes.fromhex(row[3]) for row in GOLDEN]),
    position=st.integers(0, 10_000),
    replacement=st.binary(max_size=4),
    dropped=st.integers(0, 8),
)
def test_damaged_payloads_raise_nothing_but_decode_error(
    golden: bytes, position: int, replacement: bytes, dropped: int
) -> None:
    """An engine's payload with some bytes altered, lost or added."""
    at = position % len(golden)
    check_decoding(golden[:at] + replacement + golden[at + dropped :])


@given(
    ts=anything,
    given_events=st.lists(anything, max_size=5),
    rest=st.lists(anything, max_size=3),
)
def test_every_event_of_a_batch_is_either_read_or_counted(
    ts: Any, given_events: list[Any], rest: list[Any]
) -> None:
    """Nothing is lost in silence, whatever the events, the timestamp and the rank are."""
    payload = msgspec.msgpack.encode([ts, given_events, *rest])
    decoded = BatchDecoder().decode(payload)
    assert len(decoded.batch.events) + decoded.skipped_events == len(given_events)
    check_decoding(payload)


def chain(hashes_given: list[Any], block_size: int, pairs: bool) -> BlockStored:
    """Return a store whose tokens match its blocks."""
    numbers = range(len(hashes_given) * block_size)
    token_ids = [[number, number + 1] for number in numbers] if pairs else list(numbers)
    return BlockStored(
        hashes_given, 5, token_ids, block_size, extra_keys=[[str(h)] for h in hashes_given]
    )


chains = st.builds(
    chain, st.lists(hashes, min_size=1, max_size=30), st.integers(0, 20), st.booleans()
)


def blocks_of(batch_events: list[Any]) -> list[Any]:
    """Return the events block by block, so that cuts cannot be seen."""
    blocks: list[Any] = []
    for event in batch_events:
        if not isinstance(event, BlockStored):
            blocks += [(event.medium, h) for h in getattr(event, "block_hashes", ["clear"])]
            continue
        size = event.block_size or 0
        parents = [event.parent_block_hash, *event.block_hashes]
        for number, block_hash in enumerate(event.block_hashes):
            tokens_of_block = list(event.token_ids)[number * size : (number + 1) * size]
            keys = event.extra_keys[number] if event.extra_keys else None
            blocks.append((block_hash, parents[number], tokens_of_block, keys))
    return blocks


@given(
    given_events=st.lists(chains | removed.filter(lambda e: e.block_hashes) | cleared, max_size=6),
    limit_bytes=st.integers(0, 1200),
    dialect=st.sampled_from(["native", "array"]),
    omit_token_ids=st.booleans(),
)
def test_parts_keep_the_limit_and_say_together_what_the_batch_said(
    given_events: list[Any], limit_bytes: int, dialect: str, omit_token_ids: bool
) -> None:
    """Modulo cuts and counted events: same blocks, same parents, same order, no part too large."""
    encoder = BatchEncoder(2, dialect=dialect, omit_token_ids=omit_token_ids)
    batch = KVEventBatch(1.0, given_events, 2)
    parts = encoder.split(batch, limit_bytes)
    assert all(len(payload) <= limit_bytes for payload in parts.payloads)
    assert parts.unencodable_events == 0
    read = [BatchDecoder().decode(payload).batch for payload in parts.payloads]
    assert all((part.ts, part.dp_rank) == (1.0, 2) for part in read)

    kept = [
        event
        for event in given_events
        if encoder.split(KVEventBatch(1.0, [event], 2), limit_bytes).too_large_events == 0
    ]
    assert len(given_events) - len(kept) == parts.too_large_events
    whole = BatchDecoder().decode(encoder.encode(KVEventBatch(1.0, kept, 2))).batch.events
    assert blocks_of([event for part in read for event in part.events]) == blocks_of(whole)


wild_objects = st.sampled_from([object(), 2**70, -(2**70), "\ud800", {1: object()}, (), b"x"])


@given(
    given_events=st.lists(
        events
        | wild_objects
        | st.builds(BlockStored, st.lists(hashes | wild_objects, max_size=3), medium=wild_objects),
        max_size=5,
    ),
    omit_token_ids=st.booleans(),
    dialect=st.sampled_from(["native", "array"]),
)
def test_salvage_never_raises_and_counts_what_it_left_out(
    given_events: list[Any], omit_token_ids: bool, dialect: str
) -> None:
    """Events sent and events lost are the events given."""
    encoder = BatchEncoder(0, omit_token_ids=omit_token_ids, dialect=dialect)
    payload, lost_events = encoder.encode_surviving(KVEventBatch(1.0, given_events))
    assert payload is not None
    assert len(msgspec.msgpack.decode(payload)[1]) + lost_events == len(given_events)
