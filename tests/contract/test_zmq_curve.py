"""CURVE over real sockets: the right key reads, every other learns why not and receives nothing."""

from __future__ import annotations

import logging
import socket as system
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq
from waiting import wait_until
from zmq_raw import STREAM, loopback, publishing, records, socket
from zmq_reading import all_of, collect, joined, open_source, reading

from kvevents_core.backend import Arrival, Record, Trouble
from kvevents_zmq import ZmqSettings
from kvevents_zmq.channel import MANY_FAILURES

PUBLIC, SECRET = (key.decode() for key in zmq.curve_keypair())
OTHER_PUBLIC, OTHER_SECRET = (key.decode() for key in zmq.curve_keypair())


def trouble_of(settings: ZmqSettings, send: object) -> str:
    """Return what a reader with ``settings`` is told while ``send`` goes on, and no record comes."""
    arrivals: list[Arrival] = []
    with reading(settings) as source:

        def told() -> bool:
            send()  # type: ignore[operator]
            arrivals.extend(source.receive(0.02))
            return any(isinstance(one, Trouble) for one in arrivals)

        wait_until(told, timeout_s=5.0)
        for _ in range(20):
            send()  # type: ignore[operator]
            arrivals.extend(source.receive(0.01))
    assert not [one for one in arrivals if isinstance(one, Record)]
    troubles = [one.reason for one in arrivals if isinstance(one, Trouble)]
    assert len(troubles) == 1, "told once, not at every attempt"
    return troubles[0]


@pytest.mark.parametrize(
    "keys", [{"curve_secret_key": SECRET}, {"curve_server_key": PUBLIC}], ids=["same", "server"]
)
def test_a_reader_with_the_key_reads_live_and_history(keys: dict[str, str]) -> None:
    """Given the publisher's own settings, or its public key alone."""
    replay = {"replay_endpoint": "tcp://127.0.0.1:0"}
    with publishing(loopback(curve_secret_key=SECRET, **replay)) as published:
        told = published.sink.describe()
        assert told["curve"] is True
        assert SECRET not in repr(told)
        settings = loopback(
            endpoint=told["endpoint"], replay_endpoint=told["replay_endpoint"], **keys
        )
        with reading(settings) as source:
            joined(source, lambda: published.sink.send(records(1)))
            published.publish(records(3))
            assert collect(source, 3) == [one._replace(epoch=None) for one in records(3)]
            assert all_of(source, 0) == records(3)


def test_a_wrong_server_key_is_told_as_a_failed_handshake() -> None:
    """It does not look like an absent peer."""
    with publishing(loopback(curve_secret_key=SECRET)) as published:
        settings = loopback(endpoint=published.endpoint, curve_server_key=OTHER_PUBLIC)
        assert "curve_server_key" in trouble_of(settings, lambda: published.sink.send(records(1)))


def test_a_plain_reader_of_a_curve_publisher_receives_nothing() -> None:
    """Ours is told why; a raw one gets no byte."""
    with publishing(loopback(curve_secret_key=SECRET)) as published, socket(zmq.SUB) as raw:
        raw.subscribe(b"")
        raw.connect(published.endpoint)
        told = trouble_of(
            loopback(endpoint=published.endpoint), lambda: published.sink.send(records(1))
        )
        assert "one side uses CURVE" in told
        assert not raw.poll(100)


def test_a_curve_reader_of_a_plain_publisher_is_told() -> None:
    """The other way round, too."""
    with publishing(loopback()) as published:
        settings = loopback(endpoint=published.endpoint, curve_server_key=PUBLIC)
        assert "one side uses CURVE" in trouble_of(
            settings, lambda: published.sink.send(records(1))
        )


def test_a_publisher_logs_readers_that_fail_its_handshake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once, not at every attempt."""
    with (
        caplog.at_level(logging.WARNING, "kvevents.zmq"),
        publishing(loopback(curve_secret_key=SECRET)) as published,
    ):
        settings = loopback(endpoint=published.endpoint, curve_server_key=OTHER_PUBLIC)
        trouble_of(settings, lambda: published.sink.send(records(1)))
        wait_until(lambda: "could not connect" in caplog.text)
        assert caplog.text.count("could not connect") == 1
        assert published.sink.describe()["peers"] == 0
    assert SECRET not in caplog.text


def test_history_behind_a_wrong_key_is_out_of_reach_with_the_reason() -> None:
    """And promptly: it does not cost the whole timeout."""
    replay = {"replay_endpoint": "tcp://127.0.0.1:0"}
    with publishing(loopback(curve_secret_key=SECRET, **replay)) as published:
        settings = loopback(
            endpoint=published.endpoint,
            replay_endpoint=published.replay_endpoint,
            curve_server_key=OTHER_PUBLIC,
        )
        source = open_source(settings)
        try:
            assert source.recover(0, STREAM, 0, 5.0) is None
        finally:
            source.close()


def test_a_reader_waits_for_the_publisher_to_get_its_curve() -> None:
    """Libzmq stops dialling for good once only one side uses CURVE; the reader dials again."""
    with publishing(loopback()) as published:
        where = published.endpoint
        settings = loopback(endpoint=where, curve_server_key=PUBLIC)
        source = open_source(settings)
        arrivals: list[Arrival] = []

        def told() -> bool:
            arrivals.extend(source.receive(0.02))
            return any(isinstance(one, Trouble) for one in arrivals)

        wait_until(told)
    try:
        with publishing(loopback(endpoint=where, curve_secret_key=SECRET)) as published:
            joined(source, lambda: published.sink.send(records(1)))
    finally:
        source.close()


def test_only_listed_readers_are_admitted(tmp_path) -> None:
    """To both sockets; another key is told so, even before the publisher's thread runs."""
    listed = tmp_path / "readers"
    listed.write_text(f"# the router\n{OTHER_PUBLIC}\n\n")
    settings = loopback(
        curve_secret_key=SECRET,
        curve_client_keys_file=str(listed),
        replay_endpoint="tcp://127.0.0.1:0",
    )
    with publishing(settings) as published:
        where = {"endpoint": published.endpoint, "replay_endpoint": published.replay_endpoint}
        known = loopback(curve_server_key=PUBLIC, curve_secret_key=OTHER_SECRET, **where)
        stranger = loopback(curve_server_key=PUBLIC, **where)
        told = trouble_of(stranger, lambda: published.sink.send(records(1)))
        assert "does not admit" in told
        with reading(known) as source:
            joined(source, lambda: published.sink.send(records(1)))
            published.publish(records(3))
            assert all_of(source, 0) == records(3)
        with reading(stranger) as source:
            assert source.recover(0, STREAM, 0, 1.0) is None


def test_two_publishers_of_a_process_admit_their_own_readers(tmp_path) -> None:
    """Each context has a handler of its own."""
    listed = tmp_path / "readers"
    listed.write_text(OTHER_PUBLIC)
    keys = {"curve_secret_key": SECRET, "curve_client_keys_file": str(listed)}
    with publishing(loopback(**keys)) as one, publishing(loopback(**keys)) as two:
        for each in (one, two):
            settings = loopback(
                endpoint=each.endpoint, curve_server_key=PUBLIC, curve_secret_key=OTHER_SECRET
            )
            with reading(settings) as source:
                joined(source, lambda sink=each.sink: sink.send(records(1)))


def test_the_publisher_is_the_server_also_where_it_dials() -> None:
    """A reader that binds needs the publisher's public key alike."""
    with socket(zmq.SUB) as probe:
        port = probe.bind_to_random_port("tcp://127.0.0.1")
    there = f"tcp://127.0.0.1:{port}"
    with (
        reading(ZmqSettings(endpoint=there, curve_server_key=PUBLIC)) as source,
        publishing(ZmqSettings(endpoint=there, curve_secret_key=SECRET)) as published,
    ):
        joined(source, lambda: published.sink.send(records(1)))


@contextmanager
def hanging_up() -> Iterator[int]:
    """Give the port of a server that greets and then ends every connection."""
    with system.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # the server was shut down
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(system.SHUT_RDWR)
            thread.join()


def test_a_plain_reader_of_what_hangs_up_is_told_of_curve() -> None:
    """A publisher with CURVE may find out first, and its reader sees only that the line goes dead."""
    with hanging_up() as port:
        told = trouble_of(loopback(endpoint=f"tcp://127.0.0.1:{port}"), int)
    assert f"tcp://127.0.0.1:{port} hangs up" in told
    assert "curve_server_key" in told


def test_a_publisher_says_nothing_of_probes(caplog: pytest.LogCaptureFixture) -> None:
    """Who looks whether the port is open, and goes, has no wrong key."""
    with publishing(loopback()) as published, caplog.at_level(logging.WARNING):
        port = int(published.endpoint.rpartition(":")[2])
        for _ in range(2 * MANY_FAILURES):
            system.create_connection(("127.0.0.1", port)).close()
        monitor = published.sink._monitor
        assert monitor is not None
        wait_until(lambda: monitor.failures >= 2 * MANY_FAILURES)
    assert not caplog.messages
