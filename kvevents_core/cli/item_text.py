"""One item of a subscription as one line: for people, or as JSON for programs.

Hashes are hexadecimal strings in JSON, since many readers of JSON keep only 53 bits of a number.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from kvevents_core import (
    AllBlocksCleared,
    Batch,
    BlockRemoved,
    BlockStored,
    Conflict,
    Gap,
    Restarted,
    Silent,
)
from kvevents_core.items import Item
from kvevents_core.wire import normalise_hash


def item_line(item: Item) -> str:
    """Return ``item`` as one line for people."""
    head = f"rank {item.stream.rank}"
    match item:
        case Batch():
            when = datetime.fromtimestamp(item.ts).astimezone().strftime("%H:%M:%S.%f")[:-3]
            replayed = "  (replayed)" if item.replayed else ""
            return f"{when}  {head}  seq {item.seq}  {_events_text(item)}{replayed}"
        case Gap():
            return f"GAP       {head}  seq {item.first_seq}-{item.last_seq} lost: {item.reason}"
        case Restarted():
            return f"RESTARTED {head}  epoch {item.previous_epoch} -> {item.epoch}"
        case Conflict():
            return f"CONFLICT  {head}  epoch {item.epoch} seq {item.seq}: {item.detail}"
        case Silent():
            return f"SILENT    {head}  nothing for {item.seconds:.1f} s"


def item_object(item: Item, *, token_ids: bool = False) -> dict[str, Any]:
    """Return ``item`` as a JSON-able object.

    Args:
        item: Any item of a subscription.
        token_ids: Whether to give the tokens themselves, which are the users' prompts, or only
            how many there are.
    """
    facts: dict[str, Any] = {
        "kind": type(item).__name__.lower(),
        "stream": str(item.stream),
        "rank": item.stream.rank,
    }
    for name in item.__struct_fields__[1:]:
        facts[name] = getattr(item, name)
    if isinstance(item, Batch):
        facts["events"] = [_event_object(event, token_ids=token_ids) for event in item.events]
    return facts


def hash_text(block_hash: int | bytes | None) -> str | None:
    """Return a block hash as hexadecimal text, 16 digits for a 64-bit one."""
    if block_hash is None:
        return None
    canonical = normalise_hash(block_hash)
    return canonical.hex() if isinstance(canonical, bytes) else f"{canonical:016x}"


def _events_text(batch: Batch) -> str:
    if not batch.events and not batch.skipped_events:
        return "heartbeat"
    blocks: Counter[str] = Counter()
    for event in batch.events:
        match event:
            case BlockStored():
                blocks[f"stored {event.medium or 'GPU'}"] += len(event.block_hashes)
            case BlockRemoved():
                blocks[f"removed {event.medium or 'GPU'}"] += len(event.block_hashes)
            case AllBlocksCleared():
                blocks["cleared"] += 1
    words = [what if what == "cleared" else f"{what} {count}" for what, count in blocks.items()]
    if batch.skipped_events:
        words.append(f"{batch.skipped_events} events not understood")
    return ", ".join(words)


def _event_object(event: Any, *, token_ids: bool) -> dict[str, Any]:
    facts: dict[str, Any] = {"type": type(event).__name__}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if name == "block_hashes":
            facts[name] = [hash_text(each) for each in value]
        elif name == "parent_block_hash":
            facts[name] = hash_text(value)
        elif name == "token_ids":
            facts["tokens"] = len(value)
            if token_ids:
                facts[name] = list(value)
        elif value is not None:
            facts[name] = value
    return facts
