"""Records between ``send`` and acknowledgement: taken, published, settled, or to be sent again.

The one place where the sender thread and the loop thread meet. Does no I/O.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvevents_core import Receipt, Record


class Window:
    """The sink's window.

    Args:
        wake: Called when receipts wait or room was made; any thread, cheap.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._empty = threading.Condition(self._lock)
        self._queue: deque[Record] = deque()
        self._published: dict[int, float] = {}
        self._receipts: list[list[int]] = []
        self._refused: list[Receipt] = []
        self._room_for = 0
        self._resume_at: int | None = None
        self._told = 0
        self._next_seq: int | None = None
        self._holes: dict[int, int] = {}
        self.generation = 0
        """Raised whenever records taken were given up unsettled; see ``SinkStatus.generation``."""
        self.settled = 0
        self.rejected = 0

    # Sender thread -----------------------------------------------------------------------------

    def put(self, records: Sequence[Record], max_bytes: int | None) -> int:
        """Take a prefix of ``records``; those above ``max_bytes`` are taken and refused."""
        with self._lock:
            if not records or not self._is_due(records[0].seq):
                return 0
            room = self._room_for - len(self._queue) - len(self._published)
            taken = records[: max(0, room)]
            for record in taken:
                self._note_hole(record.seq)
                if max_bytes is not None and len(record.payload) > max_bytes:
                    self._refuse(record.seq, "too_large")
                else:
                    self._queue.append(record)
            return len(taken)

    def _note_hole(self, seq: int) -> None:
        """Remember where core left seqs out: before a record further on than the next."""
        expected = self._next_seq
        if expected is None or seq >= expected:
            if expected is not None and seq > expected:
                self._holes[seq] = self._holes.pop(expected, expected - 1)
            self._next_seq = seq + 1

    def _is_due(self, seq: int) -> bool:
        # After a loss core may not have noticed the new generation yet: what it offers then comes
        # later in the stream than what must be sent again, and would overtake it.
        told = self._told == self.generation
        if self._resume_at is not None and (told or seq <= self._resume_at):
            self._resume_at = None
        return self._resume_at is None

    def tell_generation(self) -> int:
        """Return ``generation`` to the sender thread, which acts on it before it sends again."""
        with self._lock:
            self._told = self.generation
            return self._told

    def take_receipts(self) -> list[Receipt]:
        """Return what was settled since the last call; acknowledged runs are joined."""
        with self._lock:
            runs, self._receipts = self._receipts, []
            refused, self._refused = self._refused, []
        return [Receipt(first, last) for first, last in runs] + refused

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is queued or unacknowledged; True if so. Any thread."""
        with self._lock:
            return self._empty.wait_for(self._is_empty, timeout_s)

    def size(self) -> int:
        """Return how many records are queued or unacknowledged. Any thread."""
        return len(self._queue) + len(self._published)

    def _is_empty(self) -> bool:
        return not self._queue and not self._published

    # Loop thread -------------------------------------------------------------------------------

    def open(self, room_for: int) -> None:
        """Accept records, at most ``room_for`` at a time."""
        with self._lock:
            self._room_for = room_for
        self._wake()

    def pop(self, limit: int) -> list[tuple[Record, int | None]]:
        """Return the next records to publish; they count as unacknowledged from now on.

        With each the seq of the record before it, where those between will never come.
        """
        now = time.monotonic()
        with self._lock:
            popped = [self._queue.popleft() for _ in range(min(limit, len(self._queue)))]
            self._published.update((record.seq, now) for record in popped)
            return [(record, self._holes.get(record.seq)) for record in popped]

    def settle(self, seq: int, rejected: str | None = None) -> bool:
        """Note that ``seq`` was stored, or why it never will be; False if it was not awaited."""
        with self._lock:
            if self._published.pop(seq, None) is None:
                return False
            first = not self._receipts and not self._refused
            if rejected is not None:
                self._refuse(seq, rejected)
            else:
                self.settled += 1
                self._holes.pop(seq, None)
                self._confirm(seq)
            if self._is_empty():
                self._empty.notify_all()
        if first:  # the rest rides along until the receipts are taken
            self._wake()
        return True

    def _confirm(self, seq: int) -> None:
        if self._receipts and self._receipts[-1][1] + 1 == seq:
            self._receipts[-1][1] = seq
        else:
            self._receipts.append([seq, seq])

    def _refuse(self, seq: int, why: str) -> None:
        self.rejected += 1
        self._holes[seq + 1] = self._holes.pop(seq, seq - 1)
        self._refused.append(Receipt(seq, seq, why))

    def oldest_age_s(self) -> float:
        """Return how long the oldest publish has been unacknowledged; 0 if none is."""
        with self._lock:
            oldest = next(iter(self._published.values()), None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def unacknowledged(self) -> int:
        """Return how many records were published and not settled."""
        return len(self._published)

    def give_up(self) -> None:
        """Accept nothing more; what is unsettled must be sent again, oldest first."""
        with self._lock:
            self._room_for = 0
            left = [*self._published, *(record.seq for record in self._queue)]
            self._published.clear()
            self._queue.clear()
            if left:
                self._resume_at = min(left)
                self.generation += 1
                self._empty.notify_all()
        self._wake()
