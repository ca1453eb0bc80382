"""The kit's relay: what it passes on, breaks, refuses, holds back, and takes up again."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvevents_core.testing import TcpRelay
from kvevents_core.testing.resources import held


class Echo:
    """A server that sends everything back."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(1000):
                        connection.sendall(data)
                except OSError:
                    continue

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join(5)


@pytest.fixture
def relay() -> Iterator[TcpRelay]:
    """A relay before an echo."""
    echo = Echo()
    made = TcpRelay("127.0.0.1", echo.port)
    yield made
    made.close()
    echo.close()


def ask(relay: TcpRelay, text: bytes = b"hello", timeout_s: float = 5.0) -> bytes:
    """Return the answer of the echo, b"" if the connection was broken."""
    with socket.create_connection(("127.0.0.1", relay.port), timeout_s) as connection:
        connection.sendall(text)
        return connection.recv(1000)


def test_what_is_sent_comes_back(relay: TcpRelay) -> None:
    """Bytes pass both ways, over as many connections as are made."""
    assert [ask(relay, b"%d" % number) for number in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stopped_relay_breaks_and_refuses(relay: TcpRelay) -> None:
    """Connections end, new ones are refused, and after ``start`` the port is the same."""
    port = relay.port
    with socket.create_connection(("127.0.0.1", port), 5.0) as connection:
        connection.sendall(b"x")
        assert connection.recv(10) == b"x"
        relay.stop()
        assert connection.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        ask(relay)
    relay.start()
    assert relay.port == port
    assert ask(relay) == b"hello"


def test_a_stalled_relay_answers_nothing(relay: TcpRelay) -> None:
    """Connections are taken and stay silent; after ``start`` all is well."""
    relay.stall()
    with pytest.raises(TimeoutError):
        ask(relay, timeout_s=0.2)
    relay.start()
    assert ask(relay) == b"hello"


def test_a_slow_relay_answers_late(relay: TcpRelay) -> None:
    """Each portion waits, there and back; nothing is lost."""
    relay.slow_down(0.1)
    started = time.monotonic()
    assert ask(relay) == b"hello"
    assert time.monotonic() - started >= 0.2


def test_a_waiting_relay_opens_nothing(relay: TcpRelay) -> None:
    """A relay that waits holds the same descriptors at every moment.

    The kit compares what a process holds before and after; a relay's own descriptors that come and
    go would look like the backend's.
    """
    before = held()
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert held().beyond(before) == []
