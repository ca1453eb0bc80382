"""Fetch records again from a publisher's replay socket, old and new framing.

One connection (DEALER) belongs to one life of the publisher: it never reconnects by itself, so what
its head says of the epoch holds for every record that comes by it. A portion is a stretch of one
long answer; the next call reads on where the last one stopped, and a stalled reader holds the server
up, not the network. After a timeout the socket is thrown away (a late answer must not be taken for a
new one). Used by the source's thread; never waits longer than it is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvevents_zmq.frames import (
    HEAD_REQUEST,
    End,
    HeadReply,
    Replayed,
    format_request,
    parse_reply,
)
from kvevents_zmq.monitor import Monitor
from kvevents_zmq.sockets import receive_frames

PORTION_RECORDS: Final = 512
PORTION_BYTES: Final = 8 * 2**20
CLIENT_RCVHWM: Final = 256
_NEVER_MS: Final = 24 * 3600 * 1000


class ReplayClient:
    """History of one stream, from the replay socket at ``endpoint``."""

    def __init__(
        self,
        make: Callable[[], zmq.Socket[Any]],
        endpoint: str,
        topic: bytes,
        *,
        stays: bool = True,
    ) -> None:
        """``make`` makes a DEALER; records under another topic than ``topic`` are passed over.

        ``stays`` keeps the connection for the next question; it costs four descriptors.
        """
        self._stays = stays
        self.trouble: str | None = None
        """Why the last call returned None."""
        self._make = make
        self._endpoint = endpoint
        self._topic = topic
        self._connection: _Connection | None = None
        self._ignores_head = False

    def head(self, timeout_s: float) -> HeadReply | None:
        """Ask where the publisher stands; None if it does not say."""
        end_at = time.monotonic() + timeout_s
        connection = self._usable(None)
        if connection.asked_head and connection.head is None:
            return None
        if not connection.ask_head(end_at):
            self._give_up(connection, "no answer from the replay socket")
            return None
        self._leave(connection)
        return connection.head

    def recover(
        self, first_seq: int, timeout_s: float
    ) -> tuple[int | None, list[Replayed]] | None:
        """Return (epoch if known, next portion from ``first_seq`` on); None without an answer."""
        end_at = time.monotonic() + timeout_s
        connection = self._usable(first_seq)
        if (
            not connection.asked_head
            and not self._ignores_head
            and not connection.ask_head(end_at)
        ):
            # A server that drops what it does not know would let us wait here for ever.
            self._ignores_head = connection.is_up
            self._give_up(connection, "no answer from the replay socket")
            return None
        portion = connection.read_portion(first_seq, self._topic, end_at)
        if connection.failed:
            self._give_up(connection, "the replay socket fell silent")
            if not portion:
                return None
        self._leave(connection)
        epoch = None if connection.head is None else connection.head.epoch
        return epoch, portion

    def forget(self) -> None:
        """Drop the connection: the publisher may be another one now."""
        self._ignores_head = False
        self.close()

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _usable(self, first_seq: int | None) -> _Connection:
        """Return a live connection that is idle or about to bring ``first_seq``."""
        connection = self._connection
        if connection is not None and not connection.can_bring(first_seq):
            self.close()
            connection = None
        if connection is None:
            connection = self._connection = _Connection(self._make, self._endpoint)
        return connection

    def _leave(self, connection: _Connection) -> None:
        """Close ``connection`` if it need not stay and no answer is under way."""
        if not self._stays and connection.is_idle and connection is self._connection:
            self.close()

    def _give_up(self, connection: _Connection, reason: str) -> None:
        self.trouble = connection.monitor.failure or reason
        self.close()


class _Connection:
    """One DEALER and what is known of the publisher behind it."""

    def __init__(self, make: Callable[[], zmq.Socket[Any]], endpoint: str) -> None:
        self.head: HeadReply | None = None
        self.asked_head = False
        self.failed = False
        self._streaming_from: int | None = None
        """Next seq of an answer that is under way."""
        self._dealer = make()
        # Practically never dial again. Not -1: libzmq 4.3.5 then drops what waits unread when the
        # connection ends and, in the middle of a message, aborts the process (observed).
        self._dealer.reconnect_ivl = _NEVER_MS
        self._dealer.reconnect_ivl_max = 0
        self._dealer.rcvhwm = CLIENT_RCVHWM
        self.monitor = Monitor(self._dealer, refusals=True)
        self._dealer.connect(endpoint)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self.monitor.reader, zmq.POLLIN)

    @property
    def is_up(self) -> bool:
        """Whether the connection stands."""
        self.monitor.read()
        return self.monitor.peers > 0

    @property
    def is_idle(self) -> bool:
        """Whether no answer is under way."""
        return self._streaming_from is None

    def can_bring(self, first_seq: int | None) -> bool:
        """Whether ``first_seq`` (None: the head) can be asked for, or is coming, here."""
        self.monitor.read()
        if self.failed or self.monitor.lost:
            return False
        return self._streaming_from is None or self._streaming_from == first_seq

    def ask_head(self, end_at: float) -> bool:
        """Learn the head; True once the server ended its answer, with a head or without."""
        self._send([b"", HEAD_REQUEST])
        while True:
            reply = self._next(end_at)
            if isinstance(reply, HeadReply):
                self.head = reply
            elif isinstance(reply, End):
                self.asked_head = True
                return True
            elif reply is None:
                return False

    def read_portion(self, first_seq: int, topic: bytes, end_at: float) -> list[Replayed]:
        """Return the next records from ``first_seq`` on; ``failed`` says if they stopped short."""
        if self._streaming_from is None:
            self._send(format_request(first_seq))
            self._streaming_from = first_seq
        portion: list[Replayed] = []
        size_bytes = 0
        while len(portion) < PORTION_RECORDS and size_bytes < PORTION_BYTES:
            reply = self._next(end_at)
            if reply is None:
                break
            if isinstance(reply, End):
                self._streaming_from = None
                break
            if isinstance(reply, HeadReply) or reply.topic not in (None, topic):
                continue
            if reply.seq >= self._streaming_from:
                portion.append(reply)
                size_bytes += len(reply.payload)
                self._streaming_from = reply.seq + 1
        return portion

    def close(self) -> None:
        """Close the socket and its monitor."""
        self.monitor.close()
        self._dealer.close(0)

    def _send(self, frames: list[bytes]) -> None:
        try:
            self._dealer.send_multipart(frames, zmq.DONTWAIT)
        except zmq.Again:
            self.failed = True

    def _next(self, end_at: float) -> Replayed | HeadReply | End | None:
        """Return the next reply; None, with ``failed`` set, if none comes by ``end_at``."""
        while not self.failed:
            try:
                reply = parse_reply(receive_frames(self._dealer))
            except zmq.Again:
                reply = None
                self.failed = not self._wait(end_at)
            if reply is not None:
                return reply
        return None

    def _wait(self, end_at: float) -> bool:
        """Wait for the server; False at the deadline or once the connection is gone."""
        left_s = end_at - time.monotonic()
        if left_s <= 0:
            return False
        ready = dict(self._poller.poll(max(1, int(1000 * left_s))))
        if self._dealer in ready:
            return True
        self.monitor.read()
        return bool(ready) and not self.monitor.lost
