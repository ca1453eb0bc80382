"""A main thread that never lets go of the GIL: ``python -m bench.starved``.

Blocks of pure Python with one publish after each chunk take turns with the same blocks without: the
slowdown is their ratio. A block ends when nothing waits in the publisher any more. On two cores the
reader and libzmq's own threads take their part of it, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, PROCESS, Publisher, batch_maker
from bench.measure import Found, Line, compare, interleave, main, spread, with_process
from bench.reading import Reader
from bench.work import slowdown

TITLE = "Beside a main thread that computes without pause"
FOUND: dict[str, Found] = {}


def trial(contender: str, shape: str, rate: int, block_s: float, blocks: int) -> dict[str, Any]:
    """Compute with and without publishing in turns; report ratios and the reader's latencies."""
    publisher, make = Publisher(contender), batch_maker(contender, shape)
    reader = Reader(publisher, make)
    ratio = slowdown(
        publisher.publish,
        lambda: waits(publisher),
        make,
        rate=rate,
        block_s=block_s,
        blocks=blocks,
    )
    publisher.publish(make(-1.0))
    found = {"slowdown": ratio, "reader": reader.result()}
    publisher.shutdown()
    return found


def waits(publisher: Publisher) -> bool:
    """Return whether batches still wait in ``publisher``."""
    if publisher.name in (OURS, PROCESS):
        return ours_waits(publisher.publisher)
    return not publisher.publisher._event_queue.empty()


def ours_waits(publisher: Any) -> bool:
    """Return whether batches wait in a publisher of kvevents, for its sink or for a receipt.

    What a sender process has waits there, not here, and what it tells of that comes late.
    """
    stats, told = publisher.stats(), publisher.describe()
    in_flight = 0 if "sender_pid" in told else stats.in_flight_batches
    return bool(stats.queued_batches or in_flight)


def run(rounds: int) -> Sequence[Line]:
    """Measure every rate and return the lines."""
    lines = []
    for rate, shape, with_both in (
        (1000, "a", True),
        (5000, "a", False),
        (20_000, "a", True),
        (1000, "c", False),
    ):
        contenders = with_process() if with_both else None
        found = interleave(
            "starved", rounds, contenders, shape=shape, rate=rate, block_s=0.3, blocks=8
        )
        lines += _lines(found, rate, shape, "")
        if with_both:
            lines += _lines(found.of_process(), rate, shape, ", sender process")
    return lines


def _lines(found: Found, rate: int, shape: str, whose: str) -> list[Line]:
    lines = []
    if rate == 1000:
        readers = Found({n: [t["reader"] for t in ts] for n, ts in found.trials.items()})
        FOUND[f"reader {rate} {shape}{whose}"] = readers
        at_most = 0.1 if shape == "a" else 1.0
        lines += [
            _latency(readers, f"reader latency p50, {rate}/s, {shape}{whose}", "p50_us", at_most),
            _latency(readers, f"reader latency p99, {rate}/s, {shape}{whose}", "p99_us", 1.0),
        ]
    share = 1 / 3 if rate == 20_000 else 1.0
    return [*lines, _slowdown(found, f"{rate}/s, {shape}{whose}", share)]


def _latency(readers: Found, what: str, key: str, at_most: float) -> Line:
    return compare(readers, what, key, unit=" ms", at_most=at_most, of=lambda us: us / 1000)


def _slowdown(found: Found, what: str, at_most: float) -> Line:
    ours = found.median(OURS, "slowdown") - 1
    theirs = {name: found.median(name, "slowdown") - 1 for name in found.others()}
    shares = [f"{ours / extra:.2f}" if extra > 0 else "-" for extra in theirs.values()]
    return Line(
        f"slowdown of that thread, drain included, {what}",
        spread(found.values(OURS, "slowdown"), " x"),
        {name: spread(found.values(name, "slowdown"), " x") for name in theirs},
        "extra " + " / ".join(shares),
        f"extra <= {at_most:.2g} x theirs",
        all(ours <= max(at_most * extra, 0.0) + 0.01 for extra in theirs.values()),
    )


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
