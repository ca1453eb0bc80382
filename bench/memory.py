"""Memory behind a full outbox and a full replay ring: ``python -m bench.memory``.

The resident memory of a fresh process says what batches and records really hold at the bound.
"""

from __future__ import annotations

import gc
import random
import resource
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.contenders import OURS, batch_maker
from bench.measure import Line, main, run_trial, spread

TITLE = "Memory at the byte bound"
BOUND_BYTES = 48 * 1024 * 1024


def trial(contender: str, what: str, shape: str) -> dict[str, Any]:
    """Fill an outbox or a ring of ``BOUND_BYTES`` and weigh it."""
    make = _maker(contender, shape)
    fill = _fill_outbox if what == "outbox" else _fill_ring
    fill(make, 100_000)  # once before, for what is allocated only once
    gc.collect()
    before = _resident_bytes()
    held = fill(make, BOUND_BYTES)
    gc.collect()
    return {"share": (_resident_bytes() - before) / BOUND_BYTES, "held": len(held)}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _maker(contender: str, shape: str) -> Callable[[], Any]:
    if shape == "array":
        make = batch_maker(contender, "c")
        tokens = array("i", range(4096))

        def with_array() -> Any:
            batch = make(random.random())
            batch.events[0].token_ids = tokens[:]
            return batch

        return with_array
    made = batch_maker(contender, shape)
    # Ints of its own for each batch, as an engine's are.
    return lambda: _own_ints(made(random.random()))


def _own_ints(batch: Any) -> Any:
    for event in batch.events:
        if hasattr(event, "token_ids"):
            event.token_ids = [int(str(token)) for token in event.token_ids]
        event.block_hashes = [int(str(each)) for each in event.block_hashes]
    return batch


def _fill_outbox(make: Callable[[], Any], bound_bytes: int) -> Any:
    from kvevents_core.outbox import Outbox

    outbox = Outbox(10_000_000, bound_bytes, "drop_newest")
    while not outbox.lost["overflow"]:
        outbox.put(make())
    return outbox._queue


def _fill_ring(make: Callable[[], Any], bound_bytes: int) -> Any:
    from kvevents_core.backend import Record
    from kvevents_core.naming import StreamId
    from kvevents_core.replay import ReplayRing
    from kvevents_core.wire import BatchEncoder

    ring, encoder, stream = (
        ReplayRing(10_000_000, bound_bytes),
        BatchEncoder(0),
        StreamId("t", "m", "i", 0),
    )
    seq = 0
    while ring.bounds()[0] <= 1_000_000:
        ring.append(Record(stream, 1_700_000_000_000, 1_000_000 + seq, encoder.encode(make())))
        seq += 1
    return ring._records


def run(rounds: int) -> Sequence[Line]:
    """Weigh every shape and return the lines."""
    lines = []
    for what, shapes in (("outbox", ("a", "b", "c", "array")), ("ring", ("a", "c"))):
        for shape in shapes:
            shares = [
                run_trial("memory", OURS, what=what, shape=shape)["share"] for _ in range(rounds)
            ]
            met = min(shares) >= 0.8 and max(shares) <= 1.1
            text = f"{what} of 48 MiB, full of {shape}: memory / bound"
            lines.append(Line(text, spread(shares), target="0.8 .. 1.1", met=met))
    return lines


if __name__ == "__main__":
    main(TITLE, run, rounds=1)
