"""Send a message without letting go of the interpreter lock, in one call into libzmq.

pyzmq releases the lock in every send; a main thread that computes without pause gives it back only
after the switch interval (5 ms), so that three sends a record crawl just when an engine is busiest.
Sending with DONTWAIT copies the frames and never waits, hence it may be done with the lock held. The
functions are looked up in the very libzmq that pyzmq uses, through ``ctypes.PyDLL``; where that
cannot be done (no such symbol, another version), pyzmq's own send does the work.

``zmq_sendiov`` (zmq.h of libzmq 4.3.5, "experimental") takes all frames at once. What it does not
tell is how many it took before a signal interrupted it; the sender's thread has signals blocked.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Any, Final

import zmq

HELD_MAX_BYTES: Final = 65_536
"""A larger payload is copied without the lock, which its copying would hold too long."""
SendMessage = Callable[[bytes, bytes], None]
SendFrame = Callable[[bytes, int], object]
MORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
LAST: Final = int(zmq.DONTWAIT)


class _Frame(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("base", ctypes.c_char_p), ("size", ctypes.c_size_t))


def message_sender(socket: zmq.Socket[Any], *prefix: bytes) -> SendMessage:
    """Return what sends the frames ``prefix``, then a seq and a payload, as one message.

    It raises ``zmq.ZMQError`` if libzmq refuses the first frame; then nothing was taken.
    """
    zmq_sendiov = _find("zmq_sendiov")
    if zmq_sendiov is None:
        return _plain_message_sender(socket, prefix)
    return _held_message_sender(socket, prefix, zmq_sendiov)


def frame_sender(socket: zmq.Socket[Any]) -> SendFrame:
    """Return what sends one frame of ``socket`` with the flags given (``MORE`` or ``LAST``)."""
    zmq_send = _find("zmq_send")
    return socket.send if zmq_send is None else _held_frame_sender(socket, zmq_send)


def _plain_message_sender(socket: zmq.Socket[Any], prefix: tuple[bytes, ...]) -> SendMessage:
    send = socket.send

    def send_message(seq: bytes, payload: bytes) -> None:
        for frame in prefix:
            send(frame, MORE)
        send(seq, MORE)
        send(payload, LAST)

    return send_message


def _held_message_sender(
    socket: zmq.Socket[Any], prefix: tuple[bytes, ...], zmq_sendiov: Any
) -> SendMessage:
    frames = (_Frame * (len(prefix) + 2))(*(_Frame(frame, len(frame)) for frame in prefix))
    seq_frame, payload_frame = frames[-2], frames[-1]
    # Without declared argument types ctypes takes these as they are, at half the cost.
    arguments = (
        ctypes.c_void_p(socket.underlying),
        ctypes.byref(frames),
        ctypes.c_size_t(len(frames)),
        MORE,
    )
    plain = _plain_message_sender(socket, prefix)

    def send_message(seq: bytes, payload: bytes) -> None:
        size = len(payload)
        if size > HELD_MAX_BYTES:
            plain(seq, payload)
            return
        seq_frame.base, seq_frame.size = seq, len(seq)
        payload_frame.base, payload_frame.size = payload, size
        while zmq_sendiov(*arguments) < 0:
            _raise_unless_interrupted()

    return send_message


def _held_frame_sender(socket: zmq.Socket[Any], zmq_send: Any) -> SendFrame:
    address, size_t = ctypes.c_void_p(socket.underlying), ctypes.c_size_t
    send = socket.send

    def send_frame(frame: bytes, flags: int) -> None:
        size = len(frame)
        if size > HELD_MAX_BYTES:
            send(frame, flags)
            return
        while zmq_send(address, frame, size_t(size), flags) < 0:
            _raise_unless_interrupted()

    return send_frame


def _raise_unless_interrupted() -> None:
    error = ctypes.get_errno()
    if error == zmq.EAGAIN:
        raise zmq.Again(error)
    if error != errno.EINTR:
        raise zmq.ZMQError(error)


def _find(symbol: str) -> Any:
    """Return a function of libzmq that returns an int, or None where it is not pyzmq's libzmq."""
    try:
        from zmq.backend.cython import _zmq

        library = ctypes.PyDLL(_zmq.__file__, use_errno=True)
        version = (ctypes.c_int * 3)()
        at = [ctypes.byref(version, n * ctypes.sizeof(ctypes.c_int)) for n in range(3)]
        library.zmq_version(*at)
        found = getattr(library, symbol)
    except (ImportError, OSError, AttributeError):
        return None
    if tuple(version) != zmq.zmq_version_info():
        return None
    found.restype = ctypes.c_int
    return found
