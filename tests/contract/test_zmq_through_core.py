"""Publisher and subscription of core over ZMQ, in every way they can be connected."""

from __future__ import annotations

import logging
import signal
import socket as system
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from kvevents_core import (
    Batch,
    BlockRemoved,
    EventPublisher,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    subscribe,
)

pytestmark = pytest.mark.usefixtures("each_sender")

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with system.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def bound() -> dict[str, Any]:
    """The publisher binds both sockets."""
    return {
        "endpoint": f"tcp://127.0.0.1:{free_port()}",
        "bind": True,
        "replay_endpoint": f"tcp://127.0.0.1:{free_port()}",
    }


def opened(config: dict[str, Any]) -> EventPublisher:
    """Open a publisher with ``config``."""
    made = EventPublisherFactory.create(
        KVEventsConfig.from_mapping({"publisher": "zmq", "topic": "kv-events", **config})
    )
    assert isinstance(made, EventPublisher)
    return made


def read_all(config: dict[str, Any], publisher: EventPublisher, count: int, **keys: Any) -> None:
    """Read ``count`` batches and the epoch's opening one, each once, in order, and nothing else."""
    reader = KVEventsConfig.from_mapping({"publisher": "zmq", "topic": "kv-events", **config})
    items: list[Any] = []
    with subscribe(reader, **keys) as subscription:
        end_at = time.monotonic() + 20
        while len(items) <= count and time.monotonic() < end_at:
            items += subscription.receive(0.2)
    publisher.shutdown()
    assert {type(item) for item in items} == {Batch}
    assert [item.seq for item in items] == list(range(count + 1))


def publish(publisher: EventPublisher, count: int) -> None:
    """Publish ``count`` batches."""
    for number in range(count):
        removed = BlockRemoved(block_hashes=[2**40 + number])
        publisher.publish(KVEventBatch(ts=time.time(), events=[removed]))


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(lambda folder: bound(), id="tcp"),
        pytest.param(
            lambda folder: {
                "endpoint": f"ipc://{folder}/kv",
                "replay_endpoint": f"ipc://{folder}/replay",
            },
            id="ipc",
        ),
        pytest.param(
            lambda folder: {
                "sender": "thread",  # in another process nobody would hear it, and core says so
                "endpoint": f"inproc://{folder}/kv",
                "replay_endpoint": f"inproc://{folder}/replay",
            },
            id="inproc",
        ),
        pytest.param(lambda folder: {**bound(), "bind": False}, id="the reader binds"),
        pytest.param(lambda folder: {**bound(), "curve_secret_key": SECRET}, id="curve"),
    ],
)
def test_a_reader_that_joins_late_gets_everything(addresses: Any, tmp_path: Path) -> None:
    """History first, then live traffic, each batch once."""
    config = addresses(tmp_path)
    publisher = opened(config)
    publish(publisher, 1000)
    read_all(config, publisher, 1000)


def test_a_dialling_publisher_without_replay_loses_nothing_to_a_reader_that_is_there() -> None:
    """It waits for the reader's subscription before its first batch."""
    config = {"endpoint": f"tcp://127.0.0.1:{free_port()}"}
    reader = KVEventsConfig.from_mapping({"publisher": "zmq", **config})
    items: list[Any] = []
    with subscribe(reader) as subscription:
        publisher = EventPublisherFactory.create(
            KVEventsConfig.from_mapping({"publisher": "zmq", **config})
        )
        assert isinstance(publisher, EventPublisher)
        publish(publisher, 500)
        end_at = time.monotonic() + 20
        while len(items) <= 500 and time.monotonic() < end_at:
            items += subscription.receive(0.2)
        publisher.shutdown()
    assert [item.seq for item in items] == list(range(501))


def test_a_reader_with_the_public_key_alone_reads() -> None:
    """It need not have the publisher's configuration word for word."""
    config = bound()
    publisher = opened({**config, "curve_secret_key": SECRET})
    publish(publisher, 10)
    read_all({**config, "curve_server_key": PUBLIC}, publisher, 10)


def test_a_hundred_thousand_batches_arrive_in_order() -> None:
    """One reader, replay on, the publisher as fast as it may: nothing lost, nothing twice."""
    config = {**bound(), "overflow": "block"}
    publisher = opened(config)
    reader = KVEventsConfig.from_mapping({"publisher": "zmq", "topic": "kv-events", **config})
    next_seq = 0
    with subscribe(reader) as subscription:
        end_at = time.monotonic() + 45
        for _ in range(100):
            publish(publisher, 1000)
            for item in subscription.receive(0):
                assert isinstance(item, Batch)
                assert item.seq == next_seq
                next_seq += 1
        while next_seq <= 100_000 and time.monotonic() < end_at:
            for item in subscription.receive(0.2):
                assert isinstance(item, Batch)
                assert item.seq == next_seq
                next_seq += 1
    publisher.shutdown()
    assert next_seq == 100_001


def test_whether_it_binds_is_logged_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    """An inference that nobody sees is one that nobody questions."""
    with caplog.at_level(logging.INFO, "kvevents.zmq"):
        opened({**bound(), "instance": "pod-7"}).shutdown()
        opened({"endpoint": "tcp://127.0.0.1:1"}).shutdown(timeout_s=0.1)
    assert "is bound at" in caplog.text
    assert "given by bind" in caplog.text
    assert "dials tcp://127.0.0.1:1 (inferred from the host)" in caplog.text


def test_a_storm_of_signals_tears_no_message() -> None:
    """A profiler's or a supervisor's signals: every message has its three frames, all arrive."""
    config = {"endpoint": f"tcp://127.0.0.1:{free_port()}", "bind": True, "topic": ""}
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    publisher = opened(config)
    context = zmq.Context()
    raw = context.socket(zmq.SUB)
    raw.rcvhwm, raw.linger, raw.rcvtimeo = 0, 0, 10_000
    raw.subscribe(b"")
    raw.connect(str(config["endpoint"]))
    try:
        while not raw.poll(20):
            publish(publisher, 1)
        first = int.from_bytes(raw.recv_multipart()[1], "big")
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for _ in range(100):
            publish(publisher, 100)
            time.sleep(0)
        messages = [raw.recv_multipart() for _ in range(10_000)]
        signal.setitimer(signal.ITIMER_REAL, 0)
        seqs = [int.from_bytes(frames[1], "big") for frames in messages]
        assert {len(frames) for frames in messages} == {3}
        assert seqs == list(range(first + 1, first + 10_001))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        raw.close()
        context.term()
        publisher.shutdown()
