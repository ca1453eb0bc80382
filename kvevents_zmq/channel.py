"""One event socket of a reader: SUB, its monitor, and what its frames mean.

    live   [topic, seq 8 B BE unsigned, payload]

libzmq filters topics by prefix, so the whole topic is compared here. Used by the source's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvevents_core import Malformed, PeersCounted, Reconnected, Record, StreamId, Trouble
from kvevents_core.backend import Arrival
from kvevents_zmq.endpoints import Endpoint
from kvevents_zmq.frames import SEQ_BYTES
from kvevents_zmq.monitor import Monitor
from kvevents_zmq.sockets import receive_frames

CHUNK_RECORDS: Final = 256
CHUNK_BYTES: Final = 8 * 2**20
REDIAL_S: Final = 1.0
MANY_FAILURES: Final = 3
"""Handshakes that fail in a row before a dialling reader without keys is told. Which end finds out
first that only one uses CURVE is chance; the other one merely sees a connection that ends."""


class Channel:
    """The live stream of one rank."""

    def __init__(self, socket: zmq.Socket[Any], stream: StreamId, topic: bytes) -> None:
        """``socket`` is a SUB without connections; ``connect`` or ``bind`` makes them."""
        self.stream = stream
        self.socket = socket
        self.monitor = Monitor(socket)
        self._topic = topic
        self._endpoint = ""
        self._redial_at: float | None = None
        self._tells_first = False
        self.more_waits = True
        """Whether messages may wait unread; libzmq signals only what comes after it said no."""
        self._made = 0
        self._peers = 0
        self._failure: str | None = None
        self._binds = False
        socket.subscribe(topic)

    def connect(self, endpoint: Endpoint) -> None:
        """Dial the publisher; an unreachable one is dialled again and again."""
        self._endpoint = str(endpoint)
        # inproc connections give no events; what can be read may be asked for at once.
        self._tells_first = endpoint.scheme == "inproc"
        self.socket.connect(self._endpoint)

    @property
    def gave_up(self) -> bool:
        """Whether ``redial`` has something to do, in a while."""
        return self._redial_at is not None

    def redial(self) -> bool:
        """Dial anew where libzmq gave up: it does for good when only one side uses CURVE."""
        if self._redial_at is None or time.monotonic() < self._redial_at:
            return False
        self._redial_at = None
        self.socket.disconnect(self._endpoint)
        self.socket.connect(self._endpoint)
        return True

    def bind(self, bind: Callable[[zmq.Socket[Any]], str]) -> str:
        """Listen for publishers, by ``bind``; returns the real endpoint."""
        self._binds = True
        return bind(self.socket)

    def drain(self) -> list[Arrival]:
        """Return what waits: notices first, then at most a chunk of messages in order.

        ``more_waits`` says whether it stopped at the chunk.
        """
        arrivals: list[Arrival] = self._notices()
        messages = self._messages()
        if messages:
            # A new connection may have begun while they were read: core must know before them.
            arrivals += self._notices()
        arrivals += messages
        return arrivals

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.monitor.close()
        self.socket.close(0)

    def _messages(self) -> list[Arrival]:
        messages: list[Arrival] = []
        socket, topic, stream = self.socket, self._topic, self.stream
        size_bytes = 0
        self.more_waits = True
        try:
            for _ in range(CHUNK_RECORDS):
                frames = receive_frames(socket)
                if len(frames) == 3 and len(frames[1]) == SEQ_BYTES:
                    if frames[0] == topic:
                        seq = int.from_bytes(frames[1], "big")
                        messages.append(Record(stream, None, seq, frames[2], stream.rank))
                        size_bytes += len(frames[2])
                else:
                    messages.append(Malformed(stream.rank, _shape(frames)))
                if size_bytes > CHUNK_BYTES:
                    break
        except zmq.Again:
            self.more_waits = False
        return messages

    def _notices(self) -> list[Arrival]:
        """Return what the monitor saw since the last call."""
        monitor, rank = self.monitor, self.stream.rank
        notices: list[Arrival] = []
        if self._tells_first:
            self._tells_first = False
            notices.append(Reconnected(rank, first=True))
        if not monitor.read():
            return notices
        if self._binds and monitor.peers != self._peers:
            notices.append(PeersCounted(rank, monitor.peers))
        self._peers = monitor.peers
        if monitor.made > self._made:
            notices.append(Reconnected(rank, first=not self._made))
            self._made = monitor.made
        failure = monitor.failure or self._hung_up()
        if failure is not None and self._failure is None:
            notices.append(Trouble(rank, failure))
        if monitor.mismatched and self._endpoint:
            self._redial_at = time.monotonic() + REDIAL_S
        self._failure = failure
        return notices

    def _hung_up(self) -> str | None:
        """Return what to tell if whatever is dialled ends every handshake half-way."""
        if not self._endpoint or self.monitor.failures < MANY_FAILURES:
            return None
        return (
            f"handshake failed {self.monitor.failures} times: what listens at {self._endpoint} hangs "
            "up; either one side uses CURVE and the other does not (give this reader its "
            "curve_server_key), or it is no publisher"
        )


def _shape(frames: list[bytes]) -> str:
    sizes = ", ".join(str(len(frame)) for frame in frames[:8])
    return f"expected 3 frames with a seq of 8 bytes, got {len(frames)} of {sizes} bytes"
