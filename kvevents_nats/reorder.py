"""Puts late records of a stream back into their place, where waiting can help (pure, no clock).

A publisher sends many records before the first is acknowledged. If the server drops one in the
middle (a change of leader, for example) the publisher sends it again, and it lands behind records
that come after it. So a hole that the publisher did not mark as meant (``after``, see ``subjects``)
is held open for a while before what follows is let through.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvevents_core import Record, StreamId


class Stored(NamedTuple):
    """A record as read from JetStream."""

    record: Record
    after: int | None
    """Seq of the record before it, where the publisher left seqs out between them."""
    log_seq: int
    """Its number in the JetStream stream."""


@dataclass(slots=True)
class _State:
    epoch: int
    next_seq: int
    held: dict[int, Stored] = field(default_factory=dict)
    held_bytes: int = 0
    held_since: float = 0.0


class Reorder:
    """Keeps records of each stream back while one before them may still come.

    Args:
        wait_s: How long a hole is held open.
        limit: Most records held per stream.
        limit_bytes: Most payload bytes held per stream.
    """

    def __init__(self, wait_s: float, limit: int, limit_bytes: int = 2**25) -> None:
        self._wait_s = wait_s
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._states: dict[StreamId, _State] = {}

    def push(self, stored: Stored, now: float) -> list[Stored]:
        """Return what may be passed on now that ``stored`` has come, in order."""
        record = stored.record
        epoch = record.epoch or 0
        state = self._states.get(record.stream)
        if state is None or epoch > state.epoch:
            released = self._release(state) if state else []
            self._states[record.stream] = _State(epoch, record.seq + 1)
            return [*released, stored]
        if epoch < state.epoch or record.seq < state.next_seq:
            return [stored]  # an older publisher's, or a repeat: the reader judges it
        if record.seq == state.next_seq or _is_meant(stored, state):
            state.next_seq = record.seq + 1
            return [stored, *self._follow(state)] if state.held else [stored]
        if not state.held:
            state.held_since = now
        state.held[record.seq] = stored
        state.held_bytes += len(record.payload)
        full = len(state.held) >= self._limit or state.held_bytes >= self._limit_bytes
        return self._release(state) if full else []

    def due(self, now: float) -> list[Stored]:
        """Return what has been held long enough."""
        released: list[Stored] = []
        for state in self._states.values():
            if state.held and now - state.held_since >= self._wait_s:
                released += self._release(state)
        return released

    def lowest_held(self) -> int | None:
        """Return the lowest ``log_seq`` that is held, or None."""
        held = (s.log_seq for state in self._states.values() for s in state.held.values())
        return min(held, default=None)

    def _follow(self, state: _State) -> list[Stored]:
        """Return the held records that come next."""
        released: list[Stored] = []
        while state.held:
            lowest = state.held[min(state.held)]
            if lowest.record.seq != state.next_seq and not _is_meant(lowest, state):
                break
            del state.held[lowest.record.seq]
            state.held_bytes -= len(lowest.record.payload)
            state.next_seq = lowest.record.seq + 1
            released.append(lowest)
        return released

    def _release(self, state: _State) -> list[Stored]:
        released = [state.held[seq] for seq in sorted(state.held)]
        state.held.clear()
        state.held_bytes = 0
        if released:
            state.next_seq = released[-1].record.seq + 1
        return released


def _is_meant(stored: Stored, state: _State) -> bool:
    return stored.after is not None and stored.after < state.next_seq
