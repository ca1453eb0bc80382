"""Golden payloads both ways: engines' objects to engines' bytes, engines' bytes to our events."""

from typing import Any

import msgspec
import pytest
from interop.engine_schemas import SglangReadBatch, VllmBatch
from interop.golden import GOLDEN

from kvevents_core.events import KVEventBatch
from kvevents_core.wire import BatchDecoder, BatchEncoder

each = pytest.mark.parametrize(
    ("theirs", "ours", "golden"),
    [
        pytest.param(theirs, ours, bytes.fromhex(text), id=name)
        for name, theirs, ours, text in GOLDEN
    ],
)


@each
def test_engine_batches_are_encoded_to_the_engine_s_bytes(
    theirs: Any, ours: KVEventBatch, golden: bytes
) -> None:
    """An engine's own structs, given to publish, leave exactly as the engine would send them."""
    assert BatchEncoder(9).encode(theirs) == golden


@each
def test_engine_bytes_decode_to_our_events(theirs: Any, ours: KVEventBatch, golden: bytes) -> None:
    """What an engine sends is read whole, nothing skipped."""
    decoded = BatchDecoder().decode(golden)
    assert decoded.batch == ours
    assert decoded.skipped_events == 0


@each
def test_the_rank_is_stamped_only_where_the_engine_left_it_open(
    theirs: Any, ours: KVEventBatch, golden: bytes
) -> None:
    """``data_parallel_rank`` and ``attn_dp_rank`` are filled when None, kept otherwise."""
    name = theirs.__struct_fields__[-1]
    unstamped = msgspec.structs.replace(theirs, **{name: None})
    assert BatchEncoder(ours.dp_rank or 0).encode(unstamped) == golden


@each
def test_array_dialect_says_the_same_in_positions(
    theirs: Any, ours: KVEventBatch, golden: bytes
) -> None:
    """An engine's structs in dialect ``array`` read back as the same events."""
    payload = BatchEncoder(0, dialect="array").encode(theirs)
    assert all(isinstance(event, list) for event in msgspec.msgpack.decode(payload)[1])
    assert BatchDecoder().decode(payload).batch == ours


@each
@pytest.mark.parametrize("reader", [VllmBatch, SglangReadBatch])
def test_the_engines_readers_take_our_structs(
    theirs: Any, ours: KVEventBatch, golden: bytes, reader: type[Any]
) -> None:
    """Our own structs carry every key that either engine's typed reader demands.

    SGLang's reader knows int hashes and plain tokens only; those rows are left to vLLM's, and
    token pairs to neither.
    """

    def readable(event: Any) -> bool:
        hashes = getattr(event, "block_hashes", [])
        pairs = any(isinstance(token, list) for token in getattr(event, "token_ids", ()))
        return not pairs and (reader is VllmBatch or all(isinstance(h, int) for h in hashes))

    batch = KVEventBatch(ours.ts, [event for event in ours.events if readable(event)], 0)
    read = msgspec.msgpack.decode(BatchEncoder(0).encode(batch), type=reader)
    assert [type(event).__struct_config__.tag for event in read.events] == [
        type(event).__struct_config__.tag for event in batch.events
    ]
    for theirs_read, sent in zip(read.events, batch.events, strict=True):
        for name in set(theirs_read.__struct_fields__) & {"block_hashes", "medium", "block_size"}:
            assert getattr(theirs_read, name) == getattr(sent, name)
