"""What goes from the engine's process to the sender process: encoded batches, losses, the end.

    kind 1 B | lost before 4 B | events 4 B | payload size 4 B | payload        (little-endian)

Both ends are of one installation on one machine, so the format has no version. Does no I/O.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import msgspec

BATCH: Final = 0
LOSS: Final = 1
"""So many batches were lost, and no other follows yet."""
END: Final = 2
"""The engine will send nothing more."""

MOST_ON_THE_WAY: Final = 4096
"""Batches handed over and not yet known to be numbered: what the two processes may have between them,
whatever fits the system's buffer. An outbox of fewer sets a lower bound."""

HEADER: Final = struct.Struct("<BIII")
_LARGEST: Final = 2**32 - 1


class Encoded(msgspec.Struct, gc=False):
    """A batch that is a payload already; ``events`` has the length of a batch's own."""

    payload: bytes
    events: range


class Frame(NamedTuple):
    """One frame as it arrived."""

    kind: int
    lost_before: int
    batch: Encoded


def batch_frame(lost_before: int, events: int, payload: bytes) -> tuple[bytes, bytes]:
    """Return a batch's header and payload, to be joined with others'."""
    header = HEADER.pack(BATCH, min(lost_before, _LARGEST), min(events, _LARGEST), len(payload))
    return header, payload


def loss_frame(lost: int) -> bytes:
    """Return what tells of ``lost`` batches behind the last one."""
    return HEADER.pack(LOSS, min(lost, _LARGEST), 0, 0)


def end_frame() -> bytes:
    """Return what tells that nothing follows."""
    return HEADER.pack(END, 0, 0, 0)


class FrameReader:
    """Takes bytes as they come and gives frames."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Add bytes behind those that wait."""
        if self._start:
            del self._held[: self._start]
            self._start = 0
        self._held += data

    @property
    def waiting_bytes(self) -> int:
        """Bytes that no frame was made of yet."""
        return len(self._held) - self._start

    def has_whole(self) -> bool:
        """Return whether a whole frame waits."""
        payload_start = self._start + HEADER.size
        if len(self._held) < payload_start:
            return False
        size: int = HEADER.unpack_from(self._held, self._start)[3]
        return len(self._held) >= payload_start + size

    def next(self) -> Frame | None:
        """Return the next whole frame; None: it has not arrived."""
        if not self.has_whole():
            return None
        kind, lost, events, size = HEADER.unpack_from(self._held, self._start)
        payload_start = self._start + HEADER.size
        self._start = payload_start + size
        payload = bytes(self._held[payload_start : self._start])
        return Frame(kind, lost, Encoded(payload, range(events)))
