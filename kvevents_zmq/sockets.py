"""Make contexts and sockets with the options that cannot be set later, and bind them.

A context of its own for each sink and source, since an inherited or shared one outlives its owner's
care; inproc alone needs the process's shared one, because only sockets of one context meet there.
Never sends.
"""

from __future__ import annotations

import errno
import socket as system
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import zmq

from kvevents_core.errors import AddressInUseError, TransportError

if TYPE_CHECKING:
    from kvevents_core import StreamId
    from kvevents_zmq.curve import CurveKeys
    from kvevents_zmq.endpoints import Endpoint

LINGER_MS: Final = 1000
"""What a socket may still try to send after it was closed; finite from its creation on."""
_RECONNECT_MAX_MS: Final = 2000
_MAX_SOCKETS: Final = 16_384
"""A reader of 200 streams has 1200 sockets, monitors included; libzmq's default is 1023."""
_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_COUNT: Final = 3

_ADVICE: Final = {
    errno.EADDRNOTAVAIL: "this machine has no such address",
    errno.ENODEV: "this machine has no such address or interface",
    errno.EACCES: "no permission; ports below 1024 need a privilege, a path its directory's",
    errno.ENOENT: "its directory does not exist",
    errno.EINVAL: "libzmq does not take this address",
}


def make_context(*endpoints: Endpoint | None, io_threads: int = 1) -> zmq.Context[Any]:
    """Return the context for sockets at ``endpoints``; ``end_context`` gives it back."""
    if any(endpoint is not None and endpoint.scheme == "inproc" for endpoint in endpoints):
        return zmq.Context.instance()
    context: zmq.Context[Any] = zmq.Context(io_threads)
    context.set(zmq.MAX_SOCKETS, _MAX_SOCKETS)
    return context


def is_shared(context: zmq.Context[Any]) -> bool:
    """Return whether ``context`` is the process's shared one."""
    return context is zmq.Context._instance


def end_context(context: zmq.Context[Any]) -> None:
    """Terminate ``context`` unless it is shared; waits for sockets that linger."""
    if not is_shared(context):
        context.term()


def make_socket(
    context: zmq.Context[Any], kind: int, *, ipv6: bool, keys: CurveKeys | None
) -> zmq.Socket[Any]:
    """Return a new socket with every option set that later would be too late."""
    made: zmq.Socket[Any] = context.socket(kind)
    made.linger = LINGER_MS
    made.ipv6 = ipv6 and system_has_ipv6()
    made.reconnect_ivl_max = _RECONNECT_MAX_MS
    # The kernel's keepalive finds a peer that vanished; ZMTP heartbeats would need its consent.
    made.tcp_keepalive = 1
    made.tcp_keepalive_idle = _KEEPALIVE_IDLE_S
    made.tcp_keepalive_intvl = _KEEPALIVE_INTERVAL_S
    made.tcp_keepalive_cnt = _KEEPALIVE_COUNT
    if keys is not None:
        keys.apply(made)
    return made


def receive_frames(made: zmq.Socket[Any]) -> list[bytes]:
    """Return the next message; at about half the cost of ``recv_multipart``.

    A frame taken without copying knows whether another follows; pyzmq otherwise asks the socket.

    Raises:
        zmq.Again: None waits.
    """
    frame = made.recv(zmq.DONTWAIT, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = made.recv(zmq.DONTWAIT, copy=False)
        frames.append(frame.bytes)
    return frames


def bind_socket(
    made: zmq.Socket[Any], endpoint: Endpoint, stream: StreamId, *, reads: bool = False
) -> str:
    """Bind ``made`` and return its real endpoint, with the port the system chose.

    ``reads`` says that it is a reader's socket, where the publisher dials.

    Raises:
        AddressInUseError: Something listens there already.
        TransportError: The address cannot be had for another reason.
    """
    try:
        made.bind(str(endpoint))
    except zmq.ZMQError as exc:
        raise bind_error(exc, endpoint, stream, reads=reads) from exc
    return real_endpoint(made, endpoint)


def real_endpoint(made: zmq.Socket[Any], endpoint: Endpoint) -> str:
    """Return ``endpoint`` with the port that ``made``, bound to it, really has."""
    if endpoint.port != 0:
        return str(endpoint)
    port = made.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(port, bytes)
    return f"{str(endpoint)[:-1]}{port.rpartition(b':')[2].decode()}"


def bind_error(
    exc: zmq.ZMQError, endpoint: Endpoint, stream: StreamId, *, reads: bool = False
) -> TransportError:
    """Return the error to raise for ``exc``, met while binding ``endpoint`` for ``stream``."""
    if exc.errno == errno.EADDRINUSE:
        return address_in_use(endpoint, stream, reads=reads)
    reason = _ADVICE.get(exc.errno or 0, exc.strerror or "unknown reason")
    return TransportError(
        f"cannot bind {endpoint} for stream {stream}: {reason}", address=str(endpoint)
    )


def address_in_use(
    endpoint: Endpoint, stream: StreamId, *, reads: bool = False
) -> AddressInUseError:
    """Return the error that says another socket has ``endpoint``."""
    if reads:
        advice = (
            f"so no reader of stream {stream} can listen there. The publisher dials this endpoint: "
            f"check whether another reader has it, or whether the publisher binds after all (then "
            f'give the reader "bind": true)'
        )
    else:
        advice = (
            f"so stream {stream} has no address. Check whether another engine on this host uses "
            f"the same endpoint, whether an earlier run still lives, and whether two ranks of this "
            f"engine both claim stream rank {stream.rank}"
        )
    return AddressInUseError(f"{endpoint} is taken already, {advice}", address=str(endpoint))


@cache
def system_has_ipv6() -> bool:
    """Return whether this system can bind an IPv6 address."""
    if not system.has_ipv6:
        return False
    try:
        with system.socket(system.AF_INET6, system.SOCK_STREAM) as probe:
            probe.bind(("::", 0))
    except OSError:
        return False
    return True
