"""Serve the replay ring to readers over ROUTER, in the engines' framing.

Every client has a cursor and its own small send queue in libzmq: a slow client is skipped until it
has read on, so it neither holds up others nor piles up memory, and nothing is cut off. Runs on one
thread, which is not the one that sends live traffic. Never blocks.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import zmq

from kvevents_core import Record, SinkHost, StreamId
from kvevents_zmq.frames import END, HEAD_REQUEST, HeadReply, format_head, parse_request
from kvevents_zmq.held_send import LAST, MORE, SendMessage, frame_sender, message_sender

CLIENT_HWM: Final = 256
"""Messages libzmq holds for one client: what a client that stopped reading can cost, beside TCP's."""
_PORTION_RECORDS: Final = 128
_WAITING_REQUESTS: Final = 16
STALLED_S: Final = 60.0
"""A client that took nothing for so long is forgotten, and asks again if it lives."""


class _Client:
    """What one client asked for and has not got yet."""

    def __init__(self, identity: bytes, send_record: SendMessage) -> None:
        self.identity = identity
        self.send_record = send_record
        self.requests: deque[int | bytes] = deque()
        self.answering = False
        self.next_seq = 0
        self.stop_seq = 0
        self.replies: deque[Record | tuple[bytes, ...]] = deque()
        """Records, and the frames of what is none."""
        self.moved_at = time.monotonic()


class ReplayServer:
    """Answers the requests that arrive at one ROUTER socket."""

    def __init__(
        self, router: zmq.Socket[Any], topic: bytes, stream: StreamId, host: SinkHost
    ) -> None:
        """``router`` has ROUTER_MANDATORY set, which is what makes a full client visible."""
        self.sent = 0
        """Replies sent: records, heads and end markers."""
        self.ignored = 0
        """Requests that were none, or one too many from a client."""
        self._router = router
        self._send_frame = frame_sender(router)
        self._topic = topic
        self._stream = stream
        self._host = host
        self._clients: dict[bytes, _Client] = {}

    @property
    def busy(self) -> bool:
        """Whether some client still waits for part of an answer."""
        return bool(self._clients)

    def take_requests(self) -> None:
        """Read every request that waits."""
        while True:
            try:
                frames = self._router.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            request = parse_request(frames[1:])
            if request is None:
                self.ignored += 1
                continue
            client = self._clients.get(frames[0])
            if client is None:
                send_record = message_sender(self._router, frames[0], b"", self._topic)
                client = self._clients[frames[0]] = _Client(frames[0], send_record)
            if len(client.requests) < _WAITING_REQUESTS:
                client.requests.append(request)
            else:
                self.ignored += 1

    def answer(self) -> bool:
        """Send each waiting client one portion, as far as it takes it; True if anything went."""
        went = False
        for client in list(self._clients.values()):
            sent, alive = self._answer_one(client)
            went = went or sent
            if not alive:
                del self._clients[client.identity]
        return went

    def _answer_one(self, client: _Client) -> tuple[bool, bool]:
        """Return (whether a message went, whether more is to come or may yet be asked)."""
        replies = client.replies
        if not replies and not self._fill(client):
            return False, False
        owed = len(replies)
        try:
            while replies:
                self._send(client, replies[0])
                replies.popleft()
        except zmq.Again:
            alive = len(replies) < owed or time.monotonic() - client.moved_at < STALLED_S
        except zmq.ZMQError as exc:
            if exc.errno != zmq.EHOSTUNREACH:
                raise
            alive = False
        else:
            alive = True
        sent = owed - len(replies)
        self.sent += sent
        if sent:
            client.moved_at = time.monotonic()
        return bool(sent), alive

    def _fill(self, client: _Client) -> bool:
        """Put the next portion into ``client.replies``; False if nothing is owed any more."""
        if not client.answering:
            if not client.requests:
                return False
            request = client.requests.popleft()
            client.answering = True
            first, next_seq = self._host.history.bounds()
            wanted = request if isinstance(request, int) else next_seq
            # What is published after the request is live traffic, and would never end here.
            client.next_seq, client.stop_seq = max(wanted, first), next_seq
            if request == HEAD_REQUEST:
                head = HeadReply(self._stream, self._host.epoch(), first, next_seq)
                client.replies.append(format_head(head))
        self._read_portion(client)
        return True

    def _read_portion(self, client: _Client) -> None:
        records: list[Record] = []
        if client.next_seq < client.stop_seq:
            records = self._host.history.read(client.next_seq, _PORTION_RECORDS)
        client.replies.extend([each for each in records if each.seq < client.stop_seq])
        if records:
            client.next_seq = records[-1].seq + 1
        if len(records) < _PORTION_RECORDS or client.next_seq >= client.stop_seq:
            client.replies.append(END)
            client.answering = False

    def _send(self, client: _Client, reply: Record | tuple[bytes, ...]) -> None:
        """Send one message; a full or gone client shows at the first frame, before any is taken."""
        if isinstance(reply, Record):
            client.send_record(reply.seq.to_bytes(8, "big"), reply.payload)
            return
        self._send_frame(client.identity, MORE)
        for frame in reply[:-1]:
            self._send_frame(frame, MORE)
        self._send_frame(reply[-1], LAST)
