"""Batches per second to one decoding reader: ``python -m bench.throughput``.

The batches are made before; the caller waits where the queue is full, so nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bench.contenders import OURS, PROCESS, Publisher, batch_maker
from bench.measure import Line, compare, interleave, main, with_process
from bench.reading import Reader
from bench.ready_made import READY, ReadyMade, limit_line, limit_of, ready_messages

TITLE = "Throughput to one decoding reader"
SHAPES = {"a": (60_000, 3.0), "b": (20_000, 1.2), "c": (4_000, 1.0)}
"""Batches per trial, and the ratio to reach."""


def trial(contender: str, shape: str, count: int) -> dict[str, Any]:
    """Publish as fast as the publisher takes."""
    if contender == READY:
        return _trial_of_the_limit(shape, count)
    # Theirs have no bound in bytes, so ours gets one that is out of reach.
    blocking = (
        {"overflow": "block", "max_queue_bytes": 2**31} if contender in (OURS, PROCESS) else {}
    )
    publisher = Publisher(contender, **blocking)
    make = batch_maker(contender, shape)
    reader = Reader(publisher, make)
    batches = [make(time.time()) for _ in range(count)]
    publish = publisher.publish
    began, began_cpu = time.time(), time.process_time()
    for batch in batches:
        publish(batch)
    publish(make(-1.0))
    read = reader.result()
    cpu_s = time.process_time() - began_cpu
    publisher.shutdown()
    taken_s = read["end"] - began
    return {
        "per_s": read["batches"] / taken_s,
        "cpu_us": 1e6 * cpu_s / count,
        "missing": count - read["batches"],
    }


def _trial_of_the_limit(shape: str, count: int) -> dict[str, Any]:
    sender, make = ReadyMade(), batch_maker(OURS, shape)
    reader = Reader(sender, make)
    messages = ready_messages(shape, count)
    began = time.time()
    sender.send_all(messages)
    sender.publish(make(-1.0))
    read = reader.result()
    return {"per_s": read["batches"] / (read["end"] - began)}


def run(rounds: int) -> Sequence[Line]:
    """Measure every shape and return the lines."""
    lines = []
    for shape, (count, at_least) in SHAPES.items():
        found = interleave("throughput", rounds, with_process(), shape=shape, count=count)
        what = f"batches per second, {shape}"
        line = compare(found, what, "per_s", unit="/s", at_least=at_least)
        limit = limit_of("throughput", rounds, shape=shape, count=count)
        lines += [line, limit_line(line, found, limit, "per_s", unit="/s", is_rate=True)]
        what = f"CPU of the publishing process per batch, {shape}"
        lines.append(compare(found, what, "cpu_us", unit=" us"))
        beside = found.of_process()
        what = f"batches per second, {shape}, sender process"
        lines.append(compare(beside, what, "per_s", unit="/s"))
        what = f"CPU of the engine's process per batch, {shape}, sender process"
        lines.append(compare(beside, what, "cpu_us", unit=" us"))
        missing = {name: sum(found.values(name, "missing")) for name in found.trials}
        if any(missing.values()):
            others = {name: str(missing[name]) for name in found.others()}
            what = f"batches that never arrived, {shape}"
            lines.append(Line(what, str(missing[OURS]), others, "", "0", not missing[OURS]))
    return lines


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
