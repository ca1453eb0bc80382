"""A block-granular prefix cache with LRU eviction that reports itself as an engine does.

Only full blocks are cached. A block's hash covers its tokens and its parent's hash (SHA-256, of
which the first 8 bytes are reported as a signed integer, as SGLang 0.5.23 does), so equal tokens
behind different prefixes are different blocks. It never publishes; whoever owns the cache takes the
events. One thread.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent

_ROOT: Final = b""


@dataclass(frozen=True, slots=True)
class Block:
    """One full block of a sequence: its tokens and the digest that names it."""

    digest: bytes
    parent_digest: bytes
    """Empty for the first block of a sequence."""
    tokens: tuple[int, ...]

    @property
    def hash(self) -> int:
        """The signed 64-bit name that events carry."""
        return reported_hash(self.digest)


def digest_of(parent_digest: bytes, tokens: Iterable[int]) -> bytes:
    """Return the digest of the block that holds ``tokens`` (each < 2**32) behind its parent."""
    words = tuple(tokens)
    return hashlib.sha256(parent_digest + struct.pack(f"<{len(words)}I", *words)).digest()


def reported_hash(digest: bytes) -> int:
    """Return the form of ``digest`` that events carry: its first 8 bytes, two's complement."""
    return int.from_bytes(digest[:8], "big", signed=True)


class Chain:
    """The hash chain of one growing sequence; each token is hashed once."""

    def __init__(self, block_size: int, tokens: Iterable[int] = ()) -> None:
        self.block_size = block_size
        self.blocks: list[Block] = []
        """The full blocks, first to last."""
        self._tail: list[int] = []
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append ``tokens``; full blocks form as they fill."""
        self._tail.extend(tokens)
        full = len(self._tail) - len(self._tail) % self.block_size
        for start in range(0, full, self.block_size):
            block_tokens = tuple(self._tail[start : start + self.block_size])
            parent = self.blocks[-1].digest if self.blocks else _ROOT
            self.blocks.append(Block(digest_of(parent, block_tokens), parent, block_tokens))
        del self._tail[:full]


@dataclass(frozen=True, slots=True)
class Stored:
    """What one ``PrefixCache.store`` did, in blocks."""

    hit: int
    new: int
    evicted: int
    uncached: int
    """Blocks of the sequence that did not fit: it is longer than the whole cache."""


@dataclass(slots=True)
class PrefixCache:
    """The KV cache of one data-parallel rank, as one of its processes sees it.

    Args:
        capacity_blocks: Blocks it holds at most, at least 1.
        block_size: Tokens per block, at least 1.
        medium: Tier named in the events.
        records_events: False where the rank gate is closed: nothing is recorded, so nothing piles
            up that nobody drains.
    """

    capacity_blocks: int
    block_size: int = 16
    medium: str = "GPU"
    records_events: bool = True
    recorded_events: int = 0
    """Events recorded since the start, taken or not."""
    _events: list[KVCacheEvent] = field(default_factory=list)
    _resident: OrderedDict[bytes, Block] = field(default_factory=OrderedDict)
    """Least recently used first. Using a block uses its ancestors after it, so that a child always
    stands before its parent and the first entry is always a leaf."""

    def __post_init__(self) -> None:
        if self.capacity_blocks < 1 or self.block_size < 1:
            raise ValueError(
                f"a cache of {self.capacity_blocks} blocks of {self.block_size} tokens is not "
                "possible; both must be at least 1"
            )

    def __len__(self) -> int:
        """Blocks held now."""
        return len(self._resident)

    def store(self, chain: Chain) -> Stored:
        """Use the blocks of ``chain`` that are cached and add the rest, evicting what is oldest."""
        fitting = chain.blocks[: self.capacity_blocks]
        hit = self._use_cached_prefix(fitting)
        new = fitting[hit:]
        evicted = self._make_room(len(new))
        for block in reversed(new):
            self._resident[block.digest] = block
        self._use(fitting[:hit])
        if new:
            self._record(self._stored_event(new))
        return Stored(hit, len(new), evicted, len(chain.blocks) - len(fitting))

    def clear(self) -> None:
        """Forget everything, as ``flush_cache`` or a change of weights does."""
        self._resident.clear()
        self._record(AllBlocksCleared())

    def take_events(self) -> list[KVCacheEvent]:
        """Return the events since the last call, in order, and forget them."""
        events, self._events = self._events, []
        return events

    def dump(self) -> frozenset[int]:
        """Return the hash of every block held, worked out anew from the tokens it holds.

        It shares nothing with the events but the hash function, so it can judge a mirror that was
        built from events.
        """
        fresh: dict[bytes, bytes] = {_ROOT: _ROOT}
        for digest, block in reversed(self._resident.items()):
            fresh[digest] = digest_of(fresh[block.parent_digest], block.tokens)
        del fresh[_ROOT]
        return frozenset(reported_hash(digest) for digest in fresh.values())

    def _use_cached_prefix(self, blocks: list[Block]) -> int:
        hit = 0
        while hit < len(blocks) and blocks[hit].digest in self._resident:
            hit += 1
        self._use(blocks[:hit])
        return hit

    def _use(self, prefix: list[Block]) -> None:
        for block in reversed(prefix):
            self._resident.move_to_end(block.digest)

    def _make_room(self, blocks: int) -> int:
        surplus = len(self._resident) + blocks - self.capacity_blocks
        if surplus <= 0:
            return 0
        removed = [self._resident.popitem(last=False)[1].hash for _ in range(surplus)]
        self._record(BlockRemoved(block_hashes=list(removed), medium=self.medium))
        return surplus

    def _stored_event(self, blocks: list[Block]) -> BlockStored:
        parent = blocks[0].parent_digest
        return BlockStored(
            block_hashes=[block.hash for block in blocks],
            parent_block_hash=reported_hash(parent) if parent else None,
            token_ids=[token for block in blocks for token in block.tokens],
            block_size=self.block_size,
            medium=self.medium,
        )

    def _record(self, event: KVCacheEvent) -> None:
        if self.records_events:
            self.recorded_events += 1
            self._events.append(event)
