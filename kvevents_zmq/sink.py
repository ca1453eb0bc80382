"""Send one stream over ZMQ: a PUB socket for live traffic, a ROUTER for replay.

    live   [topic, seq 8 B BE unsigned, payload]      (vLLM 0.33, SGLang 0.5.23; see ``frames``)

The sockets are made and bound on the engine's thread by ``open_sink``; afterwards the sender thread
alone uses the PUB, ``service`` alone the rest. Never waits for a reader: PUB drops what a reader
does not take, beyond ``hwm`` messages, and the reader sees that in the seq.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import zmq

from kvevents_core import Record, Sink, SinkHost, SinkStatus
from kvevents_core.errors import ClosedError, TransportError
from kvevents_zmq.admission import Admission
from kvevents_zmq.curve import admitted_keys, publisher_keys
from kvevents_zmq.frames import MAX_REQUEST_BYTES
from kvevents_zmq.held_send import message_sender
from kvevents_zmq.io_threads import let_others_finish
from kvevents_zmq.monitor import Monitor
from kvevents_zmq.ownership import PathOwnership
from kvevents_zmq.replay_server import CLIENT_HWM
from kvevents_zmq.service import SinkService
from kvevents_zmq.sockets import (
    LINGER_MS,
    bind_socket,
    end_context,
    is_shared,
    make_context,
    make_socket,
)

if TYPE_CHECKING:
    from kvevents_core import StreamId
    from kvevents_zmq.endpoints import Endpoint
    from kvevents_zmq.settings import ZmqSettings

log = logging.getLogger("kvevents.zmq")

FIRST_READER_S: Final = 5.0
"""How long a publisher that dials holds its first batches back for the first subscription."""
_SUBSCRIBE: Final = b"\x01"
"""First byte of what an XPUB receives when a reader subscribes."""


class ZmqSink(Sink):
    """The sending end of one stream over ZMQ."""

    def __init__(self, settings: ZmqSettings, stream: StreamId) -> None:
        """Bind (or begin to dial) at once.

        Raises:
            AddressInUseError: Another publisher has the event or replay endpoint of this rank.
            TransportError: An address cannot be had for another reason.
            ConfigError: A CURVE key cannot be used.
        """
        self._stream = stream
        self._settings = settings
        self._topic = settings.topic.encode()
        self._pid = os.getpid()
        self._binds = settings.publisher_binds
        self._curve = publisher_keys(settings)
        self._error: str | None = None
        self._closed = False
        self._status = SinkStatus(ready=True, connected=self._binds)
        self._subscribed = self._binds
        self._hold_until = time.monotonic() + FIRST_READER_S
        self._endpoint = settings.events.for_rank(stream.rank)
        self._replay = settings.replay
        if self._replay is not None:
            self._replay = self._replay.for_rank(stream.rank)
        self._owned: list[PathOwnership] = []
        self._warn_if_open()
        # An I/O thread of its own each, so that a long replay does not hold up live traffic.
        io_threads = 1 if self._replay is None else 2
        self._context = make_context(self._endpoint, self._replay, io_threads=io_threads)
        if not is_shared(self._context):
            let_others_finish(self._context)
        self._sockets: list[zmq.Socket[Any]] = []
        self._monitor: Monitor | None = None
        try:
            self._open_sockets()
        except BaseException:
            self._abandon()
            raise
        told = "given by bind" if settings.bind is not None else "inferred from the host"
        log.info(
            "stream %s %s %s (%s); replay: %s",
            stream,
            "is bound at" if self._binds else "dials",
            self.endpoint,
            told,
            self.replay_endpoint or "none",
        )

    def _open_sockets(self) -> None:
        settings = self._settings
        admission = None
        admitted = admitted_keys(settings)
        if admitted is not None:
            admission = Admission(self._context, admitted)
            self._sockets.append(admission.socket)
        self._pub = self._make(zmq.PUB if self._binds else zmq.XPUB, self._endpoint)
        self._pub.sndhwm = settings.hwm
        self._send_message = message_sender(self._pub, self._topic)
        monitor = self._monitor = Monitor(self._pub)
        if self._binds:
            self.endpoint = self._bind(self._pub, self._endpoint)
        else:
            self._pub.connect(str(self._endpoint))
            self.endpoint = str(self._endpoint)
        self.replay_endpoint: str | None = None
        router = None
        if self._replay is not None:
            router = self._make(zmq.ROUTER, self._replay)
            router.sndhwm = CLIENT_HWM
            router.router_mandatory = True
            router.maxmsgsize = MAX_REQUEST_BYTES
            self.replay_endpoint = self._bind(router, self._replay)
        self._service = SinkService(
            self._context,
            monitor,
            router,
            dials=None if self._binds else self.endpoint,
            admission=admission,
        )

    def _make(self, kind: int, endpoint: Endpoint) -> zmq.Socket[Any]:
        ipv6 = self._settings.ipv6_for(endpoint)
        made = make_socket(self._context, kind, ipv6=ipv6, keys=self._curve)
        if not is_shared(self._context):
            made.affinity = 2 if kind == zmq.ROUTER else 1
        self._sockets.append(made)
        return made

    def _bind(self, made: zmq.Socket[Any], endpoint: Endpoint) -> str:
        try:
            self._owned.append(PathOwnership(endpoint, self._stream))
        except TransportError:
            raise
        except OSError as exc:
            raise TransportError(
                f"cannot bind {endpoint} for stream {self._stream}: {exc.strerror}",
                address=str(endpoint),
            ) from exc
        return bind_socket(made, endpoint, self._stream)

    def _abandon(self) -> None:
        """Free what a failed opening had taken."""
        if self._monitor is not None:
            self._monitor.close()
        for made in self._sockets:
            made.close(0)
        for owned in self._owned:
            owned.release()
        end_context(self._context)

    def start(self, host: SinkHost) -> None:
        """Begin to answer replay requests and to count readers."""
        self._check_open()
        self._service.start(host, self._topic, self._stream)

    def status(self) -> SinkStatus:
        """Return the present state; ready from the start, since nothing has to be asked first."""
        connected = not self._closed and (self._binds or self._service.peers > 0)
        error = self._error or self._service.error
        status = self._status
        if status.connected != connected or status.error != error:
            status = self._status = SinkStatus(ready=True, connected=connected, error=error)
        return status

    def send(self, records: Sequence[Record]) -> int:
        """Send ``records``; PUB takes all. A dialling publisher takes none before the first reader.

        Raises:
            ClosedError: After ``close``, or in a process forked since the sink was opened.
        """
        self._check_open()
        if not self._binds and not self._has_reader():
            return 0
        send, taken = self._send_message, 0
        try:
            # What could fail is computed first: after the first frame nothing does, since libzmq
            # takes a message as a whole.
            for record in records:
                seq = record.seq.to_bytes(8, "big")
                payload = record.payload
                if type(payload) is not bytes:
                    raise TypeError(f"a payload is bytes, not {type(payload)}")  # noqa: TRY301
                send(seq, payload)
                taken += 1
        except zmq.Again:
            return taken
        except zmq.ZMQError as exc:
            self._error = f"send failed: {exc}"
        except (TypeError, OverflowError):
            # What went before it went: the record at fault is told of when it comes first.
            if not taken:
                raise
        else:
            self._error = None
        return taken

    def _has_reader(self) -> bool:
        """Whether a subscription arrived (or none did in time); also empties the XPUB's queue."""
        with contextlib.suppress(zmq.Again):
            while True:
                if self._pub.recv(zmq.DONTWAIT)[:1] == _SUBSCRIBE:
                    self._subscribed = True
        return self._subscribed or time.monotonic() >= self._hold_until

    def flush(self, timeout_s: float) -> bool:
        """Return True: libzmq's own threads push at once, and ``close`` lingers for the rest."""
        return not self._closed

    def close(self, timeout_s: float) -> None:
        """Stop the thread, let libzmq send what it holds for at most ``timeout_s``, free all."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        end_at = time.monotonic() + timeout_s
        try:
            if not self._service.stop(timeout_s, _linger_ms(timeout_s)):
                self._error = "the replay thread did not end in time"
                return
            if self._monitor is not None:
                self._monitor.close()
            self._pub.close(_linger_ms(end_at - time.monotonic()))
            end_context(self._context)
        except zmq.ZMQError as exc:
            self._error = f"close failed: {exc}"
        finally:
            for owned in self._owned:
                owned.release()

    def describe(self) -> dict[str, Any]:
        """Return the real endpoints, the mode, the readers connected and what the service did."""
        service = self._service
        return {
            "endpoint": self.endpoint,
            "bind": self._binds,
            "replay_endpoint": self.replay_endpoint,
            "topic": self._settings.topic,
            "peers": None if self._endpoint.scheme == "inproc" else service.peers,
            "curve": self._curve is not None,
            "replies_sent": service.replies,
            "requests_ignored": service.ignored_requests,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the ZMQ sink of stream {self._stream} is closed")
        if self._pid != os.getpid():
            raise ClosedError(
                f"the ZMQ sink of stream {self._stream} was opened by process {self._pid}; a "
                f"forked child must open its own"
            )

    def _warn_if_open(self) -> None:
        exposed = [
            str(endpoint)
            for endpoint, bound in ((self._endpoint, self._binds), (self._replay, True))
            if endpoint is not None and bound and endpoint.is_wildcard
        ]
        if exposed and self._curve is None:
            log.warning(
                "%s listens on every interface without CURVE: whoever reaches it reads the token "
                "ids of every prompt. Bind a private address, set curve_secret_key_file, or leave "
                "the token ids out with omit_token_ids",
                " and ".join(exposed),
            )


def _linger_ms(left_s: float) -> int:
    """Return how long a socket may linger so that closing keeps its deadline."""
    return max(0, min(LINGER_MS, int(1000 * left_s) - 20))
