"""The sender process's backlog: the batches that the engine's process hands over.

It reads from the socket only what the sender is about to take, so that what a stuck transport leaves
behind fills the socket and then the engine's outbox, which has the bounds and counts what it drops.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Mapping
from typing import Final

from kvevents_core.outbox import Waiting
from kvevents_core.sender_process.frames import BATCH, END, LOSS, Frame, FrameReader

_CHUNK_BYTES: Final = 256 * 1024


class Inbox:
    """A ``Backlog`` that arrives through ``data``. The sender thread's; ``nudge`` any thread's."""

    def __init__(self, data: socket.socket) -> None:
        data.setblocking(False)
        self._data = data
        self._frames = FrameReader()
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._waker, False)
        self._nudged = False
        self._ended = False
        self._closing = False
        self._tail_loss = 0
        self._taken_batches = 0
        self.numbered_batches = 0
        """Of the batches that were handed over, how many the sender took *and* is done numbering: it
        then counts them itself."""
        self.lost: Mapping[str, int] = {}
        """Nothing is lost here."""

    def take(self, max_batches: int, max_bytes: int) -> list[Waiting]:
        """Return what has arrived, oldest first, up to the bounds (one batch at least, if any)."""
        self.numbered_batches = self._taken_batches
        taken: list[Waiting] = []
        total = 0
        while len(taken) < max_batches and total < max_bytes:
            frame = self._next_frame()
            if frame is None:
                break
            if frame.kind == BATCH:
                taken.append(Waiting(self._tail_loss + frame.lost_before, frame.batch))
                self._tail_loss = 0
                total += len(frame.batch.payload)
            elif frame.kind == LOSS:
                self._tail_loss += frame.lost_before
            elif frame.kind == END:
                self._end()
        self._taken_batches += len(taken)
        return taken

    def _next_frame(self) -> Frame | None:
        while True:
            frame = self._frames.next()
            if frame is not None or self._ended:
                return frame
            try:
                data = self._data.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return None
            except OSError:  # the engine's process is gone, and what it had begun with it
                data = b""
            if not data:
                self._end()
                return None
            self._frames.feed(data)

    def _end(self) -> None:
        self._ended = True
        self._frames = FrameReader()  # what had only begun to come will never be whole

    def take_tail_loss(self) -> int:
        """Return how many batches were lost after the last one taken, if nothing has arrived."""
        if self._has_arrived():
            return 0
        lost, self._tail_loss = self._tail_loss, 0
        return lost

    def has_tail_loss(self) -> bool:
        """Return whether ``take_tail_loss`` has something to tell."""
        return self._tail_loss > 0 and not self._has_arrived()

    def activity(self) -> int:
        """Return 0: nobody here waits for the sender to let go of the interpreter lock."""
        return 0

    def size(self) -> tuple[int, int]:
        """Return (1, bytes read) if something waits, or while closing may still come."""
        waits = self._has_arrived() or (self._closing and not self._ended)
        return int(waits), self._frames.waiting_bytes

    def close(self) -> None:
        """Expect the end: until it came, ``size`` says that something waits. Any thread."""
        self._closing = True
        self.nudge()

    def doze(self, pause_s: float, longest_s: float) -> None:
        """Sleep ``pause_s`` where batches wait that the sender cannot take yet, else as ``wait``."""
        self.numbered_batches = self._taken_batches
        if self._has_arrived():
            time.sleep(pause_s)
        else:
            self.wait(max(pause_s, longest_s))

    def wait(self, timeout_s: float) -> None:
        """Sleep until something arrives, somebody nudges, or the time is over."""
        self.numbered_batches = self._taken_batches
        if not self._nudged and not self._frames.has_whole():
            self._ready(timeout_s, self._woken)
        self._nudged = False
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, _CHUNK_BYTES)

    def nudge(self) -> None:
        """Wake the sender, or keep it from falling asleep. Any thread; cheap."""
        if not self._nudged:
            self._nudged = True
            with contextlib.suppress(BlockingIOError):  # full of nudges: it wakes up anyway
                os.write(self._waker, b"!")

    def _has_arrived(self) -> bool:
        return self._frames.has_whole() or self._ready(0.0)

    def _ready(self, timeout_s: float, *others: int) -> bool:
        """Wait until bytes can be read, or one of ``others``; True if any can."""
        # Not select: the descriptors have the numbers they had in the engine, which may be high.
        watched = select.poll()
        for descriptor in others if self._ended else (self._data.fileno(), *others):
            watched.register(descriptor, select.POLLIN)
        return bool(watched.poll(1000 * timeout_s))
