"""Pure Python work that holds the GIL, in units of time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any


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


def slowdown(
    publish: Callable[[Any], object],
    waits: Callable[[], bool],
    make: Callable[[float], Any],
    *,
    rate: int,
    block_s: float,
    blocks: int,
) -> float:
    """Return how much longer blocks of ``compute`` take with ``publish`` after each chunk.

    They take turns with the same blocks without. A block ends when nothing waits any more.
    """
    iterations, chunks = calibrate(1 / rate), int(rate * block_s)

    def block(call: Callable[[Any], object]) -> float:
        began = time.perf_counter()
        for _ in range(chunks):
            compute(iterations)
            call(make(time.time()))
        while waits():
            time.sleep(0.0005)
        return time.perf_counter() - began

    ratios = []
    for _ in range(blocks):
        bare_s = block(_nothing)
        ratios.append(block(publish) / bare_s)
    return statistics.median(ratios)


def _nothing(_batch: Any) -> None:
    return
