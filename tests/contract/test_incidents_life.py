"""What a publisher leaves alone: the engine's start, its keywords, its exit."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest
import zmq
from zmq_raw import loopback, publishing
from zmq_reading import reading, seen_by

from kvevents_core import NullEventPublisher


def test_no_socket_can_hold_up_the_end() -> None:
    """Linger is finite from the creation of each socket on (zeromq/pyzmq#1407)."""
    with (
        publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published,
        reading(seen_by(published)) as source,
    ):
        source.head(0, 2.0)
        channel = source._channels[0]
        replay = source._replays[0]._connection
        assert replay is not None
        sockets: list[zmq.Socket[bytes]] = [
            *published.sink._sockets,
            channel.socket,
            channel.monitor.reader,
            replay._dealer,
            replay.monitor.reader,
        ]
        assert all(0 <= each.linger <= 1000 for each in sockets)


def test_importing_costs_next_to_nothing() -> None:
    """Engines import kvevents in every process: under 30 ms beyond what msgspec takes.

    napari/napari#2114.
    """
    program = (
        "import time, msgspec, logging, dataclasses, typing\n"
        "begin = time.perf_counter()\n"
        "import kvevents_core\n"
        "print(time.perf_counter() - begin)\n"
    )
    spent_s = [
        float(subprocess.check_output([sys.executable, "-c", program], text=True, timeout=30))
        for _ in range(5)
    ]
    assert statistics.median(spent_s) < 0.03


@pytest.mark.parametrize(
    "keywords",
    [
        {"attn_dp_rank": 1, "endpoint": "tcp://*:5999", "bind": None, "topic": ""},
        {"data_parallel_rank": 1, "replay_endpoint": None, "buffer_steps": 1, "hwm": 1},
        {"max_queue_size": 1, "something_new": object()},
    ],
)
def test_the_null_publisher_takes_whatever_an_engine_passes(keywords: dict[str, object]) -> None:
    """No TypeError at the engine's start (vllm-project/vllm#27257)."""
    publisher = NullEventPublisher(**keywords)
    publisher.publish(object())
    publisher.note_requests(5)
    assert publisher.shutdown() == 0
