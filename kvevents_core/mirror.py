"""The blocks each stream says it holds, by tier. May hold less than the cache, never more.

So whenever a removal may have been missed, the stream is forgotten: on an unrecovered ``Gap``, on
``Restarted``, and when a batch held events that could not be read. Blocks stored later count again.
Hashes are opaque and belong to their stream and epoch; LoRA, salt and images are inside them. Does
no I/O and takes no lock: apply and read on one thread.
"""

from __future__ import annotations

from typing import Final

from kvevents_core.events import AllBlocksCleared, BlockHash, BlockRemoved, BlockStored
from kvevents_core.items import Batch, Gap, Item, Restarted
from kvevents_core.naming import StreamId
from kvevents_core.wire.hashes import normalise_hash

_TIERS: Final = {
    "CPU_PINNED": "CPU",  # SGLang's name of what vLLM calls CPU
    "CPU_TIER1": "CPU",  # Dynamo's
    "STORAGE": "DISK",  # vLLM's name of what SGLang calls DISK
    "CPU_TIER2": "DISK",  # Dynamo's
}
"""Names that mean one tier; any other name is a tier of its own, whatever its case."""


class _Tier:
    """The blocks of one tier of one stream."""

    __slots__ = ("copies", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.copies: dict[BlockHash, int] = {}

    def store(self, hashes: list[BlockHash], *, counting: bool) -> None:
        if not counting:
            self.copies.update(dict.fromkeys(map(normalise_hash, hashes), 1))
            return
        for block_hash in map(normalise_hash, hashes):
            self.copies[block_hash] = self.copies.get(block_hash, 0) + 1

    def remove(self, hashes: list[BlockHash]) -> None:
        for block_hash in map(normalise_hash, hashes):
            left = self.copies.get(block_hash, 0) - 1
            if left > 0:
                self.copies[block_hash] = left
            else:
                self.copies.pop(block_hash, None)


class _Stream:
    """What is known of one stream."""

    __slots__ = ("epoch", "tiers")

    def __init__(self) -> None:
        self.epoch: int | None = None
        self.tiers: dict[str, _Tier] = {}

    def tier(self, medium: str | None) -> _Tier:
        name = medium or "GPU"
        key = name.upper()
        key = _TIERS.get(key, key)
        tier = self.tiers.get(key)
        if tier is None:
            tier = self.tiers[key] = _Tier(name)
        return tier


class Mirror:
    """Applies what a subscription yields and answers which blocks a stream holds.

    Args:
        count_copies: A block stored n times is held until it was removed n times. Off by default:
            engines repeat a store that they remove once, and a count then holds more than the
            cache does. Turn it on for a source that is known to remove each copy.
    """

    def __init__(self, *, count_copies: bool = False) -> None:
        self._count_copies = count_copies
        self._streams: dict[StreamId, _Stream] = {}

    def apply(self, item: Item) -> None:
        """Take one item of a subscription; ``Conflict`` and ``Silent`` change nothing."""
        if isinstance(item, Batch):
            self._apply_batch(item)
        elif isinstance(item, Gap):
            self._known(item.stream, item.epoch).tiers.clear()
        elif isinstance(item, Restarted):
            stream = self._known(item.stream, item.epoch)
            stream.epoch = item.epoch
            stream.tiers.clear()

    def streams(self) -> tuple[StreamId, ...]:
        """Return every stream heard of, in the order of first news."""
        return tuple(self._streams)

    def epoch(self, stream: StreamId) -> int | None:
        """Return the epoch that the stream's blocks belong to; None if unknown."""
        known = self._streams.get(stream)
        return known.epoch if known else None

    def blocks(self, stream: StreamId) -> frozenset[BlockHash]:
        """Return the hashes held in any tier, in canonical form (``normalise_hash``)."""
        known = self._streams.get(stream)
        return (
            frozenset().union(*(tier.copies for tier in known.tiers.values()))
            if known
            else frozenset()
        )

    def blocks_by_tier(self, stream: StreamId) -> dict[str, frozenset[BlockHash]]:
        """Return the hashes held per tier that holds any, under the tier's name as first seen.

        An event without ``medium`` speaks of ``GPU``. ``CPU`` and ``CPU_PINNED`` are one tier.
        """
        known = self._streams.get(stream)
        tiers = known.tiers.values() if known else ()
        return {tier.name: frozenset(tier.copies) for tier in tiers if tier.copies}

    def _known(self, stream: StreamId, epoch: int | None) -> _Stream:
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = _Stream()
        if epoch is not None and epoch != known.epoch:
            if known.epoch is not None:
                known.tiers.clear()
            known.epoch = epoch
        return known

    def _apply_batch(self, batch: Batch) -> None:
        stream = self._known(batch.stream, batch.epoch)
        if batch.skipped_events:
            stream.tiers.clear()
            return
        for event in batch.events:
            self._apply_event(stream, event)

    def _apply_event(self, stream: _Stream, event: object) -> None:
        if isinstance(event, BlockStored):
            stream.tier(event.medium).store(event.block_hashes, counting=self._count_copies)
        elif isinstance(event, BlockRemoved):
            stream.tier(event.medium).remove(event.block_hashes)
        elif isinstance(event, AllBlocksCleared):
            if event.medium is None:
                stream.tiers.clear()
            else:
                stream.tier(event.medium).copies.clear()
