"""A publisher killed under load and started again, over real sockets."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import Batch, Gap, Mirror, Restarted, subscribe
from kvevents_core.items import Item

pytestmark = pytest.mark.usefixtures("each_sender")

PROGRAM = Path(__file__).parent.parent / "publisher_process.py"


def zmq_config(*, replay: bool) -> dict[str, object]:
    config: dict[str, object] = {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "bind": True,
        "instance": "engine",
        "heartbeat_s": 0.2,
    }
    if replay:
        config["replay_endpoint"] = f"tcp://127.0.0.1:{free_port()}"
    return config


@contextmanager
def publisher(
    config: dict[str, object], life: int, count: int, pause_s: float = 0.0
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(config), str(life), str(count), str(pause_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


class Reader:
    """Reads on a thread of its own into a mirror and a list."""

    def __init__(self, config: dict[str, object]) -> None:
        self.items: list[Item] = []
        self.mirror = Mirror()
        self.subscription = subscribe(config)
        self._stop = False
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop:
            for item in self.subscription.receive(0.05):
                self.mirror.apply(item)
                self.items.append(item)

    def close(self) -> None:
        self._stop = True
        self._thread.join(10)
        self.subscription.close()

    def blocks(self) -> set[object]:
        return set().union(*(self.mirror.blocks(s) for s in self.mirror.streams()), set())

    def restarts(self) -> int:
        return sum(isinstance(item, Restarted) for item in list(self.items))


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"the publisher ended before it said {text!r}")


@pytest.mark.parametrize("replay", [True, False])
@pytest.mark.parametrize(("before", "after"), [(400, 50), (100, 300)])
def test_kill_9_and_restart_leaves_no_stale_block(replay: bool, before: int, after: int) -> None:
    """C12: Restarted is told, nothing of the former life survives, with fewer or more batches."""
    config = zmq_config(replay=replay)
    reader = Reader(config)
    try:
        with publisher(config, 1, 100_000, 0.001) as first:
            wait_for_line(first, f"published {before}")
            wait_until(lambda: any(isinstance(i, Batch) and i.events for i in reader.items))
            first.kill()
            first.wait()
        if replay:
            _expect_exactly_the_second_life(config, reader, after)
        else:
            _expect_nothing_of_the_first_life(config, reader)
        assert reader.restarts() == 1
    finally:
        reader.close()


def _expect_exactly_the_second_life(config: dict[str, object], reader: Reader, count: int) -> None:
    with publisher(config, 2, count, 0.001) as second:
        wait_for_line(second, f"published {count}")
        new_life = {2 << 40 | n for n in range(count)}
        wait_until(lambda: reader.blocks() == new_life, what="the new life's blocks")
        # What the first life had not sent when it was killed is no gap of the second.
        items = list(reader.items)
        begin = next(i for i, item in enumerate(items) if isinstance(item, Restarted))
        assert not [item for item in items[begin:] if isinstance(item, Gap)]


def _expect_nothing_of_the_first_life(config: dict[str, object], reader: Reader) -> None:
    # Nothing is recovered, so the new life goes on until the reader has connected again.
    with publisher(config, 2, 100_000, 0.001):
        wait_until(lambda: any(block >> 40 == 2 for block in reader.blocks()))
        assert {block >> 40 for block in reader.blocks()} == {2}


def test_killed_again_and_again_every_life_is_told() -> None:
    """C12: five lives killed at different moments, five counts; the last one's mirror is exact."""
    config = zmq_config(replay=True)
    reader = Reader(config)
    try:
        for life in range(1, 6):
            with publisher(config, life, 100_000, 0.001) as process:
                wait_for_line(process, f"published {100 * (1 + life % 3)}")
                wait_until(lambda life=life: any(b >> 40 == life for b in reader.blocks()))
                process.kill()
                process.wait()
        with publisher(config, 9, 30) as process:
            wait_for_line(process, "published 30")
            wait_until(lambda: reader.blocks() == {9 << 40 | n for n in range(30)})
        assert reader.restarts() == 5
    finally:
        reader.close()


@pytest.mark.parametrize("replay", [True, False])
def test_exit_without_shutdown_is_prompt_and_sends_what_waits(replay: bool) -> None:
    """C21: an engine that never calls shutdown ends with code 0 in under 5 s, and loses nothing."""
    config = zmq_config(replay=replay)
    reader = Reader(config)
    try:
        with publisher(config, 1, 200, 0.001) as process:
            wait_for_line(process, "published 200")
            wait_until(lambda: reader.items, what="the reader's connection")
            assert process.stdin is not None
            process.stdin.write("leave\n")
            process.stdin.flush()
            assert process.wait(5) == 0
        wait_until(lambda: 1 << 40 | 200 in reader.blocks(), what="the last batch")
    finally:
        reader.close()
