"""What happens to the connections of one socket, read from libzmq's socket monitor.

Only the events that change something are asked for, and the reading end is unbounded: libzmq 4.3.5
blocks its I/O thread, and with it the socket, once 2000 events wait unread (observed). inproc
connections give no events. Between
construction and ``close`` it does not touch the socket.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, Final

import zmq

_HANDSHAKE_FAILED: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_LIFE: Final = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _HANDSHAKE_FAILED
_MISMATCH: Final = 0x11000002
"""``ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH`` of zmq.h."""
_names: Final = itertools.count()


class Monitor:
    """Connections of one socket. Made on the socket's thread, then read by one thread."""

    def __init__(self, socket: zmq.Socket[Any], *, refusals: bool = False) -> None:
        """Watch ``socket``; with ``refusals`` a refused connect counts as lost, too."""
        self._socket = socket
        self._curve = socket.mechanism == zmq.CURVE
        self.peers = 0
        """Connections whose handshake succeeded and that still stand."""
        self.made = 0
        """Handshakes that ever succeeded."""
        self.lost = 0
        """Connections that ended, after or before their handshake, as far as watched."""
        self.failures = 0
        """Handshakes that failed since one last succeeded, peers that merely left included."""
        self.failure: str | None = None
        """Why no handshake succeeds; None after one did, or where keys are not the reason."""
        self.mismatched = False
        """One side speaks CURVE, the other does not: libzmq has given up dialling."""
        self._unfinished = 0
        """Failed handshakes whose disconnection is still to be reported."""
        address = f"inproc://kvevents-monitor-{next(_names)}"
        socket.monitor(address, _LIFE | (zmq.EVENT_CLOSED if refusals else 0))
        self.reader: zmq.Socket[Any] = socket.context.socket(zmq.PAIR)
        self.reader.linger = 0
        self.reader.rcvhwm = 0
        self.reader.connect(address)

    def read(self) -> bool:
        """Take in what happened; True if anything did."""
        news = False
        # Asked before every chunk of messages: a look costs less than half of a raised Again.
        while int(self.reader.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = self.reader.recv_multipart(zmq.DONTWAIT)
            event, value = struct.unpack("=hi", frames[0][:6])
            news = True
            self._take(event & 0xFFFF, value)
        return news

    def _take(self, event: int, value: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.made += 1
            self.peers += 1
            self.failures, self.failure, self.mismatched = 0, None, False
        elif event & _HANDSHAKE_FAILED:
            self.failures += 1
            self._unfinished += 1
            self.mismatched = (
                event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value & 0xFFFFFFFF == _MISMATCH
            )
            if self._curve or self.mismatched:
                self.failure = _explain(event, self.mismatched)
        else:
            self.lost += 1
            if event == zmq.EVENT_DISCONNECTED:
                self._end_one()

    def _end_one(self) -> None:
        """Count a disconnection: libzmq reports one after a failed handshake, too."""
        if self._unfinished:
            self._unfinished -= 1
        elif self.peers:
            self.peers -= 1

    def close(self) -> None:
        """Stop watching: on the socket's thread, before the socket is closed, nobody reading on.

        The order matters: with the reading end gone first, the next event would block libzmq's I/O
        thread for ever, with the lock that stopping takes (observed).
        """
        if not self.reader.closed:
            self._socket.monitor(None, 0)
            self.reader.close(0)


def _explain(event: int, mismatched: bool) -> str:
    if mismatched:
        return "handshake failed: one side uses CURVE and the other does not"
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "handshake failed: the publisher does not admit this reader's key"
    return (
        "handshake failed: the reader's curve_server_key is not the publisher's public key, "
        "or one side uses CURVE and the other does not"
    )
