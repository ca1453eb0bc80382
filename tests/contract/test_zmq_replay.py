"""The replay socket seen by raw clients: today's framing, complete, and nobody held up."""

from __future__ import annotations

import json
import time

import pytest
import zmq
from waiting import wait_until
from zmq.utils.monitor import recv_monitor_message
from zmq_raw import (
    END,
    STREAM,
    Publishing,
    ask,
    frames_of,
    loopback,
    observing,
    publishing,
    receive,
    records,
    socket,
    until_end,
)

HEAD = b"KVEVENTS-HEAD\x01"


def replaying(**keys: object):
    """Give a publisher with a replay socket."""
    return publishing(loopback(replay_endpoint="tcp://127.0.0.1:0", **keys))


def dealer_of(published: Publishing, **keys):
    """Give a raw DEALER connected to the replay socket."""

    def prepare(made: zmq.Socket[bytes]) -> None:
        for name, value in keys.items():
            setattr(made, name, value)
        made.connect(published.replay_endpoint)

    return socket(zmq.DEALER, prepare)


@pytest.mark.parametrize("topic", ["", "kv-events"])
def test_replayed_frames_equal_the_live_ones_and_the_end_marker_follows(topic: str) -> None:
    """N replies, then END: [b"", topic, seq, payload] and [b"", b"", ff*8, b""]."""
    batch = records(5)
    with replaying(topic=topic) as published, observing(published) as sub:
        published.publish(batch)
        live = [receive(sub) for _ in batch]
        with dealer_of(published) as dealer:
            replies = ask(dealer, 0)
            assert replies == [[b"", *frames] for frames in live]
            assert replies == [[b"", *frames_of(record, topic.encode())] for record in batch]
            assert ask(dealer, 3) == replies[3:]
            assert ask(dealer, 5) == []
            assert ask(dealer, 2**64 - 1) == []


def test_replies_start_at_the_oldest_record_still_held() -> None:
    """As with the stock engines, nothing marks the missing beginning."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(3, first=100))
        assert [reply[2] for reply in ask(dealer, 0)] == [
            seq.to_bytes(8, "big") for seq in (100, 101, 102)
        ]


def test_a_hole_in_the_ring_is_no_end() -> None:
    """A lost batch took a number and left no record; portions go on behind it."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(64) + records(64, first=200) + records(1, first=1000))
        assert len(ask(dealer, 0)) == 129
        assert len(ask(dealer, 150)) == 65


def test_a_request_is_answered_from_what_is_there_when_it_arrives() -> None:
    """What is published meanwhile is live traffic: the answer ends."""
    with replaying() as published, dealer_of(published, rcvhwm=10) as dealer:
        published.publish(records(5000, size_bytes=5000))
        dealer.send_multipart([b"", bytes(8)])
        receive(dealer)
        for first in range(5000, 6000, 100):
            published.publish(records(100, first=first))
        assert len(until_end(dealer)) == 4999


def test_an_empty_ring_answers_with_the_end_marker_alone() -> None:
    """Before the first batch."""
    with replaying() as published, dealer_of(published) as dealer:
        assert ask(dealer, 0) == []


@pytest.mark.parametrize(
    "garbage",
    [
        [bytes(8)],
        [b"x", bytes(8)],
        [b"", b""],
        [b"", b"\x01" * 7],
        [b"", bytes(9)],
        [b"", bytes(8), b""],
        [b"", b"", b"", b""],
        [b""],
    ],
)
def test_what_is_no_request_is_ignored(garbage: list[bytes]) -> None:
    """No answer, no harm: the next request is served, and the garbage was counted."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(1))
        dealer.send_multipart(garbage)
        assert ask(dealer, 0) == [[b"", *frames_of(records(1)[0])]]
        assert not dealer.poll(20)
        assert published.sink.describe()["requests_ignored"] == 1


def test_a_giant_request_costs_its_connection_only() -> None:
    """Libzmq closes it; other clients do not notice."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(1))
        with dealer_of(published) as giant:
            giant.send_multipart([b"", bytes(5_000_000)])
            assert len(ask(dealer, 0)) == 1
            assert not giant.poll(50)


def test_an_unknown_extension_gets_the_end_marker_only() -> None:
    """Longer than 8 bytes, first byte not zero: as a stock engine answers."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(3))
        dealer.send_multipart([b"", b"KVEVENTS-FUTURE\x07"])
        assert until_end(dealer) == []


def test_the_head_request_tells_stream_epoch_and_seqs() -> None:
    """Documented bytes: the request back, JSON, then the end marker."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(3, first=40))
        dealer.send_multipart([b"", HEAD])
        (reply,) = until_end(dealer)
        assert reply[:2] == [b"", HEAD]
        assert json.loads(reply[2]) == {
            "stream": str(STREAM),
            "epoch": 7,
            "first_seq": 40,
            "next_seq": 43,
        }


def test_a_req_socket_gets_one_reply() -> None:
    """What the engines give it, too; it sees no delimiter."""
    with (
        replaying() as published,
        socket(zmq.REQ, lambda made: made.connect(published.replay_endpoint)) as req,
    ):
        published.publish(records(2))
        req.send(bytes(8))
        assert receive(req) == frames_of(records(2)[0])


def test_requests_of_one_client_are_answered_one_after_the_other() -> None:
    """Each ends with its own marker."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(100))
        for start in (0, 50, 99):
            dealer.send_multipart([b"", start.to_bytes(8, "big")])
        assert [len(until_end(dealer)) for _ in range(3)] == [100, 50, 1]


def test_a_client_that_asks_without_end_is_held_to_some_requests() -> None:
    """The surplus is ignored and counted; memory stays bounded."""
    with replaying() as published, dealer_of(published, rcvhwm=1, rcvbuf=4096) as dealer:
        published.publish(records(200, size_bytes=100_000))
        for _ in range(500):
            dealer.send_multipart([b"", bytes(8)])
        wait_until(lambda: published.sink.describe()["requests_ignored"] > 100)


def test_ten_thousand_large_batches_arrive_complete_at_a_slow_client() -> None:
    """Nothing is cut off, while live traffic flows and another client is served meanwhile."""
    big = records(10_000, size_bytes=16_000)
    with replaying() as published, observing(published) as sub:
        for record in big:
            published.ring.append(record)
        with (
            dealer_of(published, rcvhwm=20, rcvbuf=65536) as slow,
            dealer_of(published) as quick,
        ):
            slow.send_multipart([b"", bytes(8)])
            got = [receive(slow)]
            # The slow one stands still now; its pipes are full.
            assert len(ask(quick, 9_000)) == 1_000
            live = records(500, first=10_000)
            published.publish(live)
            assert [receive(sub) for _ in live] == [frames_of(record) for record in live]
            while (frames := receive(slow)) != END:
                got.append(frames)
                if len(got) % 1000 == 0:
                    published.publish(records(1, first=20_000 + len(got)))
    assert got == [[b"", *frames_of(record)] for record in big]


def test_a_client_that_stopped_reading_costs_a_bounded_number_of_replies() -> None:
    """The server keeps its place, not its answer."""
    with replaying() as published, dealer_of(published, rcvhwm=1, rcvbuf=4096) as stuck:
        published.publish(records(3000, size_bytes=100_000))
        stuck.send_multipart([b"", bytes(8)])
        receive(stuck)
        with dealer_of(published) as other:
            for _ in range(5):
                other.send_multipart([b"", HEAD])
                until_end(other)
        assert published.sink.describe()["replies_sent"] < 500


def test_a_client_that_goes_away_in_the_middle_is_forgotten() -> None:
    """The next one is served, and nothing is sent for the one that left."""
    with replaying() as published:
        published.publish(records(3000, size_bytes=10_000))
        with dealer_of(published, rcvhwm=1) as leaver:
            leaver.send_multipart([b"", bytes(8)])
            receive(leaver)
        with dealer_of(published) as dealer:
            assert len(ask(dealer, 2990)) == 10
            before = published.sink.describe()["replies_sent"]
            assert len(ask(dealer, 2999)) == 1
            assert published.sink.describe()["replies_sent"] <= before + 2 + 64


def test_a_client_that_stands_still_too_long_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It pins no records for ever; when it asks again it is served."""
    monkeypatch.setattr("kvevents_zmq.replay_server.STALLED_S", 0.2)
    with replaying() as published, dealer_of(published, rcvhwm=1, rcvbuf=4096) as stuck:
        published.publish(records(1000, size_bytes=100_000))
        stuck.send_multipart([b"", bytes(8)])
        receive(stuck)
        wait_until(lambda: not published.sink._service._server.busy)
        monkeypatch.setattr("kvevents_zmq.replay_server.STALLED_S", 60.0)
        # What was on its way is all that comes; then the new request is answered.
        stuck.send_multipart([b"", (999).to_bytes(8, "big")])
        rest = until_end(stuck)
        assert len(rest) < 999
        assert rest[-1] == [b"", *frames_of(records(1, 999, 100_000)[0])]


def test_an_idle_sink_costs_nothing() -> None:
    """Its thread sleeps until somebody asks or comes."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(10))
        ask(dealer, 0)
        start_cpu, start = time.process_time(), time.monotonic()
        assert not dealer.poll(500)
        assert time.monotonic() - start > 0.49
        assert time.process_time() - start_cpu < 0.01


def test_a_waiting_client_does_not_keep_a_core_busy() -> None:
    """A stalled reader is looked after every 50 ms at last, not in a busy loop."""
    with replaying() as published, dealer_of(published, rcvhwm=1, rcvbuf=4096) as stuck:
        published.publish(records(1000, size_bytes=100_000))
        stuck.send_multipart([b"", bytes(8)])
        receive(stuck)
        sent = -1

        def settled() -> bool:
            nonlocal sent
            before, sent = sent, published.sink.describe()["replies_sent"]
            time.sleep(0.1)
            return before == sent

        wait_until(settled)
        start_cpu, start = time.process_time(), time.monotonic()
        stuck.poll(0)
        while time.monotonic() < start + 1.0:
            time.sleep(0.05)
        assert time.process_time() - start_cpu < 0.1


def test_closing_keeps_its_deadline_with_a_client_that_does_not_read() -> None:
    """Its answer is given up."""
    made = Publishing(loopback(replay_endpoint="tcp://127.0.0.1:0"))
    with dealer_of(made, rcvhwm=1, rcvbuf=4096) as stuck:
        made.publish(records(1000, size_bytes=100_000))
        stuck.send_multipart([b"", bytes(8)])
        receive(stuck)
        start = time.monotonic()
        made.sink.close(0.3)
        assert time.monotonic() - start < 0.6


def test_an_error_in_the_ring_is_shown_and_survived() -> None:
    """The thread lives on; live traffic never notices."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(2))
        real = published.ring.read
        published.ring.read = lambda first, limit: {}[first]  # type: ignore[method-assign]
        dealer.send_multipart([b"", bytes(8)])
        wait_until(lambda: published.sink.status().error)
        assert "KeyError" in str(published.sink.status().error)
        published.ring.read = real  # type: ignore[method-assign]
        assert len(until_end(dealer)) == 2
        wait_until(lambda: published.sink.status().error is None)


def test_a_huge_request_is_cut_off_before_it_takes_memory() -> None:
    """A client that sends megabytes is disconnected by libzmq; it may come again with a sound one."""
    with replaying() as published, dealer_of(published) as dealer:
        published.publish(records(3))
        assert len(ask(dealer, 0)) == 3
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        dealer.send_multipart([b"", bytes(10_000_000)])
        events = [
            recv_monitor_message(monitor, 0)["event"] for _ in range(2) if monitor.poll(5000)
        ]
        dealer.disable_monitor()
        monitor.close(0)
        assert events == [zmq.EVENT_DISCONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED]
        assert len(ask(dealer, 0)) == 3
        assert published.sink.describe()["requests_ignored"] == 0
