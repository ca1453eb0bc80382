"""A burst of 200,000 batches into a bounded queue: ``python -m bench.burst``.

The same loop without a publisher tells how often the machine itself holds up a call.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bench.contenders import NONE, OURS, Publisher, batch_maker
from bench.measure import Found, Line, everybody, interleave, main, spread
from bench.reading import Reader, summary

TITLE = "A burst of 200,000 batches (a), queue of 100,000, one decoding reader"
COUNT = 200_000
FOUND: dict[str, Found] = {}


def trial(contender: str) -> dict[str, Any]:
    """Publish without pause and time each call; without a publisher it tells the machine's part."""
    publisher, make = Publisher(contender), batch_maker(contender, "a")
    reader = None if contender == NONE else Reader(publisher, make)
    batches = [make(time.time()) for _ in range(COUNT)]
    publish, clock = publisher.publish, time.perf_counter
    moments = [clock()]
    note = moments.append
    for batch in batches:
        publish(batch)
        note(clock())
    calls_s = [after - before for before, after in pairwise(moments)]
    lost = 0
    if contender == OURS:
        while publisher.publisher.stats().queued_batches:
            time.sleep(0.001)
        lost = publisher.publisher.stats().lost.get("overflow", 0)
    publish(make(-1.0))
    read = {"batches": COUNT} if reader is None else reader.result()
    publisher.shutdown()
    return {
        "over_1ms": sum(call > 0.001 for call in calls_s),
        "longest_ms": 1000 * max(calls_s),
        "total_s": moments[-1] - moments[0],
        "lost": lost,
        "unaccounted": COUNT - read["batches"] - lost,
        **summary(calls_s),
    }


def run(rounds: int) -> Sequence[Line]:
    """Measure and return the lines."""
    found = FOUND["burst"] = interleave("burst", rounds, everybody())
    bare_over, bare_longest = found.median(NONE, "over_1ms"), found.median(NONE, "longest_ms")
    met_over = found.median(OURS, "over_1ms") <= bare_over
    met_longest = found.median(OURS, "longest_ms") <= max(1.0, bare_longest)

    def line(what: str, key: str, unit: str, met: bool | None, target: str = "") -> Line:
        others = {name: spread(found.values(name, key), unit) for name in found.others()}
        return Line(what, spread(found.values(OURS, key), unit), others, "", target, met)

    return [
        line("calls over 1 ms", "over_1ms", "", met_over, f"none but the machine's {bare_over:g}"),
        line(
            "longest call",
            "longest_ms",
            " ms",
            met_longest,
            f"<= 1 ms, or the machine's {bare_longest:.2g}",
        ),
        line("the whole burst, as the caller sees it", "total_s", " s", None),
        line("batches dropped, each counted", "lost", "", None),
        line(
            "batches neither read nor counted",
            "unaccounted",
            "",
            not any(found.values(OURS, "unaccounted")),
            "none",
        ),
    ]


if __name__ == "__main__":
    main(TITLE, run, rounds=3)
