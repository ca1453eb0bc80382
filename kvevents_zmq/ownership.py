"""Hold an ipc address against a second publisher, which libzmq itself would let in.

libzmq 4.3 unlinks the path before it binds, so a second bind succeeds and quietly takes every new
reader. Here a lock file beside the path is held while the sink lives (the kernel lets go of it when
the process dies), and whoever listens at the path without our lock is found by dialling it. Abstract
addresses (``ipc://@name``) need none of this: the kernel refuses a second bind.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket as system
from pathlib import Path
from typing import TYPE_CHECKING

from kvevents_zmq.sockets import address_in_use

if TYPE_CHECKING:
    from kvevents_core import StreamId
    from kvevents_zmq.endpoints import Endpoint

_PROBE_S = 0.5


class PathOwnership:
    """The right to bind one ipc path; ``release`` gives it back."""

    def __init__(self, endpoint: Endpoint, stream: StreamId) -> None:
        """Take the path of ``endpoint``; free of cost for other schemes.

        Raises:
            AddressInUseError: Another publisher holds or serves the path.
            OSError: The lock file cannot be made.
        """
        self._pid = os.getpid()
        self._file: int | None = None
        self._path = ""
        if endpoint.scheme != "ipc" or endpoint.host.startswith("@"):
            return
        self._path = f"{endpoint.host}.lock"
        self._file = _lock(self._path)
        if self._file is None or _is_served(endpoint.host):
            self.release()
            raise address_in_use(endpoint, stream)

    def release(self) -> None:
        """Give the path back and remove the lock file; quiet when repeated."""
        held, self._file = self._file, None
        if held is None:
            return
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                Path(self._path).unlink()
        os.close(held)


def _lock(path: str) -> int | None:
    """Return a file descriptor that holds the lock at ``path``, None if somebody else does."""
    while True:
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return None
        # Its last owner removes the file: a lock on a removed one holds nobody back.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(Path(path).stat(), os.fstat(opened)):
                return opened
        os.close(opened)


def _is_served(path: str) -> bool:
    """Return whether somebody listens at ``path``."""
    with system.socket(system.AF_UNIX, system.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
        except (BlockingIOError, TimeoutError):
            return True
        except OSError:
            return False
    return True
