"""What is done with a batch that does not go whole: too large for the transport, or not encodable.

Every event that can be kept is; what cannot is told, one loss for each reason. Does no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvevents_core import stats
from kvevents_core.outbox import count_events

if TYPE_CHECKING:
    from kvevents_core.wire import BatchEncoder


def keep_what_survives(
    encoder: BatchEncoder,
    batch: Any,
    max_message_bytes: int,
    *,
    keep: Callable[[bytes, int], None],
    lose: Callable[[str, int], None],
) -> None:
    """Pass what is left of ``batch`` on, in order.

    Args:
        encoder: Encodes and cuts.
        batch: An engine's batch, or what should have been one.
        max_message_bytes: Largest payload.
        keep: Called with each payload and how many events count for it.
        lose: Called with a reason and how many events are lost by it.
    """
    payload, lost = encoder.encode_surviving(batch)
    if payload is None:
        lose(stats.ENCODE, lost)
    elif len(payload) > max_message_bytes:
        _keep_parts(encoder, batch, max_message_bytes, keep, lose)
    else:
        keep(payload, count_events(batch) - lost)
        if lost:
            lose(stats.ENCODE, lost)


def _keep_parts(
    encoder: BatchEncoder,
    batch: Any,
    max_message_bytes: int,
    keep: Callable[[bytes, int], None],
    lose: Callable[[str, int], None],
) -> None:
    parts = encoder.split(batch, max_message_bytes)
    events = count_events(batch) - parts.too_large_events - parts.unencodable_events
    for index, payload in enumerate(parts.payloads):
        # A cut event is one event still: the first part carries the count of the batch.
        keep(payload, events if index == 0 else 0)
    if parts.too_large_events or not parts.payloads:
        lose(stats.TOO_LARGE, parts.too_large_events)
    if parts.unencodable_events:
        lose(stats.ENCODE, parts.unencodable_events)
