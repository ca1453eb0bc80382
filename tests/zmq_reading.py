"""Our own ZMQ source, driven as core drives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from waiting import wait_until
from zmq_raw import STREAM, Publishing, loopback

from kvevents_core.backend import Arrival, ReaderOptions, Record
from kvevents_zmq import ZmqBackend, ZmqSettings
from kvevents_zmq.source import ZmqSource


def open_source(settings: ZmqSettings, **keys) -> ZmqSource:
    """Open a source of the test's stream."""
    reader = ReaderOptions(STREAM.tenant, STREAM.model, STREAM.instance, **keys)
    source = ZmqBackend().open_source(settings, reader)
    assert isinstance(source, ZmqSource)
    return source


@contextmanager
def reading(settings: ZmqSettings, **keys) -> Iterator[ZmqSource]:
    """Open a source; close it at the end."""
    source = open_source(settings, **keys)
    try:
        yield source
    finally:
        source.close()


def seen_by(published: Publishing, **keys) -> ZmqSettings:
    """Return the settings that lead to ``published``."""
    replay = published.sink.describe()["replay_endpoint"]
    return loopback(endpoint=published.endpoint, replay_endpoint=replay, **keys)


def collect(source: ZmqSource, count: int, *, timeout_s: float = 10.0) -> list[Arrival]:
    """Return the first ``count`` arrivals."""
    arrivals: list[Arrival] = []
    end_at = time.monotonic() + timeout_s
    while len(arrivals) < count:
        assert time.monotonic() < end_at, f"only {arrivals} in time"
        arrivals += source.receive(0.05)
    return arrivals


def joined(source: ZmqSource, send: Callable[[], object]) -> None:
    """Call ``send`` until the source receives; takes all of it."""

    def received() -> bool:
        send()
        return any(isinstance(one, Record) for one in source.receive(0.02))

    wait_until(received)
    while source.receive(0.05):
        pass


def all_of(source: ZmqSource, first_seq: int) -> Sequence[Record]:
    """Recover portion by portion, as core does."""
    found: list[Record] = []
    while portion := source.recover(0, STREAM, first_seq, 5.0):
        assert all(isinstance(one, Record) for one in portion)
        found += portion
        first_seq = portion[-1].seq + 1
    assert portion is not None
    return found
