"""publish() and the way to the reader, paced like a scheduler: ``python -m bench.paced``.

A step sleeps (the accelerator computes), then runs Python for 0.2 ms (the scheduler plans), then
publishes one batch. Steps last 1 to 3 ms.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, Publisher, batch_maker, sleep_until
from bench.measure import Found, Line, compare, interleave, limit, main
from bench.reading import Reader, summary
from bench.work import calibrate, compute

TITLE = "publish() and reader latency, 500 steps a second, one decoding reader"
STEP_S = 0.002
PLANNING_S = 0.0002
FOUND: dict[str, Found] = {}
"""What the last run found, by shape of batch; for the pictures."""


def trial(contender: str, shape: str, count: int) -> dict[str, Any]:
    """Publish ``count`` batches, one per step, and time each call."""
    publisher, make = Publisher(contender), batch_maker(contender, shape)
    reader = Reader(publisher, make)
    publish, clock = publisher.publish, time.perf_counter
    random.seed(7)
    planning = calibrate(PLANNING_S)
    calls_s: list[float] = []
    due = clock()
    for _ in range(count):
        due += STEP_S * random.uniform(0.5, 1.5)
        sleep_until(due)
        compute(planning)
        batch = make(time.time())
        began = clock()
        publish(batch)
        calls_s.append(clock() - began)
    publish(make(-1.0))
    found = {"reader": reader.result(), **summary(calls_s)}
    publisher.shutdown()
    return found


def run(rounds: int, count: int = 700) -> Sequence[Line]:
    """Measure every shape and return the lines."""
    lines = []
    for shape in "abc":
        found = FOUND[shape] = interleave("paced", rounds, shape=shape, count=count)
        lines.append(compare(found, f"publish() p50, {shape}", "p50_us", unit=" us", at_most=0.1))
        lines.append(
            compare(found, f"publish() p99, {shape}", "p99_us", unit=" us", at_most=1 / 8)
        )
        readers = Found({n: [t["reader"] for t in ts] for n, ts in found.trials.items()})
        FOUND[f"reader {shape}"] = readers
        for key, at_most in (("p50_us", 2), ("p99_us", 1.2)):
            what = f"reader latency {key[:3]}, {shape}"
            line = compare(readers, what, key, unit=" ms", at_most=at_most, of=_milliseconds)
            lines.append(line)
        if shape == "a":
            lines.insert(
                1,
                limit(
                    "publish() p50, a, in itself",
                    found.values(OURS, "p50_us"),
                    unit=" us",
                    at_most=1,
                ),
            )
    return lines


def _milliseconds(microseconds: float) -> float:
    return microseconds / 1000


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
