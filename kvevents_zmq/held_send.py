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
SendFrames = Callable[[bytes, bytes], None]
_MORE: Final = int(zmq.SNDMORE | zmq.DONTWAIT)
_LAST: Final = int(zmq.DONTWAIT)


def frame_sender(socket: zmq.Socket[Any], topic: bytes) -> SendFrames:
    """Return what sends ``topic``, a seq and a payload as one message of ``socket``, a PUB or XPUB.

    It raises ``zmq.ZMQError`` if libzmq refuses the first frame; then nothing was taken.
    """
    plain = _plain_sender(socket, topic)
    zmq_send = _find_zmq_send()
    return plain if zmq_send is None else _held_sender(socket, topic, zmq_send, plain)


def _plain_sender(socket: zmq.Socket[Any], topic: bytes) -> SendFrames:
    send = socket.send

    def send_frames(seq: bytes, payload: bytes) -> None:
        send(topic, _MORE)
        send(seq, _MORE)
        send(payload, _LAST)

    return send_frames


def _held_sender(
    socket: zmq.Socket[Any], topic: bytes, zmq_send: Any, plain: SendFrames
) -> SendFrames:
    # Without declared argument types ctypes takes these as they are, at half the cost.
    address, size_t = ctypes.c_void_p(socket.underlying), ctypes.c_size_t
    topic_size, seq_size = size_t(len(topic)), size_t(SEQ_BYTES)

    def send_again(frame: bytes, flags: int) -> None:
        """Send ``frame``, which was refused once, unless a signal was not the reason."""
        while True:
            error = ctypes.get_errno()
            if error == zmq.EAGAIN:
                raise zmq.Again(error)
            if error != errno.EINTR:
                raise zmq.ZMQError(error)
            if zmq_send(address, frame, size_t(len(frame)), flags) >= 0:
                return

    def send_frames(seq: bytes, payload: bytes) -> None:
        size = len(payload)
        if size > HELD_MAX_BYTES:
            plain(seq, payload)
            return
        if zmq_send(address, topic, topic_size, _MORE) < 0:
            send_again(topic, _MORE)
        if zmq_send(address, seq, seq_size, _MORE) < 0:
            send_again(seq, _MORE)
        if zmq_send(address, payload, size_t(size), _LAST) < 0:
            send_again(payload, _LAST)

    return send_frames


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
