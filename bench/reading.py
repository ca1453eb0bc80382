"""A decoding reader in a process of its own: plain pyzmq and a typed msgspec decoder.

Run as ``python -m bench.reading ENDPOINT``. It says ``ready`` on the first batch of
time 0, does not count those (they only make the connection), ends at a batch of a negative time or after a
silence, and then prints one line of JSON. It is the same reader for every contender.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import zmq

SILENCE_MS = 4000


def summary(latencies_s: list[float]) -> dict[str, Any]:
    """Return quantiles in microseconds; ``curve`` has percentiles 0..100 and the far tail."""
    ordered = sorted(latencies_s)

    def at(share: float) -> float:
        return round(1e6 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    curve = [at(n / 100) for n in range(100)] + [at(0.995), at(0.999), at(1.0)]
    return {"p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1.0), "curve_us": curve}


class Publishes(Protocol):
    """What a reader needs of a publisher."""

    endpoint: str

    @property
    def publish(self) -> Callable[[Any], None]:
        """Publish one batch."""


class Reader:
    """The reader's process, seen from the publisher's."""

    def __init__(self, publisher: Publishes, make: Any) -> None:
        """Start it and publish batches of time 0 until the first arrived."""
        command = [sys.executable, "-m", "bench.reading", publisher.endpoint]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self._out = self._process.stdout
        import select

        while not select.select([self._out], [], [], 0.01)[0]:
            publisher.publish(make(0.0))
        assert self._out.readline() == "ready\n"
        time.sleep(0.1)

    def result(self) -> dict[str, Any]:
        """Return what it found, after the batch that ends it."""
        line = self._out.readline()
        self._process.wait(10)
        found: dict[str, Any] = json.loads(line)
        return found


def read(endpoint: str) -> dict[str, Any]:
    """Read until the end; latencies are this machine's clock minus the batches' times."""
    from kvevents_core.events import KVEventBatch

    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.rcvhwm = 0
    socket.rcvtimeo = 60_000
    socket.subscribe(b"")
    socket.connect(endpoint)
    receive, clock = socket.recv_multipart, time.time
    while decode(receive()[2]).ts:  # what opens a stream has a time
        pass
    print("ready", flush=True)
    socket.rcvtimeo = SILENCE_MS
    latencies: list[float] = []
    first = last = 0.0
    while True:
        try:
            batch = decode(receive()[2])
        except zmq.Again:
            break
        ts = batch.ts
        if ts > 0 and batch.events:  # an empty one shows where something was lost
            last = clock()
            first = first or last
            latencies.append(last - ts)
        elif ts < 0:
            break
    found = {"batches": len(latencies), "first": first, "last": last, "end": clock()}
    return found | (summary(latencies) if latencies else {})


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1])), flush=True)
