"""What a reader pays per batch: ``python -m bench.decode``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from bench.contenders import OURS, batch_maker
from bench.measure import Line, main, spread

TITLE = "The reader's side, per batch"


def microseconds(call: Callable[[], object], calls: int) -> float:
    """Return the mean CPU time of one call: what else the machine does counts less that way."""
    began = time.thread_time()
    for _ in range(calls):
        call()
    return 1e6 * (time.thread_time() - began) / calls


def run(rounds: int) -> Sequence[Line]:
    """Measure and return the lines."""
    lines = []
    for shape, calls in (("a", 3000), ("b", 1000), ("c", 100)):
        lines += _measure(shape, calls, 3 * rounds)
    return lines


def _measure(shape: str, calls: int, rounds: int) -> list[Line]:
    from kvevents_core.events import KVEventBatch
    from kvevents_core.mirror import Mirror
    from kvevents_core.wire import BatchDecoder, BatchEncoder

    payload = BatchEncoder(0).encode(batch_maker(OURS, shape)(1.0))
    bare = msgspec.msgpack.Decoder(KVEventBatch).decode
    ours = BatchDecoder().decode
    mirror, item = Mirror(), _item(payload)
    whole = _reader()
    found: dict[str, list[float]] = {"bare": [], "ours": [], "whole": [], "mirror": []}
    for _ in range(rounds):
        found["bare"].append(microseconds(lambda: bare(payload), calls))
        found["ours"].append(microseconds(lambda: ours(payload), calls))
        found["whole"].append(whole(payload, calls))
        found["mirror"].append(microseconds(lambda: mirror.apply(item), calls))
    ratio = statistics.median(a / b for a, b in zip(found["ours"], found["bare"], strict=True))
    return [
        Line(f"bare typed msgspec decoder, {shape}", spread(found["bare"], " us")),
        Line(
            f"BatchDecoder, {shape}",
            spread(found["ours"], " us"),
            {},
            f"{ratio:.2f} x bare",
            "<= 1.3 x bare",
            ratio <= 1.3,
        ),
        Line(f"from record to item, {shape}", spread(found["whole"], " us")),
        Line(f"Mirror.apply, {shape}", spread(found["mirror"], " us")),
    ]


def _item(payload: bytes) -> Any:
    from kvevents_core.items import Batch
    from kvevents_core.naming import StreamId
    from kvevents_core.wire import BatchDecoder

    batch = BatchDecoder().decode(payload).batch
    return Batch(StreamId("t", "m", "i", 0), 1, 0, 1.0, batch.events)


def _reader() -> Callable[[bytes, int], float]:
    """Return what sends records of a payload through a subscription on the memory transport."""
    from kvevents_core import KVEventsConfig
    from kvevents_core.backend import ReaderOptions, Record
    from kvevents_core.naming import StreamId
    from kvevents_core.subscriber import Subscription

    config = KVEventsConfig.from_cli('{"publisher": "memory"}')
    stream = StreamId("default", "default", "bench", 0)
    subscription = Subscription(config, ReaderOptions("default", "default", "bench", ranks=(0,)))
    seq = 0

    def measure(payload: bytes, calls: int) -> float:
        nonlocal seq
        records = [Record(stream, 1, seq + n, payload) for n in range(calls)]
        seq += calls
        began = time.thread_time()
        subscription._reader.take(records)
        return 1e6 * (time.thread_time() - began) / calls

    return measure


if __name__ == "__main__":
    main(TITLE, run, rounds=5)
