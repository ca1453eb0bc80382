"""The sending end: one stream's records published to one subject.

JetStream mode publishes without waiting and counts the acknowledgements that come back to one
wildcard inbox. One connection carries the records in order; whatever ends in doubt (a lost
connection, an acknowledgement that does not come, a refusal) ends the round: the window is given
up, core sends everything unconfirmed again in order, and the server drops what it has already by
``Nats-Msg-Id``. Core mode takes a PONG behind a group as proof that the server took the group;
whether any reader did is unknown: at most once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from collections.abc import Sequence
from typing import Any, Final

from kvevents_core import Receipt, Record, Sink, SinkHost, SinkStatus, StreamId
from kvevents_core.errors import ClosedError
from kvevents_nats.client import round_trip
from kvevents_nats.connection import Connection, NotPermittedError
from kvevents_nats.jetstream import (
    ApiError,
    JetStreamApi,
    StreamError,
    StreamFacts,
    open_stream,
)
from kvevents_nats.ownership import Ownership
from kvevents_nats.publishing import NotStoredError, Publishing
from kvevents_nats.settings import NatsSettings
from kvevents_nats.subjects import (
    MARGIN_BYTES,
    HeaderDecoder,
    HeaderEncoder,
    Place,
    stream_name,
    subject_of,
)
from kvevents_nats.window import Window

logger = logging.getLogger("kvevents.nats")

FIRST_WAIT_S: Final = 0.1
MOST_WAIT_S: Final = 2.0
"""Shortest and longest pause before a refused record is tried again."""


class NatsSink(Sink):
    """Publishes the records of ``stream``.

    Args:
        settings: The backend's settings.
        stream: The stream; its subject follows from the settings.
    """

    def __init__(self, settings: NatsSettings, stream: StreamId) -> None:
        self._settings = settings
        self._stream = stream
        self._subject = subject_of(settings.subject, stream)
        self._stored_in = stream_name(settings.stream, stream.tenant, stream.model)
        self._jetstream = settings.mode == "jetstream"
        self._pid = os.getpid()
        self._host: SinkHost | None = None
        self._sender: int | None = None
        self._window = Window(self._notify)
        self._link = Connection(
            settings, f"kvevents {stream}", session=self._session, changed=self._notify
        )
        self._decoder = HeaderDecoder()
        self._warned: set[str] = set()
        self._closed = False
        self._ready = False
        self._max_bytes: int | None = None
        self._name_publisher("", "")

    def _name_publisher(self, identity: str, engine: str) -> None:
        # The token tells two processes apart that share host name and pid (containers).
        publisher = f"{identity or os.getpid()}-{secrets.token_hex(4)}"
        self._headers = HeaderEncoder(self._stream, engine, publisher)
        self._ownership = Ownership(self._stream, publisher, self._epoch)
        self._publishing = Publishing(
            self._settings,
            self._subject,
            headers=self._headers,
            window=self._window,
            link=self._link,
        )

    # What core calls ---------------------------------------------------------------------------

    def start(self, host: SinkHost) -> None:
        """Begin to connect in the background."""
        self._host = host
        self._sender = threading.get_ident()
        self._name_publisher(host.identity, host.engine)
        self._link.start()

    def status(self) -> SinkStatus:
        """Return the present state."""
        if os.getpid() != self._pid:
            return SinkStatus(
                ready=False, connected=False, error="opened before a fork: open another one here"
            )
        return SinkStatus(
            ready=self._ready,
            connected=self._link.connected,
            last_epoch=self._ownership.last_epoch,
            superseded_by=self._ownership.superseded_by,
            generation=self._generation(),
            max_message_bytes=self._max_bytes,
            error=self._link.error,
        )

    def _generation(self) -> int:
        if threading.get_ident() == self._sender:
            return self._window.tell_generation()
        return self._window.generation

    def send(self, records: Sequence[Record]) -> int:
        """Hand a prefix of ``records`` to the loop thread, in one wake-up."""
        if self._closed:
            raise ClosedError(f"the NATS sink of {self._stream} is closed")
        if os.getpid() != self._pid:
            return 0
        taken = self._window.put(records, self._max_bytes)
        if taken:
            self._publishing.kick()
        return taken

    def take_receipts(self) -> Sequence[Receipt]:
        """Return what was acknowledged or finally refused."""
        return self._window.take_receipts()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything taken is settled."""
        if os.getpid() != self._pid:
            return False
        return self._window.wait_empty(max(0.0, timeout_s))

    def close(self, timeout_s: float) -> None:
        """Close the connection and end the thread."""
        self._closed = True
        self._link.stop(timeout_s)

    def describe(self) -> dict[str, Any]:
        """Return where records go, and how that fares."""
        return {
            "servers": list(self._settings.servers),
            "server": self._link.server,
            "subject": self._subject,
            "mode": self._settings.mode,
            "delivery": "stored and acknowledged" if self._jetstream else "at most once",
            "jetstream_stream": self._stored_in if self._jetstream else None,
            "connections": self._link.connections,
            "resends": self._window.generation,
            "unacknowledged": self._window.size(),
            "acknowledged": self._window.settled,
            "rejected": self._window.rejected,
            "duplicates": self._publishing.duplicates,
        }

    # Loop thread -------------------------------------------------------------------------------

    def _epoch(self) -> int | None:
        return self._host.epoch() if self._host is not None else None

    def _notify(self) -> None:
        if self._host is not None:
            self._host.wake()

    async def _session(self, nc: Any) -> None:
        """Publish over one client until its connection is lost."""
        await self._publishing.attach(nc)
        await nc.subscribe(self._subject, cb=self._on_other)
        await round_trip(nc, self._settings.ack_timeout_s)
        self._link.check_inbox()
        try:
            self._link.check_permitted("subscribe", self._subject)
        except NotPermittedError as exc:
            self._warn_once(f"{exc}: a second publisher of the stream would go unnoticed")
        wait_s = FIRST_WAIT_S
        while True:
            try:
                await self._prepare(nc)
                if not self._publishing.is_shaky:
                    self._link.note(None)
                await self._publishing.run()
            except (StreamError, ApiError, NotPermittedError) as exc:
                self._link.note(str(exc))
            except NotStoredError as exc:
                self._link.note(str(exc))
                repeated = self._publishing.is_shaky
                wait_s = min(wait_s * 2, MOST_WAIT_S) if repeated else FIRST_WAIT_S
                self._publishing.is_shaky = True
            await asyncio.sleep(wait_s)

    async def _prepare(self, nc: Any) -> None:
        """Find the stream, where it ends, and how large a record may be."""
        limit: int = nc.max_payload
        if self._jetstream:
            api = JetStreamApi(self._link, nc, self._settings.domain)
            facts = await self._check_stream(api)
            if facts is not None and facts.max_message_bytes is not None:
                limit = min(limit, facts.max_message_bytes)
            place = await self._read_end(api, facts)
            if place is not None:
                self._ownership.meet(place)
        largest = limit - self._headers.longest_bytes() - MARGIN_BYTES
        if largest <= 0:
            raise StreamError(f"max_payload {limit} of the server leaves no room for a record")
        self._max_bytes = largest
        self._ready = True
        self._notify()

    async def _check_stream(self, api: JetStreamApi) -> StreamFacts | None:
        try:
            facts, differing = await open_stream(api, self._settings, self._stream, self._subject)
        except NotPermittedError as exc:
            self._warn_once(f"{exc}: the stream goes unchecked")
            return None
        if differing:
            self._warn_once(
                f"stream {facts.name!r} exists and is left as it is, but {'; '.join(differing)}"
            )
        return facts

    async def _read_end(self, api: JetStreamApi, facts: StreamFacts | None) -> Place | None:
        direct = facts is None or bool(facts.config.get("allow_direct"))
        try:
            return await api.last_place(self._stored_in, self._subject, direct=direct)
        except (NotPermittedError, ApiError) as exc:
            if isinstance(exc, ApiError) and facts is not None:
                raise
            self._warn_once(f"{exc}: the epoch is taken from the clock alone")
            return None

    async def _on_other(self, message: Any) -> None:
        """Look at a record that somebody else has published to this subject just now."""
        try:
            place = self._decoder.decode(message.headers)
        except ValueError:
            return
        if self._ownership.meet(place):
            self._notify()

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("kvevents: nats %s: %s", self._stream, text)
