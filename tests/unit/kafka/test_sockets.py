"""A connection that fails leaves no socket behind."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.inet import KafkaNetSocket
from kafka.net.selector import NetworkSelector

from kvevents_kafka.sockets import DIRECT, TidySocket


def connect(port: int, made: list[socket.socket]) -> Any:
    """Connect to a loopback port as the client does; note each socket it makes."""
    net = NetworkSelector()
    sockets = KafkaNetSocket(DIRECT)
    make = sockets.socket

    def noted(*arguments: Any) -> socket.socket:
        made.append(make(*arguments))
        return made[-1]

    sockets.socket = noted
    (address,) = socket.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)
    try:
        return net.run(sockets.connect, net, address)
    finally:
        net.close()


def test_the_client_finds_it_by_its_scheme() -> None:
    """The client's registry of schemes leads here."""
    assert isinstance(KafkaNetSocket(DIRECT), TidySocket)


def test_a_refused_connection_is_closed_at_once() -> None:
    """Not when somebody collects garbage."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    made: list[socket.socket] = []
    with pytest.raises(KafkaConnectionError):
        connect(port, made)
    assert [each.fileno() for each in made] == [-1]


def test_a_connection_that_works_stays_open() -> None:
    """What was connected belongs to the client."""
    made: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        connected = connect(server.getsockname()[1], made)
        assert connected is made[0]
        assert connected.fileno() > 0
        connected.close()
