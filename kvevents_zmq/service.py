"""The sink's second thread: answers replay requests, admits readers, counts who is connected.

While it runs, it alone uses the ROUTER and the reading end of the monitor; the sender thread alone
uses the PUB socket. So replay never delays live traffic. Never raises into the sender.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import zmq

from kvevents_zmq.replay_server import ReplayServer
from kvevents_zmq.sockets import LINGER_MS

if TYPE_CHECKING:
    from kvevents_core import SinkHost, StreamId
    from kvevents_zmq.admission import Admission
    from kvevents_zmq.monitor import Monitor

log = logging.getLogger("kvevents.zmq")

LONELY_S: Final = 30.0
"""A dialling publisher without a peer for this long is worth a warning."""
_RETRY_MIN_MS: Final = 1
_RETRY_MAX_MS: Final = 50
_ERROR_PAUSE_MS: Final = 1000


class SinkService:
    """One thread per sink, started by ``start`` and ended by ``stop``."""

    def __init__(
        self,
        context: zmq.Context[Any],
        monitor: Monitor,
        router: zmq.Socket[Any] | None,
        *,
        dials: str | None,
        admission: Admission | None = None,
    ) -> None:
        """``dials`` is the endpoint of a publisher that connects, None where it binds."""
        self.error: str | None = None
        self.replies = 0
        self.ignored_requests = 0
        self._monitor = monitor
        self._router = router
        self._admission = admission
        self._dials = dials
        self._lonely_at = time.monotonic() + LONELY_S
        self._warned = dials is None
        self._failure: str | None = None
        self._room_tells = True
        self._pause_ms = _RETRY_MIN_MS
        self._linger_ms = LINGER_MS
        self._server: ReplayServer | None = None
        self._host: SinkHost | None = None
        self._thread: threading.Thread | None = None
        address = f"inproc://kvevents-stop-{id(self)}"
        self._stopper: zmq.Socket[Any] = context.socket(zmq.PAIR)
        self._stopper.linger = 0
        self._stopper.bind(address)
        self._stopped: zmq.Socket[Any] = context.socket(zmq.PAIR)
        self._stopped.linger = 0
        self._stopped.connect(address)

    @property
    def peers(self) -> int:
        """Readers connected now."""
        return self._monitor.peers

    def start(self, host: SinkHost, topic: bytes, stream: StreamId) -> None:
        """Begin; from here on the thread owns the router and the monitor."""
        self._host = host
        if self._router is not None:
            self._server = ReplayServer(self._router, topic, stream, host)
        self._thread = threading.Thread(
            target=self._run, name=f"kvevents-zmq-{stream.rank}", daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float, linger_ms: int) -> bool:
        """End the thread and close its sockets; False if it did not end in time."""
        self._linger_ms = linger_ms
        thread = self._thread
        if thread is None:
            self._close_sockets()
        else:
            self._stopper.send(b"", zmq.DONTWAIT)
            thread.join(timeout_s)
            if thread.is_alive():
                return False
        self._stopper.close(0)
        return True

    def _run(self) -> None:
        poller = zmq.Poller()
        admits = None if self._admission is None else self._admission.socket
        for socket in (self._stopped, self._monitor.reader, self._router, admits):
            if socket is not None:
                poller.register(socket, zmq.POLLIN)
        went = False
        try:
            while True:
                events = self._poll(poller, went=went)
                if self._stopped in events:
                    return
                try:
                    went = self._turn()
                    self.error = None
                except zmq.ContextTerminated:
                    return
                except Exception as exc:
                    self._complain(exc)
                    if self._stopped.poll(_ERROR_PAUSE_MS):
                        return
                # Room that helps no waiting client is another's: then the clock must do.
                self._room_tells = went or not events.get(self._router, 0) & zmq.POLLOUT
        finally:
            self._close_sockets()

    def _poll(self, poller: zmq.Poller, *, went: bool) -> dict[Any, int]:
        """Wait for something to do: at most until the next try where a client is full."""
        busy = self._server is not None and self._server.busy
        self._pause_ms = _RETRY_MIN_MS if went else min(2 * self._pause_ms, _RETRY_MAX_MS)
        watch_room = busy and not went and self._room_tells
        if self._router is not None:
            poller.modify(self._router, zmq.POLLIN | (zmq.POLLOUT if watch_room else 0))
        if busy:
            timeout_ms: int | None = 0 if went else self._pause_ms
        elif self._warned:
            timeout_ms = None
        else:
            timeout_ms = max(0, int(1000 * (self._lonely_at - time.monotonic())) + 1)
        return dict(poller.poll(timeout_ms))

    def _turn(self) -> bool:
        """Do what is due; True if a reply went out, so that more may follow at once."""
        if self._admission is not None:
            self._admission.answer()
        self._watch_peers()
        server = self._server
        if server is None:
            return False
        server.take_requests()
        went = server.answer()
        self.replies, self.ignored_requests = server.sent, server.ignored
        return went

    def _watch_peers(self) -> None:
        monitor = self._monitor
        if monitor.read():
            if self._failure is None and monitor.failure is not None:
                log.warning("a reader could not connect: %s", monitor.failure)
            self._failure = monitor.failure
            if self._host is not None:
                self._host.wake()
        if not self._warned and time.monotonic() >= self._lonely_at:
            self._warned = True
            if not monitor.made:
                log.warning(
                    "publisher dials %s and found no reader in %.0f s; its batches reach nobody. "
                    "Start the reader, which must bind there, or set bind to true",
                    self._dials,
                    LONELY_S,
                )

    def _complain(self, exc: Exception) -> None:
        if self.error is None:
            log.error("replay of a ZMQ sink failed and is tried again", exc_info=exc)
        self.error = f"{type(exc).__name__}: {exc}"

    def _close_sockets(self) -> None:
        self._stopped.close(0)
        if self._admission is not None:
            self._admission.close()
        if self._router is not None:
            self._router.close(self._linger_ms)
