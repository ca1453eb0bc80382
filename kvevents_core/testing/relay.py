"""A TCP relay before a broker, to hurt: stop, stall and start it while the broker itself runs on.

One broker can then serve a whole test run. Of no use where a broker names other addresses to its
clients (Kafka's advertised listeners), unless those lead through the relay too.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Final

from kvevents_core.testing.place import Peer

_CHUNK_BYTES: Final = 65536
_Selector: Final = getattr(selectors, "PollSelector", selectors.SelectSelector)
"""One that holds no descriptor: the kit compares a process's descriptors while a relay runs."""


class TcpRelay(Peer):
    """Listens on a free loopback port and passes bytes to ``host:port`` and back.

    Args:
        host: Where the broker is.
        port: Its port.
    """

    can_stall = True

    def __init__(self, host: str, port: int) -> None:
        self._broker = (host, port)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._stalled = threading.Event()
        self._delay_s = 0.0
        self._ended = threading.Event()
        self.port = 0
        """The relay's own port; the same after every ``start``."""
        self._listen()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Break every connection and refuse new ones."""
        with self._lock:
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            self._break_all()

    def stall(self) -> None:
        """Pass nothing on any more; connections stay, new ones are taken and not answered."""
        self._stalled.set()

    def slow_down(self, delay_s: float) -> None:
        """Wait ``delay_s`` before each portion of bytes is passed on."""
        self._delay_s = delay_s

    def start(self) -> None:
        """Pass everything on again."""
        self._delay_s = 0.0
        with self._lock:
            if self._stalled.is_set():
                self._break_all()  # what stalled is in an unknown state, as after a real outage
                self._stalled.clear()
            if self._listener is None and not self._ended.is_set():
                self._listen()

    def close(self) -> None:
        """End the relay."""
        self._ended.set()
        self.stop()
        self._thread.join(5.0)

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        listener.setblocking(False)
        self.port = listener.getsockname()[1]
        self._listener = listener

    def _break_all(self) -> None:
        for one in self._pairs:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._pairs.clear()

    def _run(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                sockets = list(self._pairs) if not self._stalled.is_set() else []
                listener = self._listener
                watched = [*sockets, *([listener] if listener else [])]
                with _Selector() as selector:
                    for one in watched:
                        selector.register(one, selectors.EVENT_READ)
                    ready = [key.fileobj for key, _ in selector.select(0)]
                for end in ready:
                    if listener is not None and end is listener:
                        self._accept(listener)
                    elif isinstance(end, socket.socket) and end in self._pairs:
                        self._pass_on(end)
            if not ready:
                self._ended.wait(0.001)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        try:
            broker = socket.create_connection(self._broker, 2.0)
        except OSError:
            client.close()
            return
        client.settimeout(2.0)
        broker.settimeout(2.0)
        self._pairs[client] = broker
        self._pairs[broker] = client

    def _pass_on(self, one: socket.socket) -> None:
        other = self._pairs[one]
        try:
            data = one.recv(_CHUNK_BYTES)
            self._ended.wait(self._delay_s)
            if data:
                other.sendall(data)
                return
        except OSError:
            data = b""
        for end in (one, other):
            self._pairs.pop(end, None)
            end.close()
