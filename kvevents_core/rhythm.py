"""When the thread that empties an outbox works, gives the interpreter lock back, and sleeps.

Under load it looks by itself, so that the engine's thread never pays for waking it; without load it
sleeps until somebody does. Never reads or sends anything.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

GROUP_BATCHES: Final = 64
GROUP_BYTES: Final = 1024 * 1024
"""Most that one step takes from the outbox. The interpreter lock may be kept from encoding to
sending, and a step must not hold up the engine's thread for a millisecond."""
HOLD_S: Final = 0.0002
"""After this long of full groups the engine's thread gets a chance at the interpreter lock."""
QUIET_HOLD_S: Final = 0.005
"""The same, after a pause in which nothing was published: the interpreter's switch interval."""
YIELD_S: Final = 0.00002
"""That chance: a pause between full groups."""
YIELDS: Final = 8
"""So many of them, one after another, in which nothing is published make a quiet time: the engine's
thread may want to publish and have no processor yet."""
RHYTHM_S: Final = 0.001
"""Longest pause under load: the engine pays no wake-up, a batch waits 1 ms at most."""
SHORTEST_S: Final = 0.00025
QUIET_SHARE: Final = 8
"""A pause is this fraction of the quiet time so far, within the two above: the shorter an engine's
steps, the less a batch waits."""
LOOK_S: Final = 0.01
"""After this long without work a step is made all the same, to look at the sink's status."""
IDLE_AFTER_S: Final = 0.05
"""After this long without work the thread sleeps until the next publish wakes it."""
STUCK_S: Final = 0.005
"""Pause while batches wait but nothing takes any: no publish may pay for a wake-up then."""


class Sleeps(Protocol):
    """Where batches wait, as far as sleeping is concerned; ``Outbox`` says what each does."""

    def activity(self) -> int:
        """Return a number that changes with whatever is published."""

    def doze(self, pause_s: float, longest_s: float) -> None:
        """Sleep without being woken by what is put."""

    def wait(self, timeout_s: float) -> None:
        """Sleep until something is put, somebody nudges, or the time is over."""


class Work(Protocol):
    """The thread's own state, as far as the rhythm asks for it."""

    def owes_receipts(self) -> bool:
        """Return whether something was sent whose fate is not known yet."""

    def is_stuck(self) -> bool:
        """Return whether batches wait that nothing takes now."""

    def longest_sleep_s(self, now: float) -> float:
        """Return how long it may sleep if nobody wakes it; ``now`` is monotonic."""


class Rhythm:
    """Spends the time between the steps of one thread.

    Args:
        queue: Where batches wait.
        work: What the thread has still to do.
    """

    def __init__(self, queue: Sleeps, work: Work) -> None:
        self._queue = queue
        self._work = work
        self._idle_since = self._held_since = time.monotonic()
        self._hold_s = HOLD_S

    def follow(self, moved: int) -> None:
        """Pause as long as fits after a step that moved so many batches."""
        now = time.monotonic()
        if moved:
            self._idle_since = now
        if moved < GROUP_BATCHES:
            self._pause(now, now - self._idle_since)
            self._held_since = time.monotonic()
        elif now - self._held_since >= self._hold_s:
            self._yield()
            self._held_since = time.monotonic()

    def _pause(self, now: float, idle_s: float) -> None:
        if idle_s < IDLE_AFTER_S:
            pause_s = min(max(idle_s / QUIET_SHARE, SHORTEST_S), RHYTHM_S)
            self._queue.doze(pause_s, 0.0 if self._work.owes_receipts() else LOOK_S)
        elif self._work.is_stuck():
            time.sleep(STUCK_S)
        else:
            self._queue.wait(self._work.longest_sleep_s(now))

    def _yield(self) -> None:
        before = self._queue.activity()
        for _ in range(YIELDS if self._hold_s == HOLD_S else 1):
            time.sleep(YIELD_S)
            if self._queue.activity() != before:
                self._hold_s = HOLD_S
                return
        # Nobody publishes, so nobody may be waiting for the lock: keep it a little longer.
        self._hold_s = QUIET_HOLD_S
