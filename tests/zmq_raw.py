"""Raw ZMQ peers for the tests of the ZMQ backend: never our own source or sink."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq
from waiting import wait_until

from kvevents_core.backend import Record, SinkHost
from kvevents_core.naming import StreamId
from kvevents_core.replay import ReplayRing
from kvevents_zmq import ZmqBackend, ZmqSettings
from kvevents_zmq.sink import ZmqSink

STREAM = StreamId("tenant", "model", "instance", 0)
PROBE_SEQ = 2**63
END = [b"", b"", b"\xff" * 8, b""]


def loopback(**keys: Any) -> ZmqSettings:
    """Return settings that bind a free loopback port."""
    return ZmqSettings(**{"endpoint": "tcp://127.0.0.1:0", "bind": True, **keys})


def records(count: int, first: int = 0, size_bytes: int = 20, epoch: int = 7) -> list[Record]:
    """Return ``count`` records whose payloads tell their seq."""
    return [
        Record(STREAM, epoch, seq, f"{seq:08d}".encode().ljust(size_bytes, b"."))
        for seq in range(first, first + count)
    ]


def frames_of(record: Record, topic: bytes = b"") -> list[bytes]:
    """Return the frames a record must have on the wire."""
    return [topic, record.seq.to_bytes(8, "big"), record.payload]


class Publishing:
    """A started sink with a ring, as core would hold it."""

    def __init__(self, settings: ZmqSettings, stream: StreamId = STREAM, epoch: int = 7) -> None:
        self.ring = ReplayRing(100_000, 2**30)
        sink = ZmqBackend().open_sink(settings, stream)
        assert isinstance(sink, ZmqSink)
        self.sink = sink
        self.woken = 0
        self.sink.start(SinkHost(wake=self._wake, epoch=lambda: epoch, history=self.ring))

    def _wake(self) -> None:
        self.woken += 1

    @property
    def endpoint(self) -> str:
        return str(self.sink.describe()["endpoint"])

    @property
    def replay_endpoint(self) -> str:
        return str(self.sink.describe()["replay_endpoint"])

    def publish(self, batch: Sequence[Record]) -> None:
        for record in batch:
            self.ring.append(record)
        assert self.sink.send(batch) == len(batch)


@contextmanager
def publishing(settings: ZmqSettings, **keys: Any) -> Iterator[Publishing]:
    """Open and start a sink; close it at the end."""
    made = Publishing(settings, **keys)
    try:
        yield made
    finally:
        made.sink.close(1.0)


@contextmanager
def socket(kind: int, prepare: Callable[[zmq.Socket[bytes]], object] = bool) -> Iterator[Any]:
    """Give a raw socket in a context of its own; ``prepare`` sets options first."""
    context = zmq.Context()
    made = context.socket(kind)
    made.linger = 0
    made.rcvhwm = 0
    made.sndhwm = 0
    try:
        prepare(made)
        yield made
    finally:
        made.close(0)
        context.term()


@contextmanager
def observing(published: Publishing, topic: bytes = b"", **keys: Any) -> Iterator[Any]:
    """Give a raw SUB that certainly receives what is sent from now on."""
    with socket(zmq.SUB, **keys) as sub:
        sub.subscribe(topic)
        sub.connect(published.endpoint)
        shake_hands(published.sink, sub)
        yield sub


def shake_hands(sink: ZmqSink, sub: zmq.Socket[bytes]) -> None:
    """Send probes until ``sub`` receives one, then take all that came."""
    probe = [Record(STREAM, 0, PROBE_SEQ, b"probe")]

    def arrived() -> bool:
        sink.send(probe)
        return bool(sub.poll(20))

    wait_until(arrived, what="a probe to arrive")
    last = [Record(STREAM, 0, PROBE_SEQ + 1, b"probe")]
    assert sink.send(last) == 1
    while receive(sub)[1] != (PROBE_SEQ + 1).to_bytes(8, "big"):
        pass


def receive(made: zmq.Socket[bytes], timeout_s: float = 10.0) -> list[bytes]:
    """Return the next message of a raw socket; fail at the deadline."""
    assert made.poll(int(1000 * timeout_s)), "no message in time"
    return made.recv_multipart()


def ask(dealer: zmq.Socket[bytes], start_seq: int) -> list[list[bytes]]:
    """Ask as the engines' readers do and return the replies without the end marker."""
    dealer.send_multipart([b"", start_seq.to_bytes(8, "big")])
    return until_end(dealer)


def until_end(dealer: zmq.Socket[bytes]) -> list[list[bytes]]:
    """Return what arrives before the next end marker."""
    replies: list[list[bytes]] = []
    while True:
        frames = receive(dealer)
        if frames == END:
            return replies
        replies.append(frames)
