"""Making and closing one nats-py client. It never reconnects by itself: ``connection`` says why."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard

import nats.aio.client

from kvevents_nats.settings import NatsSettings


class Client(nats.aio.client.Client):  # type: ignore[misc]
    """nats-py's client, which by itself follows the server's wish for or against TLS.

    Args:
        wants_tls: Refuse a server without TLS before anything, a password least of all, is sent.
    """

    def __init__(self, *, wants_tls: bool) -> None:
        super().__init__()
        self._wants_tls = wants_tls

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # nats-py 2.16 calls this with the server's greeting before it introduces itself.
        if initial_connection and self._wants_tls and not self._has_tls(info):
            raise ConnectionError("the server offers no TLS, but tls settings are given")
        await super()._process_info(info, initial_connection)

    def _has_tls(self, info: dict[str, Any]) -> bool:
        server = self._current_server
        is_wss = server is not None and server.uri.scheme == "wss"
        return bool(info.get("tls_required") or is_wss or self.options.get("tls_handshake_first"))


def new_client(settings: NatsSettings) -> Client:
    """Return a client that is not connected."""
    return Client(wants_tls=settings.wants_tls)


async def connect(
    nc: Client,
    settings: NatsSettings,
    servers: Sequence[str],
    *,
    name: str,
    on_error: Callable[[Exception], Awaitable[None]],
    on_closed: Callable[[], Awaitable[None]],
) -> None:
    """Connect ``nc`` to the first of ``servers`` that answers, in a time that does not depend on what they do.

    Raises:
        Exception: Whatever nats-py, ``ssl`` or the system raise.
    """
    options: dict[str, Any] = settings.login()
    if settings.wants_tls:
        options["tls"] = settings.tls_context()
    if settings.tls_hostname:
        options["tls_hostname"] = settings.tls_hostname
    connecting = nc.connect(
        servers=list(servers),
        name=name,
        error_cb=on_error,
        closed_cb=on_closed,
        dont_randomize=True,
        allow_reconnect=False,
        max_reconnect_attempts=1,
        reconnect_time_wait=0.01,
        connect_timeout=settings.connect_timeout_s,
        ping_interval=settings.ping_interval_s,
        no_echo=True,
        tls_handshake_first=settings.tls_first,
        inbox_prefix=settings.inbox_prefix,
        **options,
    )
    task = asyncio.ensure_future(connecting)
    # Cancelled, it may end in an error of its own.
    task.add_done_callback(retrieve)
    # The client's own limits do not bound a TLS handshake that never ends (nats-py 2.16).
    await asyncio.wait_for(task, settings.connect_timeout_s * len(servers))


async def abandon(nc: Client, timeout_s: float) -> None:
    """Close ``nc`` whatever state it is in; a socket that will not close is dropped."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(nc.close(), timeout_s)
    # What a close that hung has left (nats-py 2.16): its tasks and the socket.
    subscriptions = list(getattr(nc, "_subs", {}).values())
    tasks = [getattr(each, "_wait_for_msgs_task", None) for each in subscriptions]
    tasks += [
        getattr(nc, f"_{name}_task", None) for name in ("reading", "ping_interval", "flusher")
    ]
    for task in tasks:
        if task is not None:
            task.cancel()
    writer = getattr(getattr(nc, "_transport", None), "_io_writer", None)
    if writer is not None:
        with contextlib.suppress(Exception):
            writer.transport.abort()


async def round_trip(nc: Any, timeout_s: float) -> None:
    """Return once the server has seen everything sent so far; nats-py's ``flush`` alone does not.

    It writes its PING ahead of what still waits (nats-py 2.16, ``_send_ping``); after the first
    PONG that has been written, and the second comes behind it.
    """
    await nc.flush(timeout_s)
    await nc.flush(timeout_s)


def describe_server(nc: Client) -> str:
    """Return address, name and version of the server that ``nc`` is connected to."""
    url = nc.connected_url
    where = url.netloc.rsplit("@", 1)[-1] if url is not None else "?"
    info = getattr(nc, "_server_info", {})
    return f"{where} ({info.get('server_name', '?')}, nats-server {info.get('version', '?')})"


def describe_error(exc: BaseException | None) -> str:
    """Return what nats-py, ``ssl`` or the system say went wrong; empty for None."""
    if exc is None:
        return ""
    if isinstance(exc, socket.gaierror):
        return "the host name cannot be resolved"
    if _is_of_network(exc) and type(exc.errno) is int and exc.errno > 0:
        return os.strerror(exc.errno).lower()  # asyncio's own text is about its call
    text = str(exc).removeprefix("nats: ")
    if text[:1] == text[-1:] == "'":
        text = text.strip("'")
    return text if text and text != "None" else type(exc).__name__


def _is_of_network(exc: BaseException) -> TypeGuard[OSError]:
    if not isinstance(exc, OSError) or isinstance(exc, ssl.SSLError):
        return False
    return exc.filename is None


def retrieve(task: asyncio.Future[Any]) -> None:
    """Take note of a task's error that nobody may be waiting for any more."""
    if not task.cancelled():
        task.exception()
