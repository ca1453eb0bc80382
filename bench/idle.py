"""What a publisher costs that has nothing to publish: ``python -m bench.idle``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, Publisher, batch_maker
from bench.measure import Line, compare, interleave, limit, main
from bench.reading import Reader

TITLE = "An idle publisher with one reader"


def trial(contender: str, seconds: float) -> dict[str, Any]:
    """Sleep and look at the CPU time of the process, all its threads included."""
    publisher = Publisher(contender)
    make = batch_maker(contender, "a")
    reader = Reader(publisher, make)
    time.sleep(0.5)
    began_cpu, began = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    share = (time.process_time() - began_cpu) / (time.perf_counter() - began)
    publisher.publish(make(-1.0))
    reader.result()
    publisher.shutdown()
    return {"percent": 100 * share}


def run(rounds: int, seconds: float = 3.0) -> Sequence[Line]:
    """Measure and return the lines."""
    found = interleave("idle", rounds, seconds=seconds)
    return [
        limit("CPU, % of a core", found.values(OURS, "percent"), unit=" %", at_most=0.5),
        compare(found, "the same, beside theirs", "percent", unit=" %"),
    ]


if __name__ == "__main__":
    main(TITLE, run, rounds=3)
