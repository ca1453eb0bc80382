"""Batches to bytes and back: strict in what it writes, lenient in what it reads.

A payload is one msgpack document::

    [ts: float, events: [event, ...], rank: int]

    event, dialect "native":  {"type": "BlockStored", "block_hashes": [...], ...}
    event, dialect "array":   ["BlockStored", block_hashes, parent_block_hash, token_ids, ...]

Native is what SGLang 0.5.23 and vLLM 0.33.0 send, array what both sent until mid-2026. Sequence
numbers and epochs travel outside the payload. ``docs/reference/wire.md`` has the tables. This
package is pure: no thread, socket, clock, log or client library.
"""

from __future__ import annotations

from kvevents_core.wire.decode import BatchDecoder, DecodedBatch
from kvevents_core.wire.encode import BatchEncoder
from kvevents_core.wire.hashes import normalise_hash
from kvevents_core.wire.split import SplitBatch

__all__ = ["BatchDecoder", "BatchEncoder", "DecodedBatch", "SplitBatch", "normalise_hash"]
