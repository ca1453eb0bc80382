"""publish() and the way to the reader, paced like a scheduler: ``python -m bench.paced``.

A step sleeps (the accelerator computes), then runs Python for 0.2 ms (the scheduler plans), then
publishes one batch. In every other step a call that does nothing stands in for ``publish``: what
reading the clock and calling a cold function cost is not the publisher's.
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

TITLE = "publish() and reader latency, 1,000 steps, 500 batches a second, one decoding reader"
STEP_S = 0.001
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
    empty_s: list[float] = []
    due = clock()
    for number in range(2 * count):
        due += STEP_S * random.uniform(0.5, 1.5)
        sleep_until(due)
        compute(planning)
        batch = make(time.time())
        call, times = (publish, calls_s) if number % 2 else (_nothing, empty_s)
        began = clock()
        call(batch)
        times.append(clock() - began)
    publish(make(-1.0))
    found = {"reader": reader.result(), **summary(calls_s)}
    found["net_p50_us"] = max(0.01, found["p50_us"] - summary(empty_s)["p50_us"])
    publisher.shutdown()
    return found


def _nothing(_batch: Any) -> None:
    return


def run(rounds: int, count: int = 500) -> Sequence[Line]:
    """Measure every shape and return the lines."""
    lines: list[Line] = []
    for shape in "abc":
        found = FOUND[shape] = interleave("paced", rounds, shape=shape, count=count)
        cost, tail = f"publish() p50 above an empty call, {shape}", f"publish() p99, {shape}"
        readers = Found({n: [t["reader"] for t in ts] for n, ts in found.trials.items()})
        FOUND[f"reader {shape}"] = readers
        lines += [
            compare(found, cost, "net_p50_us", unit=" us", at_most=0.1),
            compare(found, f"publish() p50, {shape}", "p50_us", unit=" us"),
            compare(found, tail, "p99_us", unit=" us", at_most=1 / 8),
            _latency(readers, "p50_us", 2.0, shape),
            _latency(readers, "p99_us", 1.2, shape),
        ]
    ours = FOUND["a"].values(OURS, "net_p50_us")
    lines.append(limit("publish() p50 above an empty call, a", ours, unit=" us", at_most=1))
    return lines


def _latency(readers: Found, key: str, at_most: float, shape: str) -> Line:
    what = f"reader latency {key[:3]}, {shape}"
    return compare(readers, what, key, unit=" ms", at_most=at_most, of=_milliseconds)


def _milliseconds(microseconds: float) -> float:
    return microseconds / 1000


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
