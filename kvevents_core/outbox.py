"""The outbox: a bounded queue between the engine's thread and the sender thread.

The engine's thread appends and returns. It shares no lock with the sender: appending to and popping
from a deque are atomic, and every counter has one writer. While next to nothing waits, a batch is
appended as it is, without a lock and without a look at its size: on the cold path of a scheduler's
step every line of Python costs. Small batches go the same way while all that can wait of them is
little. Only when more waits are batches measured against the bounds.

A measured batch carries a tag, from which the sender sees where something was lost: it grows by one
with each loss, and under ``drop_oldest``, where batches vanish from the middle, with each put too.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from typing import Any, Final, Literal, TypeAlias

import msgspec

from kvevents_core.stats import CLOSED, ENCODE, FORKED, OVERFLOW

OverflowPolicy: TypeAlias = Literal["drop_newest", "drop_oldest", "block"]

UNMEASURED_BATCHES: Final = 8
"""Most batches that wait without having been measured."""
UNMEASURED_BYTES: Final = 16 * 1024 * 1024
"""How large one of them may be (some 450,000 tokens) before the byte bound is exceeded by it: a
bound that is not many times this has every batch measured."""

SMALL_EVENTS: Final = 8
SMALL_ITEMS: Final = 64
"""A batch is small with so many events of so many tokens and blocks each."""
SMALL_BYTES: Final = 120_000
"""The largest of them; what waits of them unmeasured takes a tenth of the byte bound at most."""
SMALL_BATCHES: Final = 512
_SAMPLES: Final = 16
"""So many of the small batches stand for all of them when measuring begins."""

_MUCH_ROOM: Final = 7 / 8
"""A publisher that waits for room is woken below this share of the bounds, not for each batch."""

_BATCH_BYTES: Final = 310
_STORED_BYTES: Final = 290
_OTHER_EVENT_BYTES: Final = 140
_HASH_BYTES: Final = 57
_DIGEST_BYTES: Final = 90
_TOKEN_BYTES: Final = 41
_PAIR_BYTES: Final = 138
"""Resident memory of a batch, an event and, with its slot in a list, a 64-bit hash, a digest of 32
bytes, a token and a pair of tokens (CPython 3.11; ``bench.memory``)."""


class Waiting(msgspec.Struct, gc=False):
    """A batch taken from the outbox."""

    lost_before: int
    """Batches lost between the one before it and this one."""
    batch: Any


class _Measured(msgspec.Struct, gc=False):
    """A batch that waits with its tag and size.

    A tuple would be one more thing per batch that the garbage collector counts, and walks through in
    the middle of the engine's thread.
    """

    tag: int
    size: int
    batch: Any


def estimate_bytes(batch: Any) -> int:
    """Return roughly how much memory ``batch`` holds; cheap enough for the engine's thread."""
    size = _BATCH_BYTES
    for event in batch.events:
        hashes = getattr(event, "block_hashes", None)
        if hashes:
            digests = type(hashes) is list and type(hashes[0]) is bytes
            size += (_DIGEST_BYTES if digests else _HASH_BYTES) * len(hashes)
        tokens = getattr(event, "token_ids", None)
        if tokens is None:
            size += _OTHER_EVENT_BYTES
        else:
            size += _STORED_BYTES
            if len(tokens):
                size += _token_bytes(tokens)
    return size


def count_events(batch: Any) -> int:
    """Return how many events a batch has; 0 for what is no batch."""
    try:
        return len(batch.events)
    except Exception:
        return 0


def _size_or_none(batch: Any) -> int | None:
    try:
        return estimate_bytes(batch)
    except Exception:  # not a batch at all: it must not hurt the engine
        return None


def _token_bytes(tokens: Any) -> int:
    if type(tokens) is list:
        return (_TOKEN_BYTES if type(tokens[0]) is int else _PAIR_BYTES) * len(tokens)
    nbytes = getattr(tokens, "nbytes", None)  # numpy; array.array has itemsize only
    return int(nbytes) if nbytes is not None else getattr(tokens, "itemsize", 41) * len(tokens)


def is_small(events: Any) -> bool:
    """Return whether a batch of ``events`` certainly takes less than ``SMALL_BYTES``."""
    if len(events) > SMALL_EVENTS:
        return False
    for event in events:
        if len(getattr(event, "token_ids", ())) > SMALL_ITEMS:
            return False
        if len(getattr(event, "block_hashes", ())) > SMALL_ITEMS:
            return False
    return True


class Outbox:
    """Batches that wait for the sender.

    Args:
        max_batches: Most batches held.
        max_bytes: Most estimated memory held.
        overflow: What to do when full: drop the new batch, drop the oldest, or make ``put`` wait.
    """

    def __init__(self, max_batches: int, max_bytes: int, overflow: OverflowPolicy) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._overflow = overflow
        self._queue: deque[Any] = deque()
        """Batches as they are, or ``_Measured``."""
        self._callers = threading.Lock()  # among publishing threads; the sender never takes it
        self._tag_per_put = 1 if overflow == "drop_oldest" else 0
        self._most_unmeasured = self._unmeasured_allowed(UNMEASURED_BATCHES, 2 * UNMEASURED_BYTES)
        self._most_small = self._unmeasured_allowed(SMALL_BATCHES, 10 * SMALL_BYTES)
        self._measures_all = not self._most_small  # or while a burst is being measured
        self._unmeasured_bytes = 0  # of those that waited when measuring began
        self._next_tag = 0
        self._put_bytes = 0
        self._discarded_bytes = 0
        self._taken_bytes = 0  # the sender's
        self._expected_tag = 0  # the sender's
        self._sender_sleeps = False
        self._nudged = False
        self._wake = threading.Event()
        self._room = threading.Event()
        self._refusal: str | None = None
        # Every key from the start: other threads read while publishing threads count.
        self.lost = dict.fromkeys((OVERFLOW, ENCODE, CLOSED, FORKED), 0)
        """Batches lost here, by reason; written by publishing threads."""
        self.lost_events = dict.fromkeys(self.lost, 0)

    def _unmeasured_allowed(self, most: int, share_bytes: int) -> int:
        if self._overflow == "drop_oldest":
            return 0
        return min(most, self._max_batches, self._max_bytes // share_bytes)

    # The engine's side -------------------------------------------------------------------------

    def put(self, batch: Any) -> None:
        """Append ``batch``, or lose it and count that. Any thread; never raises.

        Waits only if the overflow policy is ``block`` and the outbox is full.
        """
        try:
            events = batch.events
            if not events:
                return
            waiting = len(self._queue)
            fits = not self._measures_all and (
                waiting < self._most_unmeasured
                or (waiting < self._most_small and is_small(events))
            )
        except Exception:  # not a batch at all, or a strange one
            fits = False
        if fits:
            self._queue.append(batch)
        else:
            self._put_measured(batch)
        if self._sender_sleeps:
            self._wake.set()

    def _put_measured(self, batch: Any) -> None:
        with self._callers:
            # Closed until a measured batch has told of every loss, and stands alone or behind.
            nothing_waits = not self._queue
            if not self._measures_all:
                self._measures_all = True
                self._unmeasured_bytes = self._count_unmeasured_bytes()
            size = _size_or_none(batch)
            reason = self._refusal or (ENCODE if size is None else None)
            if size is not None and reason is None and self._is_full(size):
                reason = self._make_room(size)
            if size is None or reason is not None:
                self._lose(reason or ENCODE, count_events(batch))
                self._next_tag += reason != self._refusal
                return
            self._put_bytes += size
            self._queue.append(_Measured(self._next_tag, size, batch))
            # After the append: the sender must not take a batch on its way for a lost one.
            self._next_tag += self._tag_per_put
            if nothing_waits and self._most_small:
                self._unmeasured_bytes = 0
                self._measures_all = False
                if self._refusal is not None:  # since this batch was let in
                    self._measures_all = True

    def _count_unmeasured_bytes(self) -> int:
        """Return about how many bytes the unmeasured batches hold, which stand before all others.

        The first ones may be large and are measured each; of the small ones behind a few are.
        """
        count = self._count_unmeasured()
        head = min(count, 2 * UNMEASURED_BATCHES)
        total = sum(self._sizes(range(head)))
        sample = self._sizes(range(head, count, max(1, (count - head) // _SAMPLES)))
        return total + (sum(sample) * (count - head) // len(sample) if sample else 0)

    def _sizes(self, indices: range) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(IndexError):  # the sender took the rest meanwhile
            for index in indices:
                item = self._queue[index]
                found.append(0 if type(item) is _Measured else _size_or_none(item) or 0)
        return found

    def _count_unmeasured(self) -> int:
        low, high = 0, min(len(self._queue), 2 * SMALL_BATCHES)
        with contextlib.suppress(IndexError):  # the sender took some meanwhile
            while low < high:
                middle = (low + high) // 2
                if type(self._queue[middle]) is _Measured:
                    high = middle
                else:
                    low = middle + 1
        return low

    def refuse(self, reason: str) -> None:
        """Lose whatever is published from now on, counted under ``reason``. Any thread."""
        self._refusal = reason
        self._measures_all = True
        self._room.set()

    def after_fork_in_child(self, reason: str) -> None:
        """Replace what a thread of the parent may hold locked, and refuse from now on."""
        self._callers = threading.Lock()
        self._wake = threading.Event()
        self._room = threading.Event()
        self._sender_sleeps = False
        self._queue = deque()
        self.refuse(reason)

    def _held_bytes(self) -> int:
        measured = self._put_bytes - self._discarded_bytes - self._taken_bytes
        return measured + self._unmeasured_bytes

    def _is_full(self, size: int) -> bool:
        if len(self._queue) >= self._max_batches:
            return True
        if self._held_bytes() + size <= self._max_bytes:
            return False
        # The unmeasured ones may have left meanwhile.
        self._unmeasured_bytes = self._count_unmeasured_bytes()
        return self._held_bytes() + size > self._max_bytes

    def _lose(self, reason: str, events: int) -> None:
        self.lost[reason] += 1
        self.lost_events[reason] += events

    def _make_room(self, size: int) -> str | None:
        """Return None once ``size`` bytes fit, else why the batch is lost."""
        if size > self._max_bytes or self._overflow == "drop_newest":
            return OVERFLOW
        if self._overflow == "block":
            return self._wait_for_room(size)
        while self._is_full(size):
            try:
                old: _Measured = self._queue.popleft()
            except IndexError:  # the sender took the rest
                break
            self._discarded_bytes += old.size
            self._lose(OVERFLOW, count_events(old.batch))
        return None

    def _wait_for_room(self, size: int) -> str | None:
        while self._is_full(size):
            if self._refusal is not None:
                return self._refusal
            self._room.clear()
            if self._sender_sleeps:
                self._wake.set()
            if self._is_full(size):
                self._room.wait(0.05)
        return None

    # The sender's side -------------------------------------------------------------------------

    def take(self, max_batches: int, max_bytes: int) -> list[Waiting]:
        """Return what waits, oldest first, up to the bounds (one batch at least, if any)."""
        taken: list[Waiting] = []
        total = measured = 0
        queue = self._queue
        while len(taken) < max_batches and total < max_bytes:
            try:
                item = queue.popleft()
            except IndexError:
                break
            if type(item) is _Measured:
                total += item.size
                measured += item.size
                taken.append(Waiting(item.tag - self._expected_tag, item.batch))
                self._expected_tag = item.tag + self._tag_per_put
            else:
                total += _BATCH_BYTES
                taken.append(Waiting(0, item))
        if taken:
            self._taken_bytes += measured  # the others were never added
            if self._overflow == "block" and self._has_much_room():
                self._room.set()
        return taken

    def _has_much_room(self) -> bool:
        """Whether it is worth waking a publisher that waits; it also looks by itself now and then."""
        few = len(self._queue) <= _MUCH_ROOM * self._max_batches
        return few and self._held_bytes() <= _MUCH_ROOM * self._max_bytes

    def take_tail_loss(self) -> int:
        """Return how many batches were lost after the last one taken, if nothing waits."""
        end = self._next_tag  # read before looking whether something waits
        if self._queue or end <= self._expected_tag:
            return 0
        lost = end - self._expected_tag
        self._expected_tag = end
        return lost

    def has_tail_loss(self) -> bool:
        """Return whether ``take_tail_loss`` has something to tell."""
        return not self._queue and self._next_tag > self._expected_tag

    def activity(self) -> int:
        """Return a number that changes with whatever is published, as long as nothing is taken."""
        return len(self._queue) + self._next_tag

    def doze(self, pause_s: float, longest_s: float) -> None:
        """Sleep ``pause_s``, and again while nothing waits and nobody nudges, up to ``longest_s``.

        Unlike after ``wait``, what is put meanwhile costs its publisher no wake-up.
        """
        end = time.monotonic() + longest_s
        while True:
            time.sleep(pause_s)
            if self._queue or self._nudged or time.monotonic() >= end:
                break
        self._nudged = False

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is put, somebody nudges, or the time is over."""
        self._wake.clear()
        self._sender_sleeps = True
        if not self._queue and not self._nudged and self._refusal is None:
            self._wake.wait(timeout_s)
        self._sender_sleeps = False
        self._nudged = False

    def nudge(self) -> None:
        """Wake the sender, or keep it from falling asleep. Any thread; cheap."""
        self._nudged = True
        if self._sender_sleeps:
            self._wake.set()

    def size(self) -> tuple[int, int]:
        """Return (batches, estimated bytes) waiting. Any thread."""
        measured = self._put_bytes - self._discarded_bytes - self._taken_bytes
        return len(self._queue), max(0, measured) + self._count_unmeasured_bytes()
