"""publish() while the transport takes nothing for ten seconds: ``python -m bench.stalled``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, batch_maker, sleep_until
from bench.measure import Line, limit, main, run_trial
from bench.reading import summary

TITLE = "A transport that is stuck for 10 s"


def trial(contender: str, stuck_s: float, blocks: bool) -> dict[str, Any]:
    """Publish 1,000 batches a second while ``Sink.send`` takes none, or does not even return."""
    from kvevents_core import EventPublisherFactory

    publisher: Any = EventPublisherFactory.create(
        '{"publisher": "memory", "max_queue_size": 5000}'
    )
    send = publisher._sending.sink.send
    end = time.monotonic() + stuck_s

    def stuck(records: Any) -> int:
        if time.monotonic() >= end:
            return int(send(records))
        if blocks:
            time.sleep(end - time.monotonic())
        return 0

    publisher._sending.sink.send = stuck
    make = batch_maker(contender, "a")
    calls_s = []
    due = time.perf_counter()
    while time.monotonic() < end:
        due += 0.001
        sleep_until(due)
        batch = make(time.time())
        began = time.perf_counter()
        publisher.publish(batch)
        calls_s.append(time.perf_counter() - began)
    publisher.shutdown()
    stats = publisher.stats()
    # One event a batch, and the one that opens the stream.
    known = sum(stats.lost_events.values()) + stats.published_events
    return {**summary(calls_s), "unaccounted": len(calls_s) + 1 - known}


def run(rounds: int, stuck_s: float = 10.0) -> Sequence[Line]:
    """Measure both ways of being stuck and return the lines."""
    lines = []
    for blocks, how in ((False, "takes nothing"), (True, "does not return")):
        trials = [
            run_trial("stalled", OURS, stuck_s=stuck_s, blocks=blocks) for _ in range(rounds)
        ]
        p99 = [trial["p99_us"] for trial in trials]
        lines.append(limit(f"publish() p99, send {how}", p99, unit=" us", at_most=1000))
        lost = [trial["unaccounted"] for trial in trials]
        what = "batches neither sent nor counted"
        lines.append(Line(what, str(max(lost)), target="0", met=not any(lost)))
    return lines


if __name__ == "__main__":
    main(TITLE, run, rounds=1)
