"""Publishing a window's records over one client after another, and counting what comes back.

Round by round: a round ends with the first thing in doubt, and what it leaves unsettled is sent
again by core. Loop thread only, but for the counters.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import Any, Final

from kvevents_core import Record
from kvevents_nats.client import round_trip
from kvevents_nats.connection import Connection, NotPermittedError
from kvevents_nats.jetstream import TOO_LARGE
from kvevents_nats.settings import NatsSettings
from kvevents_nats.subjects import HeaderEncoder
from kvevents_nats.window import Window

logger = logging.getLogger("kvevents.nats")

GROUP: Final = 256
"""Records published before the loop gets to write and read."""
PIECE_BYTES: Final = 256 * 1024
"""About how much is handed to the client in one piece."""
WATCH_S: Final = 0.1
"""How often the oldest unacknowledged publish is looked at."""
SETTLE_S: Final = 1.0
"""How long a failed round waits for acknowledgements that are still on their way."""


class NotStoredError(Exception):
    """JetStream did not store a record, for a reason that may pass."""


class AckTimeoutError(Exception):
    """An acknowledgement did not come in time."""


class Publishing:
    """The records of one subject on their way.

    Args:
        settings: The backend's settings.
        subject: Where to publish.
        headers: Encoder of the stream's headers.
        window: Where records come from and are settled.
        link: The connection, which knows of refused permissions.
    """

    def __init__(
        self,
        settings: NatsSettings,
        subject: str,
        *,
        headers: HeaderEncoder,
        window: Window,
        link: Connection,
    ) -> None:
        self._settings = settings
        self._subject = subject
        self._headers = headers
        self._window = window
        self._link = link
        self._acknowledged = settings.mode == "jetstream"
        self._nc: Any = None
        self._inbox = ""
        self._wake = asyncio.Event()
        self._kicked = False
        self._round = 0
        self._trouble: NotStoredError | None = None
        self._highest = -1
        self._sent_before = -1
        self.is_shaky = False
        """After trouble, until something is stored again."""
        self.duplicates = 0
        """Acknowledgements saying that the server had the record already."""

    def kick(self) -> None:
        """Note that records wait; any thread, once per ``send``."""
        if not self._kicked:
            self._kicked = True
            self._link.post(self._wake.set)

    async def attach(self, nc: Any) -> None:
        """Use ``nc`` from now on."""
        self._nc = nc
        self._wake = asyncio.Event()
        self._inbox = nc.new_inbox()
        if self._acknowledged:
            await nc.subscribe(f"{self._inbox}.*.*", cb=self._on_ack)

    async def run(self) -> None:
        """Publish until something goes wrong, which it raises.

        Raises:
            NotStoredError: The server refuses records, for now.
            AckTimeoutError: It is silent.
        """
        self._round += 1
        self._trouble = None
        self._sent_before = self._highest
        self._link.forget_denial(self._subject)
        # After trouble one record goes ahead alone: no window full of refusals every second.
        self._window.open(1 if self.is_shaky else self._settings.ack_window)
        try:
            await self._publish_all()
        except NotStoredError:
            await self._await_stragglers()
            raise
        finally:
            self._window.give_up()

    async def _publish_all(self) -> None:
        while True:
            self._kicked = False
            records = self._window.pop(GROUP)
            if records:
                await self._publish(records)
            self._check()
            if records:
                await asyncio.sleep(0)  # the client writes and reads in tasks of its own
                continue
            self._wake.clear()
            if self._kicked:
                continue
            timeout_s = WATCH_S if self._window.unacknowledged() else None
            try:
                await asyncio.wait_for(self._wake.wait(), timeout_s)
            except TimeoutError:
                continue

    async def _publish(self, records: list[tuple[Record, int | None]]) -> None:
        self._highest = max(self._highest, records[-1][0].seq)
        if hasattr(self._nc, "_send_command"):
            await self._write(records)
        else:
            for record, after in records:
                headers = self._headers.encode(record, after)
                reply = self._reply(record.seq)
                await self._nc.publish(self._subject, record.payload, reply, headers)
        if not self._acknowledged:
            await round_trip(self._nc, self._settings.ack_timeout_s)
            self._check()
            for record, _ in records:
                self._settled(record.seq)

    async def _write(self, records: list[tuple[Record, int | None]]) -> None:
        """Hand a group to the client in few pieces: its ``publish`` costs most of a record's time.

        ``_send_command`` (nats-py 2.16) is what ``publish`` ends in; where it is missing, the
        caller takes ``publish``.
        """
        command = self._headers.command
        waiting: list[bytes] = []
        size = 0
        for record, after in records:
            piece = command(self._subject, record, after, self._reply(record.seq))
            waiting.append(piece)
            size += len(piece)
            if size >= PIECE_BYTES:
                await self._hand_over(waiting)
                waiting, size = [], 0
        if waiting:
            await self._hand_over(waiting)

    async def _hand_over(self, pieces: list[bytes]) -> None:
        if not self._nc.is_connected:
            raise ConnectionError("the connection was lost")
        await self._nc._send_command(b"".join(pieces))
        await self._nc._flush_pending()

    def _reply(self, seq: int) -> str:
        return f"{self._inbox}.{self._round}.{seq}" if self._acknowledged else ""

    def _check(self) -> None:
        if self._trouble is not None:
            raise self._trouble
        if not self._window.unacknowledged():
            return
        try:
            self._link.check_permitted("publish", self._subject)
        except NotPermittedError as exc:
            raise NotStoredError(str(exc)) from exc
        if self._window.oldest_age_s() > self._settings.ack_timeout_s:
            self.is_shaky = True
            raise AckTimeoutError(
                f"no acknowledgement from {self._link.server} within "
                f"{self._settings.ack_timeout_s:g} s"
            )

    async def _await_stragglers(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        while (waiting := self._window.unacknowledged()) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            if self._window.unacknowledged() == waiting:
                return

    # Acknowledgements --------------------------------------------------------------------------

    async def _on_ack(self, message: Any) -> None:
        _, number, text = message.subject.rsplit(".", 2)
        if int(number) != self._round:
            return  # of a window that was given up
        seq = int(text)
        data = message.data
        if not data:  # status 503: nobody listens on the subject
            self._fail(f"no stream is bound to {self._subject!r}, or JetStream is off")
        elif b'"error"' in data:
            self._refused(seq, json.loads(data).get("error") or {})
        elif b'"duplicate"' in data:
            self._repeated(seq)
        else:
            self._settled(seq)

    def _settled(self, seq: int) -> None:
        self._window.settle(seq)
        if self.is_shaky:
            self.is_shaky = False
            self._window.open(self._settings.ack_window)
            self._link.note(None)

    def _repeated(self, seq: int) -> None:
        self.duplicates += 1
        if seq <= self._sent_before:
            self._settled(seq)
            return
        # Never sent before, so what the server holds under this number is not ours.
        if self._window.settle(seq, "stored_by_another"):
            logger.warning(
                "kvevents: nats %s: somebody else has published record %d of this stream and epoch",
                self._subject,
                seq,
            )

    def _refused(self, seq: int, error: dict[str, Any]) -> None:
        if error.get("err_code") == TOO_LARGE:
            self._window.settle(seq, "too_large")
        else:
            self._fail(
                f"the stream of {self._subject!r} refuses records: {error.get('description')}"
            )

    def _fail(self, why: str) -> None:
        if self._trouble is None:
            self._trouble = NotStoredError(why)
            self._wake.set()
