"""Replay of 10,000 batches, alone and while live traffic goes on: ``python -m bench.replay``.

The one who asks is a process of its own with plain pyzmq; another one reads the live traffic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import zmq

from bench.contenders import OURS, Publisher, batch_maker, sleep_until
from bench.measure import Found, Line, compare, interleave, main, spread
from bench.reading import Reader
from bench.ready_made import READY, limit_line, limit_of, replay_all
from bench.starved import waits

TITLE = "Replay of 10,000 batches"
COUNT = 10_000
SILENCE_MS = 3000


def trial(contender: str, shape: str, live: bool) -> dict[str, Any]:
    """Fill the replay buffer, then let a client ask for all of it."""
    if contender == READY:
        return _trial_of_the_limit(shape)
    publisher, make = Publisher(contender, replay=True), batch_maker(contender, shape)
    reader = Reader(publisher, make)
    for number in range(COUNT):
        publisher.publish(make(0.0))
        if number % 500 == 0:
            while waits(publisher):
                time.sleep(0.001)
    while waits(publisher):
        time.sleep(0.001)
    time.sleep(0.5)
    assert publisher.replay_endpoint is not None
    client = _client(publisher.replay_endpoint)
    due = time.perf_counter()
    while client.poll() is None:
        due += 0.002
        sleep_until(due)
        if live:
            publisher.publish(make(time.time()))
    publisher.publish(make(-1.0))
    assert client.stdout is not None
    found = json.loads(client.stdout.read())
    found["live"] = reader.result()
    publisher.shutdown()
    return dict(found)


def _client(endpoint: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.replay", "--ask", endpoint]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _trial_of_the_limit(shape: str) -> dict[str, Any]:
    endpoint, answer = replay_all(shape, COUNT)
    client = _client(endpoint)
    answer()
    assert client.stdout is not None
    return dict(json.loads(client.stdout.read()))


def ask(endpoint: str) -> dict[str, Any]:
    """Ask for everything and time the first record and the end marker."""
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.rcvhwm = 0
    socket.rcvtimeo = SILENCE_MS
    socket.connect(endpoint)
    time.sleep(0.3)  # connected before the clock starts
    began = time.perf_counter()
    socket.send_multipart([b"", (0).to_bytes(8, "big")])
    first_s, records, complete = 0.0, 0, False
    last = began
    try:
        while True:
            frames = socket.recv_multipart()
            last = time.perf_counter()
            if frames[2] == b"\xff" * 8:
                complete = True
                break
            first_s = first_s or last - began
            records += 1
    except zmq.Again:
        pass
    return {
        "first_ms": 1000 * first_s,
        "total_ms": 1000 * (last - began),
        "records": records,
        "complete": complete,
    }


def run(rounds: int) -> Sequence[Line]:
    """Measure small and large batches and return the lines."""
    lines = []
    for shape in "ac":
        found = interleave("replay", rounds, shape=shape, live=False)
        complete = Found({n: [t for t in ts if t["complete"]] for n, ts in found.trials.items()})
        first, total = f"first replayed record, {shape}", f"all of them, {shape}"
        limit = limit_of("replay", rounds, shape=shape, live=False)
        line = compare(complete, total, "total_ms", unit=" ms", at_most=0.6)
        lines += [
            compare(complete, first, "first_ms", unit=" ms", at_most=1 / 8),
            line,
            limit_line(line, complete, limit, "total_ms", unit=" ms", is_rate=False),
            _complete(found, f"records replayed, {shape}"),
        ]
    found = interleave("replay", rounds, shape="c", live=True)
    readers = Found({n: [t["live"] for t in ts] for n, ts in found.trials.items()})
    what = "live latency p99 during a replay of c, 500 live batches a second"
    lines += [
        _complete(found, "records replayed beside live traffic, c"),
        compare(readers, what, "p99_us", unit=" ms", at_most=1.0, of=lambda us: us / 1000),
    ]
    return lines


def _complete(found: Found, what: str) -> Line:
    others = {name: _completeness(found, name) for name in found.others()}
    met = all(trial["complete"] for trial in found.trials[OURS])
    return Line(what, _completeness(found, OURS), others, "", "complete", met)


def _completeness(found: Found, name: str) -> str:
    complete = sum(bool(trial["complete"]) for trial in found.trials[name])
    return f"{spread(found.values(name, 'records'))}, complete {complete} of {len(found.trials[name])}"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        print(json.dumps(ask(sys.argv[2])))
    else:
        main(TITLE, run, rounds=3)
