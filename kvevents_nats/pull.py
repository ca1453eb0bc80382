"""Reading a JetStream stream in order, from a position, with requests of our own.

An ephemeral pull consumer without acknowledgements delivers in order; whatever breaks that (a
missing consumer seq, silence, a deleted consumer) makes a new one behind the last message read. No
message is asked for without room to keep it, so a slow reader is never cut off. nats-py's ordered
consumer is not used: it pushes, and does not know JetStream domains (nats-py 2.16). Messages that
need no answer leave nothing to drain. Loop thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable
from typing import Any, Final

from kvevents_nats.client import round_trip
from kvevents_nats.connection import Connection, NotPermittedError
from kvevents_nats.jetstream import ASK_S, JetStreamApi, StreamError, StreamFacts

BATCH: Final = 512
"""Most messages asked for at a time."""
EXPIRES_S: Final = 30.0
HEARTBEAT_S: Final = 2.0
"""While a request is open the server says every so often that it lives."""
IDLE_S: Final = 60.0
"""The server removes a consumer that nobody asks for so long."""
TICK_S: Final = 0.5
_NS: Final = 1_000_000_000


class ConsumerLostError(Exception):
    """The consumer is gone or has left out a message; another one is needed."""


class Puller:
    """Reads one JetStream stream over one client.

    Args:
        link: The connection ``nc`` belongs to.
        nc: The connected client.
        api: Its JetStream API.
        stream: Name of the JetStream stream.
        subject: What to read, with wildcards.
        take: Called with (message, its stream seq) for each message, in order.
        room: Returns how many messages there is room for.
        tick: Called now and then, also when nothing comes.
    """

    def __init__(
        self,
        link: Connection,
        nc: Any,
        api: JetStreamApi,
        *,
        stream: str,
        subject: str,
        take: Callable[[Any, int], None],
        room: Callable[[], int],
        tick: Callable[[], None],
    ) -> None:
        self._link = link
        self._nc = nc
        self._api = api
        self._stream = stream
        self._subject = subject
        self._take = take
        self._room = room
        self._tick = tick
        self._inbox = nc.new_inbox()
        self._round = 0
        self._consumer = ""
        self._next_subject = ""
        self._next_consumer_seq = 1
        self._requests: dict[int, int] = {}
        self._next_request = 0
        self._lost: str | None = None
        self._heard_at = 0.0
        self._wake = asyncio.Event()

    async def open(self) -> None:
        """Subscribe to the inbox that messages come to."""
        await self._nc.subscribe(f"{self._inbox}.*.*", cb=self._on_message)
        await round_trip(self._nc, ASK_S)
        self._link.check_inbox()

    async def facts(self) -> StreamFacts | None:
        """Return the stream's facts; None if they may not be read.

        Raises:
            StreamError: There is no such stream.
        """
        try:
            facts = await self._api.facts(self._stream)
        except NotPermittedError:
            return None
        if facts is None:
            raise StreamError(f"there is no stream {self._stream!r} (yet)")
        return facts

    async def read(self, start: dict[str, Any], opened: Callable[[], None]) -> None:
        """Read from ``start`` (consumer configuration) until something goes wrong, and raise it.

        ``opened`` is called once the consumer stands.
        """
        self._round += 1
        self._requests = {}
        self._next_consumer_seq = 1
        self._lost = None
        self._consumer = f"kvevents-{secrets.token_hex(8)}"
        self._next_subject = (
            f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        )
        await self._create_consumer(start)
        opened()
        try:
            await self._keep_asking()
        finally:
            await self._delete_consumer()

    def kick(self) -> None:
        """Look again whether there is room."""
        self._wake.set()

    async def _create_consumer(self, start: dict[str, Any]) -> None:
        config = {
            "name": self._consumer,
            "ack_policy": "none",
            "max_deliver": 1,
            "filter_subject": self._subject,
            "inactive_threshold": int(IDLE_S * _NS),
            "mem_storage": True,
            "num_replicas": 1,
            **start,
        }
        await self._api.ask(
            f"CONSUMER.CREATE.{self._stream}.{self._consumer}.{self._subject}",
            {"stream_name": self._stream, "config": config},
        )

    async def _delete_consumer(self) -> None:
        if self._nc.is_connected:
            subject = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{self._consumer}"
            # Unanswered on purpose: the server removes an idle consumer anyway.
            with contextlib.suppress(Exception):
                await self._nc.publish(subject)

    async def _keep_asking(self) -> None:
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        while True:
            self._wake.clear()
            await self._ask_for_more()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), TICK_S)
            self._tick()
            self._link.check_permitted("publish", self._next_subject)
            if self._lost is not None:
                raise ConsumerLostError(self._lost)
            if self._requests and loop.time() - self._heard_at > 2.5 * HEARTBEAT_S:
                raise ConsumerLostError("the server has stopped answering for the consumer")

    async def _ask_for_more(self) -> None:
        asked = sum(self._requests.values())
        more = min(BATCH, self._room()) - asked
        if more <= 0 or (asked and more < BATCH // 2):
            return
        self._next_request += 1
        if not self._requests:
            self._heard_at = asyncio.get_running_loop().time()
        self._requests[self._next_request] = more
        body = {
            "batch": more,
            "expires": int(EXPIRES_S * _NS),
            "idle_heartbeat": int(HEARTBEAT_S * _NS),
        }
        reply = f"{self._inbox}.{self._round}.{self._next_request}"
        await self._nc.publish(self._next_subject, json.dumps(body).encode(), reply=reply)

    async def _on_message(self, message: Any) -> None:
        if self._lost is not None:
            return
        if not message.reply.startswith("$JS.ACK."):
            # Only the server's own words carry the inbox as subject.
            _, number, request = message.subject.rsplit(".", 2)
            if int(number) == self._round:
                self._heard_at = asyncio.get_running_loop().time()
                self._on_status(int(request), message.headers or {})
            return
        consumer, log_seq, consumer_seq = _delivery(message.reply)
        if consumer != self._consumer:
            return  # of a consumer that was given up
        self._heard_at = asyncio.get_running_loop().time()
        if consumer_seq != self._next_consumer_seq:
            self._lose(f"message {self._next_consumer_seq} of the consumer did not arrive")
            return
        self._next_consumer_seq += 1
        self._count_down()
        self._take(message, log_seq)

    def _count_down(self) -> None:
        # The server serves requests in the order they came.
        request = next(iter(self._requests), None)
        if request is None:
            return
        left = self._requests[request] - 1
        if left > 0:
            self._requests[request] = left
        else:
            del self._requests[request]
        if left == BATCH // 2 or left <= 0:
            self._wake.set()

    def _on_status(self, request: int, headers: dict[str, str]) -> None:
        status = headers.get("Status", "")
        description = headers.get("Description", "")
        if status == "100":
            return  # heartbeat
        self._requests.pop(request, None)
        self._wake.set()
        if status in ("404", "408"):
            return  # the request expired
        if status == "409" and "Deleted" not in description and "Leadership" not in description:
            return  # for example: batch completed
        self._lose(f"the server says {status} {description}".rstrip())

    def _lose(self, why: str) -> None:
        self._lost = why
        self._wake.set()


def _delivery(reply: str) -> tuple[str, int, int]:
    """Return (consumer, stream seq, consumer seq) of a delivered message.

    ``$JS.ACK.stream.consumer.delivered.sseq.cseq.time.pending``, or with domain and account hash
    before the stream (nats-server ADR-15).
    """
    words = reply.split(".")
    at = 3 if len(words) == 9 else 5
    return words[at], int(words[at + 2]), int(words[at + 3])
