"""The sending end: one stream's records published to one subject.

JetStream mode publishes without waiting and counts the acknowledgements that come back to one
wildcard inbox. One connection carries the records in order; whatever ends in doubt (a lost
connection, an acknowledgement that does not come, a refusal) ends the round: the window is given
up, core sends everything unconfirmed again in order, and the server drops what it has already by
``Nats-Msg-Id``. Core mode takes a PONG after a group as proof that the server took the group;
whether any reader did is unknown: at most once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any, Final

from kvevents_core import Receipt, Record, Sink, SinkHost, SinkStatus, StreamId
from kvevents_core.errors import ClosedError
from kvevents_nats.connection import Connection, NotPermittedError
from kvevents_nats.jetstream import (
    TOO_LARGE,
    ApiError,
    JetStreamApi,
    StreamError,
    StreamFacts,
    open_stream,
)
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

GROUP: Final = 256
"""Records published before the loop gets to write and read."""
WATCH_S: Final = 0.1
"""How often the oldest unacknowledged publish is looked at."""
SETTLE_S: Final = 1.0
"""How long a round that failed waits for the acknowledgements still on their way."""
MOST_WAIT_S: Final = 2.0
"""Longest pause before a refused record is tried again."""


class NotStoredError(Exception):
    """JetStream did not store a record, for a reason that may pass."""


class AckTimeoutError(Exception):
    """An acknowledgement did not come in time."""


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
        self._jetstream = settings.mode == "jetstream"
        self._pid = os.getpid()
        self._host: SinkHost | None = None
        self._window = Window(self._notify)
        self._link = Connection(
            settings, f"kvevents {stream}", session=self._session, changed=self._notify
        )
        self._publisher = ""
        self._headers = HeaderEncoder(stream, "", "")
        self._decoder = HeaderDecoder()
        self._wake = asyncio.Event()
        self._kicked = False
        self._round = 0
        self._inbox = ""
        self._trouble: NotStoredError | None = None
        self._shaky = False
        self._highest: int | None = None
        self._holes: dict[int, int] = {}
        self._warned: set[str] = set()
        self._closed = False
        self._ready = False
        self._last_epoch: int | None = None
        self._superseded_by: int | None = None
        self._max_bytes: int | None = None
        self._duplicates = 0

    # What core calls ---------------------------------------------------------------------------

    def start(self, host: SinkHost) -> None:
        """Begin to connect in the background."""
        self._host = host
        # The token tells two processes apart that share host name and pid (containers).
        self._publisher = f"{host.identity or os.getpid()}-{secrets.token_hex(4)}"
        self._headers = HeaderEncoder(self._stream, host.engine, self._publisher)
        self._link.start()

    def status(self) -> SinkStatus:
        """Return the present state."""
        if os.getpid() != self._pid:
            return SinkStatus(False, False, error="opened before a fork: open another one here")
        return SinkStatus(
            ready=self._ready,
            connected=self._link.connected,
            last_epoch=self._last_epoch,
            superseded_by=self._superseded_by,
            generation=self._window.generation,
            max_message_bytes=self._max_bytes,
            error=self._link.error,
        )

    def send(self, records: Sequence[Record]) -> int:
        """Hand a prefix of ``records`` to the loop thread, in one wake-up."""
        if self._closed:
            raise ClosedError(f"the NATS sink of {self._stream} is closed")
        if os.getpid() != self._pid:
            return 0
        taken = self._window.put(records, self._max_bytes)
        if taken and not self._kicked:
            self._kicked = True
            self._link.post(self._kick)
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
        stored = stream_name(self._settings.stream, self._stream.tenant, self._stream.model)
        return {
            "servers": list(self._settings.servers),
            "server": self._link.server,
            "subject": self._subject,
            "mode": self._settings.mode,
            "delivery": "stored and acknowledged" if self._jetstream else "at most once",
            "jetstream_stream": stored if self._jetstream else None,
            "connections": self._link.connections,
            "resends": self._window.generation,
            "unacknowledged": self._window.size(),
            "acknowledged": self._window.settled,
            "rejected": self._window.rejected,
            "duplicates": self._duplicates,
        }

    # Loop thread: one connection ---------------------------------------------------------------

    def _notify(self) -> None:
        if self._host is not None:
            self._host.wake()

    def _kick(self) -> None:
        self._wake.set()

    async def _session(self, nc: Any) -> None:
        self._wake = asyncio.Event()
        self._inbox = nc.new_inbox()
        wait_s = WATCH_S
        await self._subscribe(nc)
        while True:
            try:
                await self._prepare(nc)
                await self._run_round(nc)
            except (StreamError, ApiError, NotPermittedError, NotStoredError) as exc:
                self._link.note(str(exc))
                wait_s = min(wait_s * 2, MOST_WAIT_S) if self._shaky else WATCH_S
                self._shaky = True
            await asyncio.sleep(wait_s)

    async def _subscribe(self, nc: Any) -> None:
        if self._jetstream:
            await nc.subscribe(f"{self._inbox}.*.*", cb=self._on_ack)
        await nc.subscribe(self._subject, cb=self._on_other)
        await nc.flush(self._settings.ack_timeout_s)
        if self._jetstream:
            try:
                self._link.check_permitted("subscribe", f"{self._inbox}.*.*")
            except NotPermittedError as exc:
                raise ConnectionError(
                    f"{exc}: acknowledgements need it; set inbox_prefix"
                ) from exc
        try:
            self._link.check_permitted("subscribe", self._subject)
        except NotPermittedError as exc:
            self._warn_once(f"{exc}: a second publisher of the stream would go unnoticed")

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
                self._meet(place)
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
        stored = stream_name(self._settings.stream, self._stream.tenant, self._stream.model)
        try:
            return await api.last_place(stored, self._subject, direct=direct)
        except (NotPermittedError, ApiError) as exc:
            if isinstance(exc, ApiError) and facts is not None:
                raise
            self._warn_once(f"{exc}: the epoch is taken from the clock alone")
            return None

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning("kvevents: nats %s: %s", self._stream, text)

    # Loop thread: one round --------------------------------------------------------------------

    async def _run_round(self, nc: Any) -> None:
        """Publish until something goes wrong, which it raises."""
        self._round += 1
        self._trouble = None
        # After trouble one record goes ahead alone: no window full of refusals every second.
        self._window.open(1 if self._shaky else self._settings.ack_window)
        try:
            await self._publish_all(nc)
        except NotStoredError:
            await self._await_stragglers()
            raise
        finally:
            self._window.give_up()

    async def _publish_all(self, nc: Any) -> None:
        while True:
            self._kicked = False
            records = self._window.pop(GROUP)
            if records:
                await self._publish(nc, records)
            self._check_round()
            if records:
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            if self._kicked:
                continue
            timeout_s = WATCH_S if self._window.unacknowledged() else None
            try:
                await asyncio.wait_for(self._wake.wait(), timeout_s)
            except TimeoutError:
                continue

    async def _publish(self, nc: Any, records: list[Record]) -> None:
        reply = f"{self._inbox}.{self._round}." if self._jetstream else ""
        for record in records:
            headers = self._headers.encode(record, self._hole_before(record.seq))
            answer_to = f"{reply}{record.seq}" if reply else ""
            await nc.publish(self._subject, record.payload, reply=answer_to, headers=headers)
        if not self._jetstream:
            await nc.flush(self._settings.ack_timeout_s)
            self._link.check_permitted("publish", self._subject)
            for record in records:
                self._settled(record.seq)

    def _hole_before(self, seq: int) -> int | None:
        """Return the seq published before ``seq`` if core left seqs out between them."""
        highest = self._highest
        if highest is None or seq > highest:
            if highest is not None and seq > highest + 1:
                self._holes[seq] = highest
            self._highest = seq
        return self._holes.get(seq) if self._holes else None

    def _check_round(self) -> None:
        if self._trouble is not None:
            raise self._trouble
        if self._window.unacknowledged():
            try:
                self._link.check_permitted("publish", self._subject)
            except NotPermittedError as exc:
                raise NotStoredError(str(exc)) from exc
            if self._window.oldest_age_s() > self._settings.ack_timeout_s:
                self._shaky = True
                raise AckTimeoutError(
                    f"no acknowledgement from {self._link.server} within "
                    f"{self._settings.ack_timeout_s:g} s"
                )

    async def _await_stragglers(self) -> None:
        deadline = asyncio.get_running_loop().time() + SETTLE_S
        while self._window.unacknowledged() and asyncio.get_running_loop().time() < deadline:
            before = self._window.unacknowledged()
            await asyncio.sleep(0.02)
            if self._window.unacknowledged() == before:
                return

    async def _on_ack(self, message: Any) -> None:
        _, number, seq = message.subject.rsplit(".", 2)
        if int(number) != self._round:
            return  # of a window that was given up
        data = message.data
        if data and b'"error"' not in data:
            if b'"duplicate"' in data:
                self._duplicates += 1
            self._settled(int(seq))
            return
        self._refused(int(seq), message)

    def _settled(self, seq: int) -> None:
        if self._window.settle(seq) and self._holes:
            self._holes.pop(seq, None)
        if self._shaky:
            self._shaky = False
            self._window.open(self._settings.ack_window)
            self._link.note(None)

    def _refused(self, seq: int, message: Any) -> None:
        if not message.data:  # status 503: nobody listens on the subject
            self._fail(f"no stream is bound to {self._subject!r}, or JetStream is off")
            return
        error = json.loads(message.data).get("error") or {}
        if error.get("err_code") == TOO_LARGE:
            self._window.settle(seq, "too_large")
            return
        self._fail(f"the stream of {self._subject!r} refuses records: {error.get('description')}")

    def _fail(self, why: str) -> None:
        if self._trouble is None:
            self._trouble = NotStoredError(why)
            self._wake.set()

    # Loop thread: other publishers of this stream ----------------------------------------------

    async def _on_other(self, message: Any) -> None:
        try:
            place = self._decoder.decode(message.headers)
        except ValueError:
            return
        if place.stream == self._stream:
            self._meet(place)

    def _meet(self, place: Place) -> None:
        """Judge a record of our stream that somebody published."""
        epoch = self._host.epoch() if self._host is not None else None
        if place.publisher == self._publisher:
            return
        if epoch is None:
            if self._last_epoch is None or place.epoch > self._last_epoch:
                self._last_epoch = place.epoch
        elif place.epoch > epoch or (place.epoch == epoch and place.publisher > self._publisher):
            # Equal epochs: two publishers started in one millisecond; one of them has to go.
            self._superseded_by = place.epoch
        else:
            return
        self._notify()
