"""Pure Python work that holds the GIL, in units of time."""

from __future__ import annotations

import time


def compute(iterations: int) -> int:
    """Hold the GIL for a while."""
    total = 0
    for number in range(iterations):
        total ^= number * 3
    return total


def calibrate(chunk_s: float) -> int:
    """Return how many iterations take ``chunk_s`` when nothing disturbs."""
    best = min(_timed(20_000) for _ in range(30))
    return max(1, int(20_000 * chunk_s / best))


def _timed(iterations: int) -> float:
    began = time.perf_counter()
    compute(iterations)
    return time.perf_counter() - began
