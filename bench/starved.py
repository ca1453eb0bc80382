"""A main thread that never lets go of the GIL: ``python -m bench.starved``.

The work is the same number of chunks of pure Python with one publish after each, once without a
publisher. The time ends when nothing waits in the publisher any more.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from bench.contenders import NONE, OURS, Publisher, batch_maker
from bench.measure import Found, Line, compare, everybody, interleave, main, spread
from bench.reading import Reader
from bench.work import calibrate, compute

TITLE = "Beside a main thread that computes without pause"
FOUND: dict[str, Found] = {}


def trial(contender: str, shape: str, chunks: int, iterations: int) -> dict[str, Any]:
    """Compute and publish in turn; report the time of it all and the reader's latencies."""
    publisher, make = Publisher(contender), batch_maker(contender, shape)
    reader = None if contender == NONE else Reader(publisher, make)
    publish = publisher.publish
    began = time.perf_counter()
    for _ in range(chunks):
        compute(iterations)
        publish(make(time.time()))
    computed = time.perf_counter()
    while waits(publisher):
        time.sleep(0.0005)
    ended = time.perf_counter()
    found: dict[str, Any] = {"computing_s": computed - began, "total_s": ended - began}
    if reader is not None:
        publish(make(-1.0))
        found["reader"] = reader.result()
    publisher.shutdown()
    return found


def waits(publisher: Publisher) -> bool:
    """Return whether batches still wait in ``publisher``."""
    if publisher.name == NONE:
        return False
    if publisher.name == OURS:
        stats = publisher.publisher.stats()
        return bool(stats.queued_batches or stats.in_flight_batches)
    return not publisher.publisher._event_queue.empty()


def run(rounds: int) -> Sequence[Line]:
    """Measure every rate and return the lines."""
    lines = []
    for rate, shape, seconds in (
        (1000, "a", 1.5),
        (5000, "a", 1.0),
        (20_000, "a", 1.0),
        (1000, "c", 1.5),
    ):
        found = interleave(
            "starved",
            rounds,
            everybody(),
            shape=shape,
            chunks=int(rate * seconds),
            iterations=calibrate(1 / rate),
        )
        FOUND[f"{rate} {shape}"] = found
        if rate == 1000:
            readers = Found(
                {n: [t["reader"] for t in ts if "reader" in t] for n, ts in found.trials.items()}
            )
            FOUND[f"reader {rate} {shape}"] = readers
            what = f"reader latency p50, {rate}/s, {shape}"
            at_most = 0.1 if shape == "a" else 1.0
            lines.append(
                compare(
                    readers, what, "p50_us", unit=" ms", at_most=at_most, of=lambda us: us / 1000
                )
            )
            what = f"reader latency p99, {rate}/s, {shape}"
            lines.append(compare(readers, what, "p99_us", unit=" ms", of=lambda us: us / 1000))
        lines.append(_slowdown(found, f"{rate}/s, {shape}", 1 / 3 if rate == 20_000 else 1.0))
    return lines


def _slowdown(found: Found, what: str, at_most: float) -> Line:
    bare = found.values(NONE, "total_s")
    slowdown = {
        name: [
            total / base for total, base in zip(found.values(name, "total_s"), bare, strict=True)
        ]
        for name in found.trials
        if name != NONE
    }
    extra = {name: statistics.median(values) - 1 for name, values in slowdown.items()}
    ours = extra.pop(OURS)
    met = all(ours <= max(at_most * value, 0.0) + 0.01 for value in extra.values())
    return Line(
        f"slowdown of that thread, drain included, {what}",
        spread(slowdown.pop(OURS), " x"),
        {name: spread(values, " x") for name, values in slowdown.items()},
        "extra "
        + " / ".join(f"{ours / value:.2f}" if value > 0 else "-" for value in extra.values()),
        f"extra <= {at_most:.2g} x theirs",
        met,
    )


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
