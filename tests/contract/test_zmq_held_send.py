"""Sending with the interpreter lock held: the same frames, the same errors, or pyzmq's own send."""

from __future__ import annotations

import ctypes
import errno
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from kvevents_zmq import held_send


@pytest.fixture
def pair() -> Iterator[tuple[zmq.Socket[bytes], zmq.Socket[bytes]]]:
    """Give two PAIR sockets that are connected inside the process."""
    context = zmq.Context()
    one, two = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.sndhwm = two.rcvhwm = 1
    one.bind("inproc://pair")
    two.connect("inproc://pair")
    yield one, two
    one.close(0)
    two.close(0)
    context.term()


@pytest.mark.parametrize("size", [0, 1, held_send.HELD_MAX_BYTES, held_send.HELD_MAX_BYTES + 1])
def test_the_three_frames_go_out_as_they_are(pair, size: int) -> None:
    """Zero bytes inside included, empty frames included, whichever way they go."""
    payload = bytes(n % 251 for n in range(size))
    held_send.message_sender(pair[0], b"to\0pic")(bytes(range(8)), payload)
    assert pair[1].recv_multipart() == [b"to\0pic", bytes(range(8)), payload]


def test_a_refused_first_frame_is_again_and_takes_nothing(pair) -> None:
    """As with pyzmq's own send."""
    send, sent = held_send.message_sender(pair[0], b""), 0
    with pytest.raises(zmq.Again):
        while sent < 10:
            send(bytes(8), b"%d" % sent)
            sent += 1
    assert sent
    for number in range(sent):
        assert pair[1].recv_multipart() == [b"", bytes(8), b"%d" % number]
    assert not pair[1].poll(10)


def test_single_frames_go_out_and_are_refused_alike(pair) -> None:
    """As the replay server sends them."""
    send = held_send.frame_sender(pair[0])
    for frame in (b"one", b"", bytes(held_send.HELD_MAX_BYTES + 1)):
        send(frame, held_send.MORE)
    send(b"end", held_send.LAST)
    assert [len(frame) for frame in pair[1].recv_multipart()] == [
        3,
        0,
        held_send.HELD_MAX_BYTES + 1,
        3,
    ]
    with pytest.raises(zmq.Again):
        for _ in range(10):
            send(b"x", held_send.LAST)


def test_another_refusal_is_a_zmq_error(pair) -> None:
    """A socket that cannot send says so."""
    sub = pair[0].context.socket(zmq.SUB)
    try:
        with pytest.raises(zmq.ZMQError) as caught:
            held_send.message_sender(sub, b"")(bytes(8), b"")
    finally:
        sub.close(0)
    assert caught.value.errno == zmq.ENOTSUP


def test_a_signal_in_the_middle_of_a_message_does_not_tear_it(
    pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EINTR means: that frame, or the message of which nothing went, once more."""
    find = held_send._find
    interrupt = iter([True, True, False, False, True, False])

    def interrupting(symbol: str) -> Callable[..., int]:
        real = find(symbol)
        assert real is not None

        def interrupted(*arguments: object) -> int:
            if next(interrupt):
                ctypes.set_errno(errno.EINTR)
                return -1
            return int(real(*arguments))

        return interrupted

    monkeypatch.setattr(held_send, "_find", interrupting)
    held_send.message_sender(pair[0], b"t")(bytes(8), b"p")
    send = held_send.frame_sender(pair[0])
    send(b"one", held_send.MORE)
    send(b"two", held_send.LAST)
    assert pair[1].recv_multipart() == [b"t", bytes(8), b"p"]
    assert pair[1].recv_multipart() == [b"one", b"two"]


def test_without_the_symbol_pyzmq_sends(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """No library, no symbol, or another version than pyzmq's: nothing breaks."""
    for broken in (OSError("no library"), AttributeError("no symbol")):

        def fail(*_: object, error: Exception = broken, **__: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(ctypes, "PyDLL", fail)
            assert held_send._find("zmq_send") is None
            held_send.message_sender(pair[0], b"t")(bytes(8), b"p")
        assert pair[1].recv_multipart() == [b"t", bytes(8), b"p"]
    monkeypatch.setattr(zmq, "zmq_version_info", lambda: (4, 0, 0))
    assert held_send._find("zmq_sendiov") is None


def test_the_lock_is_kept_across_a_group() -> None:
    """A thread that only computes does not get in between: a group is sent within a few ms."""
    context = zmq.Context()
    pub = context.socket(zmq.PUB)
    stop: list[bool] = []

    def compute() -> None:
        while not stop:
            sum(range(1000))

    computing = threading.Thread(target=compute)
    try:
        pub.bind("tcp://127.0.0.1:0")
        send = held_send.message_sender(pub, b"")
        computing.start()
        best_s = 1.0
        for _ in range(20):
            began = time.perf_counter()
            for _ in range(200):
                send(bytes(8), b"payload")
            best_s = min(best_s, time.perf_counter() - began)
    finally:
        stop.append(True)
        computing.join()
        pub.close(0)
        context.term()
    # Letting go in each of 600 sends would cost 5 ms each time.
    assert best_s < 0.2
