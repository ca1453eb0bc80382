"""Send three frames without letting go of the interpreter lock.

pyzmq releases the lock in every send; a main thread that computes without pause gives it back only
after the switch interval (5 ms), so that three sends a record crawl just when an engine is busiest.
``zmq_send`` with DONTWAIT on a PUB copies the frame and never waits, hence it may be called with the
lock held. It is looked up in the very libzmq that pyzmq uses, through ``ctypes.PyDLL``; where that
cannot be done (no such symbol, another version), pyzmq's own send does the work.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable
from typing import Any, Final

import zmq

from kvevents_zmq.frames import SEQ_BYTES

HELD_MAX_BYTES: Final = 65_536
"""A larger payload is copied without the lock, which its copying would hold too long."""
SendMessage = Callable[[bytes, bytes], None]
SendFrame = Callable[[bytes, int], object]
MORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
LAST: Final = int(zmq.DONTWAIT)


def message_sender(socket: zmq.Socket[Any], topic: bytes) -> SendMessage:
    """Return what sends ``topic``, a seq and a payload as one message of ``socket``, a PUB or XPUB.

    It raises ``zmq.ZMQError`` if libzmq refuses the first frame; then nothing was taken.
    """
    zmq_send = _find_zmq_send()
    if zmq_send is None:
        return _plain_message_sender(socket, topic)
    return _held_message_sender(socket, topic, zmq_send)


def frame_sender(socket: zmq.Socket[Any]) -> SendFrame:
    """Return what sends one frame of ``socket`` with the flags given (``MORE`` or ``LAST``)."""
    zmq_send = _find_zmq_send()
    return socket.send if zmq_send is None else _held_frame_sender(socket, zmq_send)


def _plain_message_sender(socket: zmq.Socket[Any], topic: bytes) -> SendMessage:
    send = socket.send

    def send_message(seq: bytes, payload: bytes) -> None:
        send(topic, MORE)
        send(seq, MORE)
        send(payload, LAST)

    return send_message


def _held_message_sender(socket: zmq.Socket[Any], topic: bytes, zmq_send: Any) -> SendMessage:
    # Without declared argument types ctypes takes these as they are, at half the cost.
    address, size_t = ctypes.c_void_p(socket.underlying), ctypes.c_size_t
    topic_size, seq_size = size_t(len(topic)), size_t(SEQ_BYTES)
    plain = _plain_message_sender(socket, topic)
    send_frame = _held_frame_sender(socket, zmq_send)

    def send_message(seq: bytes, payload: bytes) -> None:
        size = len(payload)
        if size > HELD_MAX_BYTES:
            plain(seq, payload)
            return
        # What is refused is sent once more by ``send_frame``, which knows what to make of it.
        if zmq_send(address, topic, topic_size, MORE) < 0:
            send_frame(topic, MORE)
        if zmq_send(address, seq, seq_size, MORE) < 0:
            send_frame(seq, MORE)
        if zmq_send(address, payload, size_t(size), LAST) < 0:
            send_frame(payload, LAST)

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
            error = ctypes.get_errno()
            if error == zmq.EAGAIN:
                raise zmq.Again(error)
            if error != errno.EINTR:
                raise zmq.ZMQError(error)

    return send_frame


def _find_zmq_send() -> Any:
    """Return libzmq's ``zmq_send``, or None where it is not the one that pyzmq uses."""
    try:
        from zmq.backend.cython import _zmq

        library = ctypes.PyDLL(_zmq.__file__, use_errno=True)
        version = (ctypes.c_int * 3)()
        at = [ctypes.byref(version, n * ctypes.sizeof(ctypes.c_int)) for n in range(3)]
        library.zmq_version(*at)
        found = library.zmq_send
    except (ImportError, OSError, AttributeError):
        return None
    if tuple(version) != zmq.zmq_version_info():
        return None
    found.restype = ctypes.c_int
    return found
