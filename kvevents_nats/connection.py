"""One NATS connection that is made again for ever, with its event loop on a thread of its own.

Every connection is a new client: nats-py's own reconnection would first send what it had buffered
and leave out what was lost in the socket before it, which breaks the order of a stream (nats-py
2.16, ``_attempt_reconnect``). So a lost connection loses the client with all it held, the owner is
told by a new session, and sends again what was not confirmed. Nothing here knows records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import re
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from nats.errors import NoServersError

from kvevents_nats.client import (
    Client,
    abandon,
    connect,
    describe_error,
    describe_server,
    new_client,
    retrieve,
)
from kvevents_nats.settings import NatsSettings

logger = logging.getLogger("kvevents.nats")

Session = Callable[[Any], Awaitable[None]]
"""What the owner does with one connected client; cancelled when that connection is lost."""

FIRST_WAIT_S: Final = 0.1
"""Pause after a first failed attempt; it doubles up to ``reconnect_wait_s``."""
STABLE_S: Final = 3.0
"""A connection that lasted this long makes the next pause short again."""
LOG_AGAIN_S: Final = 30.0
CLOSE_S: Final = 0.5
"""Most time a client gets to close."""
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]+)"')

T = TypeVar("T")


class NotPermittedError(Exception):
    """The server refused a subject to this user."""


class Connection:
    """Keeps a client connected.

    Args:
        settings: Where and how to connect.
        name: The connection's name, as the server's monitoring shows it.
        session: Run on the loop for each new client; when it ends or raises, the client is closed
            and a new one made after a pause.
        changed: Called on the loop thread after ``connected`` or ``error`` changed.
    """

    def __init__(
        self, settings: NatsSettings, name: str, session: Session, changed: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._name = name
        self._session = session
        self._changed = changed
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._starting = threading.Lock()
        self._stopped = False
        self._close_s = CLOSE_S
        self._logged = ""
        self._log_again_at = 0.0
        self._last_client_error: Exception | None = None
        self._denied: list[tuple[str, str]] = []
        self._denial = asyncio.Event()
        self._discovered: list[str] = []
        self.connected = False
        self.error: str | None = None
        """The last trouble, in one line; None while connected and well."""
        self.server: str = ""
        """Address, name and version of the server of the last connection."""
        self.connections = 0
        """How many times a connection was made."""
        self._thread = threading.Thread(target=self._run, name="kvevents-nats", daemon=True)

    # Any thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the loop thread; returns at once."""
        self._thread.start()

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop thread run ``call``; quiet when the loop is gone or not yet there."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(call)

    def stop(self, timeout_s: float) -> None:
        """Close the client and end the thread, within ``timeout_s``; quiet when called again."""
        if os.getpid() != self._pid:
            return  # a forked child has neither the thread nor the right to the socket
        with self._starting:
            self._stopped = True
            self._close_s = max(0.02, min(CLOSE_S, timeout_s / 3))
            main = self._main
        if main is not None:
            self.post(lambda: _cancel(main))
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(max(0.05, timeout_s))

    def is_alive(self) -> bool:
        """Return whether the loop thread runs."""
        return self._thread.is_alive()

    # Loop thread -------------------------------------------------------------------------------

    def note(self, error: str | None, level: int = logging.WARNING) -> None:
        """Set or clear the error that ``status`` shows; the log repeats one only after a while."""
        if error == self.error:
            return
        self.error = error
        self._changed()
        now = time.monotonic()
        if error is not None and (error != self._logged or now > self._log_again_at):
            self._logged = error
            self._log_again_at = now + LOG_AGAIN_S
            logger.log(level, "kvevents: nats %s: %s", self._name, error)

    async def ask(self, question: Awaitable[T], subject: str) -> T:
        """Await an answer to a request on ``subject``.

        Raises:
            NotPermittedError: The server refused the subject, which nats-py shows only as a timeout.
        """
        self.forget_denial(subject)
        task = asyncio.ensure_future(question)
        task.add_done_callback(retrieve)
        try:
            while not task.done():
                denial = asyncio.ensure_future(self._denial.wait())
                try:
                    await asyncio.wait({task, denial}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    denial.cancel()
                self._denial.clear()
                self.check_permitted("publish", subject)
                self.check_inbox()
            return task.result()
        finally:
            task.cancel()

    def check_permitted(self, verb: str, subject: str) -> None:
        """Raise ``NotPermittedError`` if this connection was refused ``subject`` (lower-cased)."""
        if (verb, subject.lower()) in self._denied:
            raise NotPermittedError(f"no permission to {verb} to {subject!r}")

    def forget_denial(self, subject: str) -> None:
        """Ask anew: permissions may have changed since."""
        self._denied = [denied for denied in self._denied if denied[1] != subject.lower()]

    def check_inbox(self) -> None:
        """Raise ``ConnectionError`` if this connection may not receive answers."""
        inbox = self._settings.inbox_prefix.lower() + "."
        for verb, subject in self._denied:
            if verb == "subscribe" and subject.startswith(inbox):
                raise ConnectionError(
                    f"no permission to subscribe to {self._settings.inbox_prefix}.>, where answers "
                    "come: set inbox_prefix to what this user may subscribe to"
                )

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._entry())
        except asyncio.CancelledError:
            pass
        except Exception:
            logger.exception("kvevents: nats %s: the connection thread ended", self._name)
            self.error = "the connection thread ended; see the log"
        finally:
            self.connected = False
            self._loop = None

    async def _entry(self) -> None:
        with self._starting:
            if self._stopped:
                return
            self._loop = asyncio.get_running_loop()
            self._main = asyncio.current_task()
        await self._live()

    async def _live(self) -> None:
        wait_s = FIRST_WAIT_S
        while not self._stopped:
            began = time.monotonic()
            try:
                await self._connect_and_serve()
            except asyncio.CancelledError:
                raise
            except Exception as exc:
                self.note(self._describe(exc))
            if time.monotonic() - began > STABLE_S:
                wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - only spreads load
            wait_s = min(wait_s * 2, self._settings.reconnect_wait_s)

    async def _connect_and_serve(self) -> None:
        nc = new_client(self._settings)
        closed = asyncio.Event()
        self._denied = []
        self._denial = asyncio.Event()
        try:
            await self._connect(nc, closed)
            self.connections += 1
            self.connected = True
            self.server = describe_server(nc)
            self._changed()
            await self._serve(nc, closed)
        finally:
            self.connected = False
            self._discovered = [server.geturl() for server in nc.discovered_servers]
            await abandon(nc, self._close_s)
            self._changed()

    async def _serve(self, nc: Any, closed: asyncio.Event) -> None:
        session = asyncio.ensure_future(self._session(nc))
        session.add_done_callback(retrieve)
        lost = asyncio.ensure_future(closed.wait())
        try:
            await asyncio.wait({session, lost}, return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            else:
                raise ConnectionError(
                    describe_error(nc.last_error) or "the server closed the connection"
                )
        finally:
            lost.cancel()
            session.cancel()
            await asyncio.wait({session}, timeout=self._close_s)
            if not session.done():
                # nats-py swallows a cancellation while it waits for the socket (``_flush_pending``);
                # with the client closed the next call of the session raises instead.
                await abandon(nc, self._close_s)
                session.cancel()
                await asyncio.wait({session}, timeout=self._close_s)

    async def _connect(self, nc: Client, closed: asyncio.Event) -> None:
        settings = self._settings
        # Seeds first: what servers say of each other need not be reachable from here.
        servers = random.sample(settings.servers, len(settings.servers))
        if not settings.wants_tls or settings.tls_hostname:
            # They make themselves known by IP address, which certificates seldom carry.
            servers = list(dict.fromkeys([*servers, *self._discovered]))
        self._last_client_error = None

        async def on_error(exc: Exception) -> None:
            self._take_error(exc)

        async def on_closed() -> None:
            closed.set()

        await connect(
            nc, settings, servers, name=self._name, on_error=on_error, on_closed=on_closed
        )

    def _take_error(self, exc: Exception) -> None:
        denied = _DENIED.search(str(exc).lower())
        if denied:
            self._denied.append(("publish" if denied[1] == "publish" else "subscribe", denied[2]))
            self._denial.set()
        else:
            self._last_client_error = exc

    def _describe(self, exc: Exception) -> str:
        if isinstance(exc, NoServersError) and self._last_client_error is not None:
            exc = self._last_client_error
        if isinstance(exc, asyncio.TimeoutError):
            exc = self._last_client_error or TimeoutError("timed out")
        where = ", ".join(self._settings.servers)
        doing = "lost" if self.connections and isinstance(exc, ConnectionError) else "trouble with"
        return f"{doing} {where}: {describe_error(exc)}"


def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
