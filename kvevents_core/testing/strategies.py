"""hypothesis strategies: events, batches and payloads as engines make them, and odder ones."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.wire import BatchEncoder

MEDIA = ("GPU", "CPU", "CPU_PINNED", "DISK", "STORAGE", "EXTERNAL")


def block_hashes() -> st.SearchStrategy[int | bytes]:
    """Hashes of both engines: signed and unsigned 64-bit ints, and whole digests."""
    signed = st.integers(-(2**63), 2**63 - 1)
    unsigned = st.integers(0, 2**64 - 1)
    return st.one_of(signed, unsigned, st.binary(min_size=32, max_size=32))


@st.composite
def stored_events(draw: st.DrawFn, max_blocks: int = 4) -> BlockStored:
    """A chain of blocks whose tokens fill it exactly, as engines store them."""
    block_size = draw(st.sampled_from((1, 4, 16)))
    hashes = draw(st.lists(block_hashes(), min_size=1, max_size=max_blocks))
    count = len(hashes) * block_size
    tokens = draw(st.lists(st.integers(0, 200_000), min_size=count, max_size=count))
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=draw(st.none() | block_hashes()),
        token_ids=tokens,
        block_size=block_size,
        medium=draw(st.none() | st.sampled_from(MEDIA)),
        lora_name=draw(st.none() | st.text(max_size=8)),
    )


def removed_events() -> st.SearchStrategy[BlockRemoved]:
    """Some blocks leave a tier."""
    return st.builds(
        BlockRemoved,
        block_hashes=st.lists(block_hashes(), min_size=1, max_size=4),
        medium=st.none() | st.sampled_from(MEDIA),
    )


def events() -> st.SearchStrategy[Any]:
    """Any of the three events."""
    return st.one_of(stored_events(), removed_events(), st.builds(AllBlocksCleared))


def batches(max_events: int = 5) -> st.SearchStrategy[KVEventBatch]:
    """One engine step; without events it is a heartbeat."""
    return st.builds(
        KVEventBatch,
        ts=st.floats(0, 4e9, allow_nan=False),
        events=st.lists(events(), max_size=max_events),
    )


def payloads(rank: int = 0) -> st.SearchStrategy[bytes]:
    """Batches as core encodes them, and bytes that no encoder makes."""
    encoded = batches().map(BatchEncoder(rank).encode)
    return st.one_of(encoded, st.binary(min_size=1, max_size=300))
