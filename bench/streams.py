"""One reader process with 1 to 64 streams, and with 200 busy ones: ``python -m bench.streams``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zmq

from bench.contenders import OURS, batch_maker
from bench.measure import Line, main, run_trial, spread

TITLE = "Streams per reader process, ZMQ, 3,000 batches (a) a second in all"
RATE, SECONDS = 3000, 2
BUSY = (200, 50 * 200)
"""Streams, and batches a second in all, that one process must carry."""


def trial(_contender: str, streams: int, rate: int) -> dict[str, Any]:
    """Feed one subscription of ``streams`` ranks at a fixed rate and look at its CPU time."""
    from kvevents_core import subscribe

    count = rate * SECONDS
    with tempfile.TemporaryDirectory(prefix="kvevents-bench-") as folder:
        base = f"ipc://{Path(folder) / 'events'}"
        feeder = subprocess.Popen(
            [sys.executable, "-m", "bench.streams", "--feed", base, str(streams), str(rate)]
        )
        with subscribe(
            {"publisher": "zmq", "endpoint": base, "bind": True}, dp_size=streams
        ) as reader:
            seen, cpu, latencies = 0, 0.0, []
            while seen < count and feeder.poll() is None:
                items = reader.receive(0.5)
                now = time.time()
                if not seen and items:
                    cpu = time.process_time()
                for item in items:
                    seen += 1
                    latencies.append(now - item.ts)
            cpu = time.process_time() - cpu
        feeder.wait(10)
    latencies.sort()
    return {
        "us": 1e6 * cpu / max(1, seen),
        "missing": count - seen,
        "p50_ms": 1000 * latencies[len(latencies) // 2],
    }


def feed(base: str, streams: int, rate: int) -> None:
    """Publish by plain pyzmq, round robin, once every stream has its reader."""
    from kvevents_core.wire import BatchEncoder

    context = zmq.Context.instance()
    sockets = []
    for rank in range(streams):
        socket = context.socket(zmq.XPUB)
        socket.bind(base if rank == 0 else f"{base}_dp{rank}")
        sockets.append(socket)
    for socket in sockets:
        socket.recv()
    make, encode = batch_maker(OURS, "a"), BatchEncoder(0).encode
    time.sleep(0.3)
    due = time.perf_counter()
    for number in range(rate * SECONDS):
        batch = make(time.time())
        batch.attn_dp_rank = number % streams
        seq = (number // streams).to_bytes(8, "big")
        sockets[number % streams].send_multipart([b"", seq, encode(batch)])
        due += 1 / rate
        left_s = due - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)
    time.sleep(2.0)
    context.destroy(0)


def run(rounds: int) -> Sequence[Line]:
    """Measure 1, 8 and 64 streams in turns and return the lines."""
    found: dict[int, list[dict[str, Any]]] = {1: [], 8: [], 64: []}
    for _ in range(rounds):
        for streams, trials in found.items():
            trials.append(run_trial("streams", OURS, streams=streams, rate=RATE))
    base = [trial["us"] for trial in found[1]]
    lines = []
    for streams, trials in found.items():
        values = [trial["us"] for trial in trials]
        ratio = sorted(a / b for a, b in zip(values, base, strict=True))[len(values) // 2]
        complete = not any(trial["missing"] for trial in trials)
        lines.append(
            Line(
                f"CPU of the reader per batch, {streams} streams",
                spread(values, " us"),
                {},
                f"{ratio:.2f} x one stream",
                "<= 1.3 x one, all read",
                ratio <= 1.3 and complete,
            )
        )
        p50 = [trial["p50_ms"] for trial in trials]
        lines.append(Line(f"latency p50, {streams} streams", spread(p50, " ms")))
    return [*lines, *_busy(rounds)]


def _busy(rounds: int) -> list[Line]:
    streams, rate = BUSY
    trials = [run_trial("streams", OURS, streams=streams, rate=rate) for _ in range(rounds)]
    cores = [trial["us"] * rate / 1e6 for trial in trials]
    latencies = [trial["p50_ms"] for trial in trials]
    what = f"{streams} streams with {rate:,} batches a second in all"
    complete = not any(trial["missing"] for trial in trials)
    return [
        Line(f"{what}: cores of the reader", spread(cores), target="all read", met=complete),
        Line(f"{what}: latency p50", spread(latencies, " ms")),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--feed"]:
        feed(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(TITLE, run, rounds=3)
