"""The ZMQ source against raw publishers and servers: foreign frames, restarts, both framings."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import zmq
from waiting import wait_until
from zmq_raw import STREAM, loopback, publishing, records, socket
from zmq_reading import all_of, collect, joined, open_source, reading, seen_by

from kvevents_core.backend import (
    Arrival,
    Head,
    Malformed,
    PeersCounted,
    Reconnected,
    Record,
)
from kvevents_core.errors import ClosedError, ConfigError, TransportError
from kvevents_core.naming import StreamId
from kvevents_zmq import ZmqSettings


@contextmanager
def raw_pub(**options: object) -> Iterator[tuple[zmq.Socket[bytes], ZmqSettings]]:
    """Give a raw PUB and the settings that lead to it."""
    with socket(zmq.PUB) as pub:
        port = pub.bind_to_random_port("tcp://127.0.0.1")
        yield pub, loopback(endpoint=f"tcp://127.0.0.1:{port}", **options)


class TestLive:
    """What SUB brings."""

    def test_records_come_back_as_they_were_sent(self) -> None:
        """Stream from the reader's names, no epoch, payload equal, channel = rank."""
        batch = records(3000)
        with publishing(loopback()) as published, reading(seen_by(published)) as source:
            joined(source, lambda: published.sink.send(records(1)))
            published.publish(batch)
            assert collect(source, 3000) == [one._replace(epoch=None) for one in batch]

    def test_the_first_connection_is_told_and_each_later_one(self) -> None:
        """Before the records that come by it."""
        with publishing(loopback()) as published:
            endpoint = published.endpoint
            with reading(seen_by(published)) as source:
                joined_at = collect(source, 1)
                assert joined_at == [Reconnected(0, first=True)]
                joined(source, lambda: published.sink.send(records(1)))
                published.sink.close(1.0)
                with publishing(loopback(endpoint=endpoint)) as again:
                    arrivals: list[Arrival] = []

                    def came() -> bool:
                        again.sink.send(records(1, first=50))
                        arrivals.extend(source.receive(0.02))
                        return any(isinstance(one, Record) for one in arrivals)

                    wait_until(came)
        assert arrivals[0] == Reconnected(0, first=False)

    def test_a_publisher_that_starts_later_is_found(self) -> None:
        """An unreachable peer is no error."""
        with publishing(loopback()) as published:
            settings = seen_by(published)
            published.sink.close(1.0)
        with reading(settings) as source:
            assert list(source.receive(0.05)) == []
            with publishing(settings) as published:
                joined(source, lambda: published.sink.send(records(1)))

    def test_a_longer_topic_with_our_prefix_is_not_ours(self) -> None:
        """SUB filters by prefix; the whole topic counts."""
        with raw_pub(topic="kv-events") as (pub, settings), reading(settings) as source:

            def send() -> None:
                pub.send_multipart([b"kv-events-b", bytes(8), b"other"])
                pub.send_multipart([b"kv-events", bytes(8), b"ours"])

            arrivals: list[Arrival] = []

            def came() -> bool:
                send()
                arrivals.extend(source.receive(0.02))
                return sum(isinstance(one, Record) for one in arrivals) > 3

            wait_until(came)
        payloads = {one.payload for one in arrivals if isinstance(one, Record)}
        assert payloads == {b"ours"}
        assert not [one for one in arrivals if isinstance(one, Malformed)]

    @pytest.mark.parametrize(
        "frames",
        [
            [b"", b"payload"],
            [b"payload"],
            [b"", bytes(7), b"payload"],
            [b"", bytes(9), b"payload"],
            [b"", bytes(8), b"payload", b""],
            [b"", b"", b""],
        ],
    )
    def test_what_is_no_record_is_reported_and_the_next_one_read(
        self, frames: list[bytes]
    ) -> None:
        """The connection is kept; the notice tells the shape, not the content."""
        with raw_pub() as (pub, settings), reading(settings) as source:
            joined(source, lambda: pub.send_multipart([b"", bytes(8), b"hello"]))
            pub.send_multipart(frames)
            pub.send_multipart([b"", b"\xff" * 8, b"good"])
            bad, good = collect(source, 2)
            assert isinstance(bad, Malformed)
            assert f"got {len(frames)} of" in bad.reason
            assert "payload" not in bad.reason
            assert good == Record(STREAM, None, 2**64 - 1, b"good", 0)

    def test_several_ranks_are_told_apart(self) -> None:
        """Each by its own socket; channels are the ranks."""
        with socket(zmq.PUB) as one, socket(zmq.PUB) as two:
            for _ in range(100):
                port = one.bind_to_random_port("tcp://127.0.0.1")
                try:
                    two.bind(f"tcp://127.0.0.1:{port + 2}")
                    break
                except zmq.ZMQError:
                    one.unbind(f"tcp://127.0.0.1:{port}")
            settings = loopback(endpoint=f"tcp://127.0.0.1:{port}")
            with reading(settings, ranks=(2, 0)) as source:
                found: set[tuple[int, bytes]] = set()

                def both() -> bool:
                    one.send_multipart([b"", bytes(8), b"zero"])
                    two.send_multipart([b"", bytes(8), b"two"])
                    for record in source.receive(0.02):
                        if isinstance(record, Record):
                            assert record.stream.rank == record.channel
                            found.add((record.channel, record.payload))
                    return len(found) == 2

                wait_until(both)
        assert found == {(0, b"zero"), (2, b"two")}

    def test_a_busy_rank_does_not_starve_another(self) -> None:
        """Each receive takes a chunk of each."""
        settings = loopback(endpoint="inproc://kvevents-test-fair")
        with (
            publishing(settings) as busy,
            publishing(settings, stream=StreamId("t", "m", "i", 1)) as quiet,
            reading(settings, ranks=(0, 1)) as source,
        ):
            joined(source, lambda: busy.sink.send(records(1)))
            joined(source, lambda: quiet.sink.send(records(1)))
            busy.sink.send(records(5000))
            quiet.sink.send(records(1))
            channels: set[int] = set()
            for _ in range(2):
                channels |= {one.channel for one in source.receive(1.0)}
            assert channels == {0, 1}

    def test_receive_waits_as_long_as_it_is_told(self) -> None:
        """And no longer, when notices are all that comes."""
        with publishing(loopback()) as published, reading(seen_by(published)) as source:
            collect(source, 1)
            start = time.monotonic()
            assert source.receive(0.2) == []
            assert 0.19 < time.monotonic() - start < 1.0
            assert source.receive(0) == []

    def test_closed_refuses_and_closing_again_is_quiet(self) -> None:
        """Prompt, also with a dead peer."""
        source = open_source(loopback(endpoint="tcp://127.0.0.1:1"))
        start = time.monotonic()
        source.close()
        source.close()
        assert time.monotonic() - start < 1.0
        for use in (
            lambda: source.receive(0),
            lambda: source.recover(0, STREAM, 0, 0),
            lambda: source.head(0, 0),
        ):
            with pytest.raises(ClosedError):
                use()


class TestAddresses:
    """Where a reader goes, given the publisher's settings."""

    def test_a_wildcard_means_loopback_unless_there_is_a_host(self) -> None:
        """IPv6 hosts get brackets."""
        settings = ZmqSettings(endpoint="tcp://*:5557")
        with reading(settings, ranks=(3,)) as source:
            assert source.endpoints == {3: "tcp://127.0.0.1:5560"}
        with reading(settings, host="2a02::1") as source:
            assert source.endpoints == {0: "tcp://[2a02::1]:5557"}

    def test_port_zero_is_refused_with_the_remedy(self) -> None:
        """Of either socket; where the reader binds, port 0 cannot occur."""
        for keys in (
            {"endpoint": "tcp://*:0"},
            {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:0"},
        ):
            with pytest.raises(ConfigError, match=r"describe\(\)") as caught:
                open_source(ZmqSettings(**keys))
            assert caught.value.key in keys

    def test_where_the_publisher_dials_the_reader_binds_and_counts(self) -> None:
        """Publishers come, go, and come back."""
        with socket(zmq.PUB) as probe:
            port = probe.bind_to_random_port("tcp://127.0.0.1")
            probe.unbind(f"tcp://127.0.0.1:{port}")
        settings = ZmqSettings(endpoint=f"tcp://127.0.0.1:{port}")
        with reading(settings) as source:
            with publishing(settings) as published:
                joined(source, lambda: published.sink.send(records(1)))
            assert collect(source, 1) == [PeersCounted(0, 0)]
            with publishing(settings) as one, publishing(settings) as two:
                arrivals: list[Arrival] = []

                def counted() -> bool:
                    arrivals.extend(source.receive(0.02))
                    return PeersCounted(0, 2) in arrivals

                wait_until(counted)
                assert Reconnected(0) in arrivals
                for each in (one, two):
                    joined(source, partial(each.sink.send, records(1)))

    def test_an_address_the_reader_cannot_bind_is_a_transport_error(self) -> None:
        """Two readers of a dialling publisher cannot share its endpoint."""
        with socket(zmq.PUB) as taken:
            port = taken.bind_to_random_port("tcp://127.0.0.1")
            with pytest.raises(TransportError, match="another reader") as caught:
                open_source(ZmqSettings(endpoint=f"tcp://127.0.0.1:{port}"))
            assert caught.value.address == f"tcp://127.0.0.1:{port}"

    def test_a_reader_that_nobody_dials_says_so(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Both sides binding would wait for each other for ever; once is enough."""
        monkeypatch.setattr("kvevents_zmq.source.LONELY_S", 0.05)
        with socket(zmq.PUB) as probe:
            port = probe.bind_to_random_port("tcp://127.0.0.1")
        with reading(ZmqSettings(endpoint=f"tcp://127.0.0.1:{port}")) as source:
            source.receive(0.2)
            source.receive(0.2)
        assert caplog.text.count("no publisher has dialled") == 1
        assert '"bind": true' in caplog.text


class TestHistory:
    """What the replay socket brings."""

    def test_history_comes_in_portions_with_the_epoch_and_ends(self) -> None:
        """Equal to what was sent, in order, and empty when it has caught up."""
        batch = records(5000)
        with (
            publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published,
            reading(seen_by(published)) as source,
        ):
            published.publish(batch)
            assert source.channels() == {0: STREAM}
            assert source.head(0, 5.0) == Head(STREAM, 7, 0, 5000)
            first = source.recover(0, STREAM, 0, 5.0)
            assert first == batch[:512]
            assert all_of(source, 512) == batch[512:]
            assert all_of(source, 5000) == []
            published.publish(records(1, first=5000))
            assert all_of(source, 5000) == records(1, first=5000)

    def test_a_portion_is_bounded_in_bytes(self) -> None:
        """About 8 MiB, whatever the records weigh."""
        batch = records(100, size_bytes=500_000)
        with (
            publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published,
            reading(seen_by(published)) as source,
        ):
            published.publish(batch)
            first = source.recover(0, STREAM, 0, 5.0)
            assert first is not None
            assert 8 * 2**20 <= sum(len(one.payload) for one in first) < 9 * 2**20
            assert [*first, *all_of(source, len(first))] == batch

    def test_one_may_jump_back_in_the_middle_of_an_answer(self) -> None:
        """What is under way is dropped with its socket."""
        batch = records(5000)
        with (
            publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published,
            reading(seen_by(published)) as source,
        ):
            published.publish(batch)
            for first in (0, 4000, 17):
                portion = source.recover(0, STREAM, first, 5.0)
                assert portion == batch[first : first + 512]
            assert source.head(0, 5.0) == Head(STREAM, 7, 0, 5000)

    def test_many_streams_fit_into_a_process_with_1024_descriptors(self, monkeypatch) -> None:
        """Beyond some streams a replay connection lasts as long as its answer."""
        monkeypatch.setattr("kvevents_zmq.source.KEPT_REPLAYS", 0)
        batch = records(2000)
        with (
            publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published,
            reading(seen_by(published)) as source,
        ):
            published.publish(batch)
            files = len(list(Path("/proc/self/fd").iterdir()))
            assert source.head(0, 5.0) == Head(STREAM, 7, 0, 2000)
            assert all_of(source, 0) == batch
            wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files)

    def test_without_a_replay_endpoint_there_is_no_history(self) -> None:
        """The stream is known all the same."""
        with publishing(loopback()) as published, reading(seen_by(published)) as source:
            assert source.channels() == {0: STREAM}
            assert source.recover(0, STREAM, 0, 0.1) is None
            assert source.head(0, 0.1) is None

    def test_a_dead_server_is_noticed_at_once(self) -> None:
        """A refused connection does not cost the whole timeout."""
        settings = loopback(endpoint="tcp://127.0.0.1:1", replay_endpoint="tcp://127.0.0.1:2")
        start = time.monotonic()
        with reading(settings) as source:
            assert source.recover(0, STREAM, 0, 5.0) is None
            assert source.head(0, 5.0) is None
        assert time.monotonic() - start < 2.0

    def test_a_silent_server_costs_the_timeout_and_its_socket(self) -> None:
        """Afterwards a new socket asks anew; a late answer is never taken for another's."""
        with silent_router() as (router, settings), reading(settings) as source:
            start = time.monotonic()
            assert source.recover(0, STREAM, 0, 0.3) is None
            assert 0.25 < time.monotonic() - start < 1.0
            first = router.recv_multipart()
            router.send_multipart([first[0], b"", b"", bytes(8), b"late"])
            serving = Thread(target=serve_stock, args=(router, records(3), 1))
            serving.start()
            wait_until(lambda: source.recover(0, STREAM, 1, 5.0) == without_epoch(records(2, 1)))
            serving.join()

    def test_a_server_that_dies_in_the_middle_of_an_answer_is_survived(self) -> None:
        """What it had sent is read, its end noticed at once; the process never aborts."""
        for _ in range(15):
            with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:
                settings = seen_by(published)
                source = open_source(settings)
                published.publish(records(3000))
                got = list(source.recover(0, STREAM, 0, 5.0) or ())
            start = time.monotonic()
            while portion := source.recover(0, STREAM, len(got), 5.0):
                got += portion
            assert portion is None
            assert got == records(len(got))
            assert time.monotonic() - start < 2.0
            source.close()

    def test_a_restarted_publisher_is_another_epoch(self) -> None:
        """A connection belongs to one life, so no record gets the other's epoch."""
        with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:
            settings = seen_by(published)
            source = open_source(settings)
            published.publish(records(2000))
            half = source.recover(0, STREAM, 0, 5.0)
            assert half == records(512)
        with publishing(settings, epoch=8) as again:
            again.publish(records(5000, epoch=8))
            rest: list[Record] = []

            def recovered() -> bool:
                rest.extend(source.recover(0, STREAM, 512 + len(rest), 5.0) or ())
                return any(one.epoch == 8 for one in rest)

            wait_until(recovered)
            old = [one for one in rest if one.epoch == 7]
            assert old == records(len(old), first=512)
            assert source.head(0, 5.0) == Head(STREAM, 8, 0, 5000)
        source.close()


def without_epoch(batch: Sequence[Record]) -> list[Record]:
    """Return ``batch`` as a stock server's history gives it."""
    return [one._replace(epoch=None) for one in batch]


@contextmanager
def silent_router() -> Iterator[tuple[zmq.Socket[bytes], ZmqSettings]]:
    """Give a raw ROUTER and settings whose replay endpoint it is."""
    with socket(zmq.ROUTER) as router:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        yield (
            router,
            loopback(endpoint="tcp://127.0.0.1:1", replay_endpoint=f"tcp://127.0.0.1:{port}"),
        )


def serve_stock(
    router: zmq.Socket[bytes],
    batch: Sequence[Record],
    requests: int,
    *,
    old: bool = False,
    strict: bool = False,
) -> None:
    """Answer as the stock servers do: any request is a number; ``strict``: only of 8 bytes."""
    topic = [] if old else [b""]
    while requests and router.poll(5000):
        frames = router.recv_multipart()
        if len(frames) != 3:
            continue
        requests -= 1
        if strict and len(frames[2]) != 8:
            continue
        start = int.from_bytes(frames[2], "big")
        for record in batch:
            if record.seq >= start:
                seq = record.seq.to_bytes(8, "big")
                router.send_multipart([frames[0], b"", *topic, seq, record.payload])
        router.send_multipart([frames[0], b"", *topic, b"\xff" * 8, b""])


@pytest.mark.parametrize("old", [False, True])
def test_a_stock_server_is_read_in_both_framings(old: bool) -> None:
    """It answers the head request with its end marker alone, so the epoch stays unknown."""
    batch = records(700)
    with silent_router() as (router, settings), reading(settings) as source:
        serving = Thread(target=serve_stock, args=(router, batch, 3), kwargs={"old": old})
        serving.start()
        assert source.head(0, 5.0) is None
        assert all_of(source, 0) == without_epoch(batch)
        serving.join()


def test_a_server_that_drops_unknown_requests_is_read_all_the_same() -> None:
    """The head request costs one timeout, then it is not sent again."""
    batch = records(3)
    with silent_router() as (router, settings), reading(settings) as source:
        serving = Thread(target=serve_stock, args=(router, batch, 3), kwargs={"strict": True})
        serving.start()
        assert source.recover(0, STREAM, 0, 0.3) is None
        assert all_of(source, 0) == without_epoch(batch)
        serving.join()


def test_records_under_another_topic_are_passed_over() -> None:
    """A shared replay proxy may hold several."""
    with silent_router() as (router, settings), reading(settings) as source:

        def serve() -> None:
            for _ in range(2):
                identity, _, request = router.recv_multipart()
                if len(request) == 8:
                    router.send_multipart([identity, b"", b"other", bytes(8), b"no"])
                    router.send_multipart([identity, b"", b"", bytes(7) + b"\1", b"yes"])
                router.send_multipart([identity, b"", b"", b"\xff" * 8, b""])

        serving = Thread(target=serve)
        serving.start()
        assert source.recover(0, STREAM, 0, 5.0) == [Record(STREAM, None, 1, b"yes")]
        serving.join()


def test_nonsense_from_a_server_ends_at_the_deadline() -> None:
    """Frames that are no reply are passed over, not waited out for ever."""
    with silent_router() as (router, settings), reading(settings) as source:
        stop: list[bool] = []

        def flood() -> None:
            identity = router.recv_multipart()[0]
            while not stop:
                router.send_multipart([identity, b"nonsense"])
                time.sleep(0.001)

        flooding = Thread(target=flood)
        flooding.start()
        start = time.monotonic()
        assert source.recover(0, STREAM, 0, 0.3) is None
        assert time.monotonic() - start < 2.0
        stop.append(True)
        flooding.join()
