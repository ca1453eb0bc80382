"""Admit only known readers: the ZAP handler of a publisher's context (ZeroMQ RFC 27).

libzmq asks it, over inproc, about the client key of every CURVE handshake. Without one it admits every
client that knows the publisher's public key. Bound before the sockets are, so that nobody slips
in; until the service thread answers, newcomers wait. Never sees a secret key.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import zmq
from zmq.utils import z85

ADDRESS: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"


class Admission:
    """Answers for one context. Made on the engine's thread, then used by the service thread."""

    def __init__(self, context: zmq.Context[Any], keys: frozenset[bytes]) -> None:
        """``keys`` are the public keys (Z85) of the readers that are admitted."""
        self.refused = 0
        """Handshakes refused."""
        self._keys = frozenset(z85.decode(key) for key in keys)
        self.socket: zmq.Socket[Any] = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ADDRESS)

    def answer(self) -> None:
        """Answer every request that waits."""
        with contextlib.suppress(zmq.Again):
            while True:
                self.socket.send_multipart(self._judge(self.socket.recv_multipart(zmq.DONTWAIT)))

    def _judge(self, request: Sequence[bytes]) -> list[bytes]:
        """Return the reply to ``request``.

        Request: version, id, domain, address, identity, mechanism, credentials (CURVE: the key).
        Reply: version, id, status, text, user id, metadata.
        """
        number = request[1] if len(request) > 1 else b""
        admitted = len(request) == 7 and request[5] == b"CURVE" and request[6] in self._keys
        if admitted:
            return [_VERSION, number, b"200", b"OK", b"reader", b""]
        self.refused += 1
        return [_VERSION, number, b"400", b"key not admitted", b"", b""]

    def close(self) -> None:
        """Stop answering: whoever comes now waits in vain."""
        self.socket.close(0)
