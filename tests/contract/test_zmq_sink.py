"""The ZMQ sink seen by raw peers: frames, addresses, exclusiveness, losses, both directions."""

from __future__ import annotations

import errno
import logging
import os
import socket as system
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq
from waiting import wait_until
from zmq_raw import (
    STREAM,
    Publishing,
    frames_of,
    loopback,
    observing,
    publishing,
    receive,
    records,
    shake_hands,
    socket,
)

from kvevents_core.backend import Record
from kvevents_core.errors import AddressInUseError, ClosedError, TransportError
from kvevents_core.naming import StreamId
from kvevents_zmq import ZmqBackend
from kvevents_zmq.sockets import system_has_ipv6

needs_ipv6 = pytest.mark.skipif(not system_has_ipv6(), reason="this system has no IPv6")


@pytest.mark.parametrize("topic", ["", "kv-events", "kv@pod@Qwen/Qwen3"])
def test_a_record_is_exactly_three_frames(topic: str) -> None:
    """Topic (also the empty one), seq as 8 bytes big-endian, payload untouched."""
    batch = [
        Record(STREAM, 1, 0, b""),
        Record(STREAM, 1, 258, bytes(range(256))),
        Record(STREAM, 1, 2**64 - 2, b"x" * 1_000_000),
    ]
    with publishing(loopback(topic=topic)) as published, observing(published) as sub:
        assert published.sink.send(batch) == 3
        for record in batch:
            assert receive(sub) == frames_of(record, topic.encode())
    assert batch[1].seq.to_bytes(8, "big") == b"\0\0\0\0\0\0\1\2"


def test_records_arrive_in_order_and_whole() -> None:
    """Twenty thousand of them."""
    batch = records(20_000)
    with publishing(loopback()) as published, observing(published) as sub:
        for start in range(0, len(batch), 500):
            assert published.sink.send(batch[start : start + 500]) == 500
        for record in batch:
            assert receive(sub) == frames_of(record)


def test_a_record_that_cannot_be_sent_leaves_nothing_half_sent() -> None:
    """A seq beyond u64 and a payload that is not bytes fail before their first frame."""
    good = records(2)
    with publishing(loopback()) as published, observing(published) as sub:
        with pytest.raises(OverflowError):
            published.sink.send([good[0]._replace(seq=2**64)])
        with pytest.raises(TypeError):
            published.sink.send([good[0]._replace(payload="text")])
        assert published.sink.send(good) == 2
        assert [receive(sub), receive(sub)] == [frames_of(record) for record in good]
        bad = good[0]._replace(payload=memoryview(b"text"))
        assert published.sink.send([*good, bad, *good]) == 2
        assert [receive(sub), receive(sub)] == [frames_of(record) for record in good]
        assert not sub.poll(20)


def test_what_a_slow_reader_loses_shows_in_the_seq() -> None:
    """PUB drops beyond its mark without a word: missing == sent - received, by seq."""

    def small(sub: zmq.Socket[bytes]) -> None:
        sub.rcvhwm = 5
        sub.rcvbuf = 4096

    batch = records(2000, size_bytes=100_000)
    with (
        publishing(loopback(hwm=5)) as published,
        observing(published, prepare=small) as sub,
    ):
        assert published.sink.send(batch) == 2000
        last = records(1, first=2000)
        seqs: list[int] = []
        while not seqs or seqs[-1] != 2000:
            if not sub.poll(50):
                published.sink.send(last)
            else:
                seqs.append(int.from_bytes(sub.recv_multipart()[1], "big"))
    seqs = sorted(set(seqs))
    missing = sum(b - a - 1 for a, b in zip([-1, *seqs], seqs, strict=False))
    assert missing == 2001 - len(seqs)
    assert missing > 0


def test_port_zero_gives_each_rank_a_real_port_and_reports_it() -> None:
    """Three ranks, three ports, none privileged; the reported endpoint is the one that answers."""
    opened = [
        Publishing(loopback(replay_endpoint="tcp://127.0.0.1:0"), StreamId("t", "m", "i", rank))
        for rank in range(3)
    ]
    try:
        told = [made.endpoint for made in opened] + [made.replay_endpoint for made in opened]
        ports = {int(endpoint.rpartition(":")[2]) for endpoint in told}
        assert len(ports) == 6
        assert min(ports) > 1023
        with observing(opened[2]) as sub:
            opened[2].publish(records(1))
            assert receive(sub) == frames_of(records(1)[0])
    finally:
        for made in opened:
            made.sink.close(1.0)


def test_the_port_is_the_base_plus_the_stream_rank() -> None:
    """Of both sockets."""

    def opened() -> bool:
        with system.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            base = probe.getsockname()[1]
        events, replay = f"tcp://127.0.0.1:{base}", f"tcp://127.0.0.1:{base + 4}"
        settings = loopback(endpoint=events, replay_endpoint=replay)
        try:
            with publishing(settings, stream=StreamId("t", "m", "i", 3)) as published:
                assert published.endpoint == f"tcp://127.0.0.1:{base + 3}"
                assert published.replay_endpoint == f"tcp://127.0.0.1:{base + 7}"
        except AddressInUseError:
            return False  # another program's port: take another base
        return True

    wait_until(opened)


@pytest.mark.parametrize("taken", ["endpoint", "replay_endpoint"])
def test_a_second_publisher_of_an_address_fails_at_once(taken: str) -> None:
    """The error names endpoint, stream and what to check; the first one is undisturbed."""
    with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as first:
        address = first.sink.describe()[taken]
        keys = {"replay_endpoint": "tcp://127.0.0.1:0", taken: address}
        with pytest.raises(AddressInUseError) as caught:
            ZmqBackend().open_sink(loopback(**keys), STREAM)
        assert caught.value.address == address
        assert address in str(caught.value)
        assert str(STREAM) in str(caught.value)
        assert "two ranks" in str(caught.value)
        with observing(first) as sub:
            first.publish(records(1))
            receive(sub)


def test_a_failed_opening_gives_back_what_it_had_taken() -> None:
    """The event port is free again although the replay port was not to be had."""
    with publishing(loopback()) as other, system.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        with pytest.raises(AddressInUseError):
            ZmqBackend().open_sink(loopback(endpoint=free, replay_endpoint=other.endpoint), STREAM)
        with publishing(loopback(endpoint=free)) as now:
            assert now.endpoint == free


def test_an_address_of_another_machine_is_a_transport_error() -> None:
    """With the reason in words."""
    settings = loopback(endpoint="tcp://192.0.2.1:5557")
    with pytest.raises(TransportError, match="no such address") as caught:
        ZmqBackend().open_sink(settings, STREAM)
    assert not isinstance(caught.value, AddressInUseError)
    assert caught.value.address == "tcp://192.0.2.1:5557"


def test_a_second_publisher_of_an_ipc_path_fails_although_libzmq_would_let_it_in(tmp_path) -> None:
    """Libzmq unlinks the path and binds; the lock beside it does not let that happen."""
    settings = loopback(endpoint=f"ipc://{tmp_path}/kv", replay_endpoint=f"ipc://{tmp_path}/re")
    with publishing(settings) as first:
        with pytest.raises(AddressInUseError):
            ZmqBackend().open_sink(settings, STREAM)
        with observing(first) as sub:
            first.publish(records(1))
            receive(sub)
    with publishing(settings):
        pass
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".lock"] == []


def test_an_ipc_path_served_by_a_foreign_program_is_in_use(tmp_path) -> None:
    """It holds no lock of ours, so it is found by dialling; a stale path is no obstacle."""
    path = tmp_path / "kv"
    settings = loopback(endpoint=f"ipc://{path}")
    with system.socket(system.AF_UNIX) as foreign:
        foreign.bind(str(path))
        foreign.listen()
        with pytest.raises(AddressInUseError):
            ZmqBackend().open_sink(settings, STREAM)
    assert path.exists()
    with publishing(settings) as published, observing(published):
        pass


def test_an_ipc_path_is_free_again_after_its_owner_was_killed(tmp_path) -> None:
    """The kernel lets go of the lock, whatever files stay behind."""
    code = (
        "import sys, time\n"
        "from zmq_raw import Publishing, loopback\n"
        "made = Publishing(loopback(endpoint=sys.argv[1]))\n"
        "print('bound', flush=True)\n"
        "time.sleep(60)\n"
    )
    settings = loopback(endpoint=f"ipc://{tmp_path}/kv")
    command = [sys.executable, "-c", code, settings.endpoint]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "bound\n"
        with pytest.raises(AddressInUseError):
            ZmqBackend().open_sink(settings, STREAM)
        owner.kill()
        owner.wait(5)
    assert (tmp_path / "kv.lock").exists()
    with publishing(settings) as published, observing(published):
        pass
    assert not (tmp_path / "kv.lock").exists()


def test_ipc_ranks_get_a_suffix(tmp_path) -> None:
    """Where the stock engines refuse rank 1."""
    settings = loopback(endpoint=f"ipc://{tmp_path}/kv")
    with publishing(settings, stream=StreamId("t", "m", "i", 1)) as published:
        assert published.endpoint == f"ipc://{tmp_path}/kv_dp1"
        with observing(published):
            pass


def test_an_ipc_path_in_a_missing_directory_is_a_transport_error(tmp_path) -> None:
    """Not a lock error of ours."""
    with pytest.raises(TransportError, match="No such file"):
        ZmqBackend().open_sink(loopback(endpoint=f"ipc://{tmp_path}/none/kv"), STREAM)


def test_inproc_meets_in_the_shared_context() -> None:
    """Sockets of one process find each other, and a second bind fails."""
    settings = loopback(endpoint="inproc://kvevents-test-sink")
    with publishing(settings) as published:
        with pytest.raises(AddressInUseError):
            ZmqBackend().open_sink(settings, STREAM)
        sub = zmq.Context.instance().socket(zmq.SUB)
        try:
            sub.subscribe(b"")
            sub.connect(published.endpoint)
            shake_hands(published.sink, sub)
        finally:
            sub.close(0)


@needs_ipv6
@pytest.mark.parametrize("host", ["[::]", "*"])
def test_an_ipv6_wildcard_takes_both_families(host: str) -> None:
    """In the stock engines [::] fails and * is IPv4 only."""
    with publishing(loopback(endpoint=f"tcp://{host}:0")) as published:
        port = int(published.endpoint.rpartition(":")[2])
        for family, address in ((system.AF_INET, "127.0.0.1"), (system.AF_INET6, "::1")):
            with system.socket(family) as client:
                client.settimeout(5)
                client.connect((address, port))
                assert client.recv(1) == b"\xff"


@needs_ipv6
def test_an_ipv6_address_is_bound_and_reported_with_brackets() -> None:
    """So that it can be dialled as it stands."""

    def six(sub: zmq.Socket[bytes]) -> None:
        sub.ipv6 = True

    with publishing(loopback(endpoint="tcp://[::1]:0")) as published:
        assert published.endpoint.startswith("tcp://[::1]:")
        with observing(published, prepare=six):
            pass


def test_an_open_wildcard_without_curve_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Token ids are prompt text; a loopback address is nobody's business."""
    with caplog.at_level(logging.WARNING, "kvevents.zmq"), publishing(loopback()):
        assert not caplog.records
    with publishing(loopback(endpoint="tcp://*:0")):
        assert "every interface without CURVE" in caplog.text


def test_readers_are_counted() -> None:
    """As ``describe`` says; a status change wakes the sender."""
    with publishing(loopback()) as published:
        with observing(published):
            wait_until(lambda: published.sink.describe()["peers"] == 1)
            assert published.woken
        wait_until(lambda: published.sink.describe()["peers"] == 0)


def test_strangers_on_the_port_disturb_nobody() -> None:
    """A port scanner and an HTTP client are neither counted nor fatal."""
    with publishing(loopback()) as published:
        port = int(published.endpoint.rpartition(":")[2])
        for talk in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100):
            with system.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(talk)
        with observing(published) as sub:
            wait_until(lambda: published.sink.describe()["peers"] == 1)
            published.publish(records(1))
            receive(sub)


class TestDialling:
    """Where the reader binds and the publisher connects."""

    def test_the_first_batches_wait_for_the_first_subscription(self) -> None:
        """So that a reader which is there loses none: neither handshake nor sleep is needed."""
        with socket(zmq.SUB) as sub:
            sub.subscribe(b"")
            port = sub.bind_to_random_port("tcp://127.0.0.1")
            with publishing(loopback(endpoint=f"tcp://127.0.0.1:{port}", bind=None)) as published:
                batch = records(3)
                assert published.sink.describe()["bind"] is False
                # A bound SUB subscribes once its thread attends to it, as a reader's does.
                wait_until(lambda: sub.poll(0) or published.sink.send(batch) == 3)
                assert [receive(sub) for _ in batch] == [frames_of(record) for record in batch]
                wait_until(lambda: published.sink.status().connected)

    def test_without_a_reader_it_holds_for_a_while_and_goes_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Never for ever: the engine's batches are not to pile up for nobody."""
        monkeypatch.setattr("kvevents_zmq.sink.FIRST_READER_S", 0.3)
        with publishing(loopback(endpoint="tcp://127.0.0.1:1", bind=None)) as published:
            status = published.sink.status()
            assert (status.ready, status.connected) == (True, False)
            assert published.sink.send(records(1)) == 0
            wait_until(lambda: published.sink.send(records(1)) == 1)

    def test_a_publisher_without_a_reader_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A concrete host taken as one to dial is the classic way to lose every event."""
        monkeypatch.setattr("kvevents_zmq.service.LONELY_S", 0.1)
        with (
            caplog.at_level(logging.WARNING, "kvevents.zmq"),
            publishing(loopback(endpoint="tcp://127.0.0.1:1", bind=None)),
        ):
            wait_until(lambda: "found no reader" in caplog.text)
        assert "tcp://127.0.0.1:1" in caplog.text

    def test_a_reader_that_comes_back_is_dialled_again(self) -> None:
        """Sending resumes without a word from anybody."""
        with socket(zmq.SUB) as sub:
            sub.subscribe(b"")
            port = sub.bind_to_random_port("tcp://127.0.0.1")
            with publishing(loopback(endpoint=f"tcp://127.0.0.1:{port}", bind=None)) as published:
                wait_until(lambda: sub.poll(0) or published.sink.send(records(1)) == 1)
                receive(sub)
                sub.close(0)
                wait_until(lambda: not published.sink.status().connected)
                with socket(zmq.SUB) as again:
                    again.subscribe(b"")
                    again.bind(f"tcp://127.0.0.1:{port}")
                    shake_hands(published.sink, again)
                    wait_until(lambda: published.sink.status().connected)


def test_closed_refuses_and_closing_again_is_quiet() -> None:
    """Never swallowed: ClosedError, nothing taken."""
    made = Publishing(loopback(replay_endpoint="tcp://127.0.0.1:0"))
    made.sink.close(1.0)
    made.sink.close(0.0)
    with pytest.raises(ClosedError):
        made.sink.send(records(1))
    assert not made.sink.flush(0.1)
    assert not made.sink.status().connected


def test_close_ends_the_thread_and_frees_the_addresses() -> None:
    """They can be bound again at once."""
    settings = loopback(replay_endpoint="tcp://127.0.0.1:0")
    made = Publishing(settings)
    before = {thread.name for thread in threading.enumerate()}
    assert "kvevents-zmq-0" in before
    endpoint, replay = made.endpoint, made.replay_endpoint
    made.sink.close(1.0)
    assert "kvevents-zmq-0" not in {thread.name for thread in threading.enumerate()}
    with publishing(loopback(endpoint=endpoint, replay_endpoint=replay)):
        pass


def test_a_sink_that_was_never_started_closes_too() -> None:
    """Core may fail between opening and starting."""
    sink = ZmqBackend().open_sink(loopback(replay_endpoint="tcp://127.0.0.1:0"), STREAM)
    before = threading.active_count()
    sink.close(1.0)
    assert threading.active_count() == before


def test_close_keeps_its_deadline_with_a_reader_that_does_not_read() -> None:
    """Megabytes wait for it; they are given up."""

    def small(sub: zmq.Socket[bytes]) -> None:
        sub.rcvhwm = 1
        sub.rcvbuf = 4096

    with publishing(loopback()) as published, observing(published, prepare=small):
        published.sink.send(records(200, size_bytes=1_000_000))
        done = threading.Event()
        closing = threading.Thread(target=lambda: (published.sink.close(0.5), done.set()))
        closing.start()
        assert done.wait(1.0)
        closing.join()


def test_close_lets_a_reader_have_what_was_sent() -> None:
    """A batch handed over just before is not thrown away."""
    with publishing(loopback()) as published, observing(published) as sub:
        batch = records(500, size_bytes=10_000)
        published.sink.send(batch)
        published.sink.close(5.0)
        assert [receive(sub) for _ in batch] == [frames_of(record) for record in batch]


def test_an_unknown_bind_error_still_names_the_address() -> None:
    """A privileged port without the privilege, or whatever else libzmq says."""
    from kvevents_zmq.endpoints import parse_endpoint
    from kvevents_zmq.sockets import bind_error

    where = parse_endpoint("tcp://*:80")
    assert "below 1024" in str(bind_error(zmq.ZMQError(errno.EACCES), where, STREAM))
    assert "tcp://*:80" in str(bind_error(zmq.ZMQError(errno.EIO), where, STREAM))


def test_an_error_of_a_send_is_told_until_a_send_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What libzmq refuses stays with core and shows in the status, no longer than it lasts."""
    with publishing(loopback()) as published:
        sink, batch = published.sink, records(2)
        with monkeypatch.context() as patched:

            def refuse(_seq: bytes, _payload: bytes) -> None:
                raise zmq.ZMQError(zmq.ENOTSUP)

            patched.setattr(sink, "_send_message", refuse)
            assert sink.send(batch) == 0
        assert "send failed" in (sink.status().error or "")
        assert sink.send(batch) == 2
        assert sink.status().error is None
