"""Write to a socket without letting go of the interpreter lock.

For the reason that ``socket.send`` releases it: a main thread that computes without pause gives it
back only after the switch interval (5 ms). A write that does not wait may keep it; at most a socket
buffer is copied. Where the C library cannot be called, ``socket.send`` does the work.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from collections.abc import Callable
from typing import Final

_FLAGS: Final = int(getattr(socket, "MSG_DONTWAIT", 0)) | int(getattr(socket, "MSG_NOSIGNAL", 0))

CHUNK_BYTES: Final = 256 * 1024
"""Most that one call copies; the systems' buffers between two processes are not much larger."""

_LATER: Final = (errno.EAGAIN, errno.EWOULDBLOCK, errno.EINTR, errno.ENOBUFS, errno.ENOMEM)

Write = Callable[[bytes, int], int]


def writer(data: socket.socket) -> Write:
    """Return what sends some bytes from a place on, as much as fits, and returns how much that was.

    It raises ``OSError`` (``BrokenPipeError`` as a rule) when the other end is gone.
    """
    if sys.platform != "linux":
        return _plain_writer(data)
    send = ctypes.PyDLL(None, use_errno=True).send
    send.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
    send.restype = ctypes.c_ssize_t
    descriptor = data.fileno()

    def write(some: bytes, start: int) -> int:
        chunk = _chunk(some, start)
        sent = int(send(descriptor, chunk, len(chunk), _FLAGS))
        if sent >= 0:
            return sent
        number = ctypes.get_errno()
        if number in _LATER:
            return 0
        raise OSError(number, os.strerror(number))

    return write


def _plain_writer(data: socket.socket) -> Write:
    def write(some: bytes, start: int) -> int:
        try:
            return data.send(_chunk(some, start), _FLAGS)
        except OSError as error:
            if error.errno in _LATER:
                return 0
            raise

    return write


def _chunk(some: bytes, start: int) -> bytes:
    return some if not start and len(some) <= CHUNK_BYTES else some[start : start + CHUNK_BYTES]
