"""Where a stream stands in Redis, and what one entry holds.

    key     kv-events:TENANT/MODEL/INSTANCE/RANK
    entry   ID = EPOCH-SEQ, one field ``p``: the payload
    set     kv-events: the names of all streams

Redis refuses an ID that is not above the last one. So the server itself keeps the order, takes a
record that is sent again for the duplicate it is, and turns a superseded publisher away.
"""

from __future__ import annotations

from kvevents_core import Record, StreamId

INDEX = "kv-events"


def key_of(stream: StreamId) -> str:
    """Return the key of ``stream``."""
    return f"{INDEX}:{stream}"


def id_of(record: Record) -> str:
    """Return the entry ID of ``record``."""
    return f"{record.epoch}-{record.seq}"


def epoch_of(entry_id: bytes) -> int | None:
    """Return the epoch of an entry ID; None of 0-0, the last ID of a stream without entries."""
    return int(entry_id.partition(b"-")[0]) or None


def record_of(stream: StreamId, entry_id: bytes, fields: dict[bytes, bytes]) -> Record | None:
    """Return the record of an entry, or None if it is none of ours."""
    epoch, _, seq = entry_id.partition(b"-")
    if set(fields) != {b"p"}:
        return None
    return Record(stream, int(epoch), int(seq), fields[b"p"])
