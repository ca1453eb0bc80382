"""The conformance kit's view of ZMQ: raw SUB sockets, on ipc or tcp, dialling or bound."""

from __future__ import annotations

import socket as system
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import zmq

from kvevents_core.backend import Sink
from kvevents_core.naming import StreamId
from kvevents_core.testing import Observed, Observer, Peer, Place

SECRET = zmq.curve_keypair()[1].decode()


class ZmqObserver(Observer):
    """A SUB socket of a context of its own."""

    def __init__(self, endpoint: str, *, binds: bool) -> None:
        self._endpoint = endpoint
        self._binds = binds
        self._context = zmq.Context()
        self._sub: zmq.Socket[bytes] | None = None
        self.open()

    def open(self) -> None:
        """Make the socket, if there is none and the observer is not closed."""
        if self._sub is not None or self._context.closed:
            return
        self._sub = self._context.socket(zmq.SUB)
        self._sub.linger = 0
        self._sub.rcvhwm = 0
        self._sub.subscribe(b"")
        if self._binds:
            self._sub.bind(self._endpoint)
        else:
            self._sub.connect(self._endpoint)

    def shut(self) -> None:
        """Close the socket; what it had not read is gone."""
        if self._sub is not None:
            self._sub.close(0)
            self._sub = None

    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return what the socket received."""
        found: list[Observed] = []
        wait_ms = int(1000 * timeout_s)
        while self._sub is not None and self._sub.poll(0 if found else wait_ms):
            found.append(_observed(self._sub.recv_multipart()))
        return found

    def close(self) -> None:
        """Free the socket and its context."""
        self.shut()
        self._context.term()


def _observed(frames: list[bytes]) -> Observed:
    if len(frames) != 3 or len(frames[1]) != 8:
        return Observed(-1, b"", flaw=f"frames of {[len(frame) for frame in frames]} bytes")
    topic, seq, payload = frames
    return Observed(int.from_bytes(seq, "big"), payload, topic=topic)


class ZmqReaders(Peer):
    """The readers that a dialling publisher dials: they unbind and bind again."""

    def __init__(self) -> None:
        self.observers: list[ZmqObserver] = []

    def stop(self) -> None:
        """Unbind all."""
        for observer in self.observers:
            observer.shut()

    def start(self) -> None:
        """Bind all again."""
        for observer in self.observers:
            observer.open()


class ZmqPlace(Place):
    """Addresses of a test's own; the publisher binds them."""

    distinct_names = False
    no_peer = "readers come and go unnoticed; no peer of a binding publisher can be stopped"
    client_modules = ("zmq",)
    unavailable = (
        {"endpoint": "ipc:///proc/no-such-folder/events"},
        {"endpoint": "tcp://192.0.2.1:5557", "bind": True},
        {"replay_endpoint": "ipc:///proc/no-such-folder/replay"},
    )
    bad_settings = (
        {"endpoint": "tcp://127.0.0.1"},
        {"endpoint": "tcp://127.0.0.1:65534"},
        {"endpoint": "carrier-pigeon://roof"},
        {"endpoint": None},
        {"replay_endpoint": "tcp://*:none"},
        {"hwm": 0},
        {"curve_secret_key": "short"},
    )

    def __init__(self, settings: dict[str, Any], folder: str = "") -> None:
        super().__init__()
        self.settings = settings
        self.empty_topic = {"topic": ""}
        self.secrets = {"curve_secret_key": SECRET}
        self._folder = folder
        self._resources = ExitStack()

    @classmethod
    def on_ipc(cls, **keys: Any) -> ZmqPlace:
        """Return a place in a folder of its own."""
        resources = ExitStack()
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="kvevents-zmq-"))
        settings = {
            "endpoint": f"ipc://{folder}/events",
            "replay_endpoint": f"ipc://{folder}/replay",
            "topic": "kv-events",
            **keys,
        }
        place = cls(settings)
        place._resources = resources
        return place

    @classmethod
    def on_tcp(cls) -> ZmqPlace:
        """Return a place on free loopback ports, four in a row each for events and replay."""
        first = _free_ports(8)
        return cls(
            {
                "endpoint": f"tcp://127.0.0.1:{first}",
                "bind": True,
                "replay_endpoint": f"tcp://127.0.0.1:{first + 4}",
            }
        )

    def observe(self, sink: Sink, stream: StreamId) -> ZmqObserver:
        """Dial the sink."""
        return ZmqObserver(sink.describe()["endpoint"], binds=False)

    def corrupt(self, stream: StreamId, sink: Sink) -> bool:
        """Send what is no record over the sink's own socket: a reader hears nobody else."""
        pub: zmq.Socket[bytes] = sink._pub  # type: ignore[attr-defined]
        topic = str(self.settings.get("topic", "")).encode()
        for frames in ([topic], [topic, b"12345678"], [topic, b"1234567", b"x"], [topic] * 5):
            pub.send_multipart(frames)
        return True

    def close(self) -> None:
        """Remove the folder."""
        self._resources.close()


class ZmqDialledPlace(ZmqPlace):
    """Addresses that readers bind and the publisher dials; it serves no replay."""

    def __init__(self, settings: dict[str, Any], folder: str = "") -> None:
        super().__init__({**settings, "bind": False, "replay_endpoint": None}, folder)
        self.readers = ZmqReaders()
        self.peer = self.readers

    def observe(self, sink: Sink, stream: StreamId) -> ZmqObserver:
        """Bind where the sink dials."""
        observer = ZmqObserver(sink.describe()["endpoint"], binds=True)
        self.readers.observers.append(observer)
        return observer


def _free_ports(count: int) -> int:
    """Return the first of ``count`` adjacent ports that were free a moment ago."""
    while True:
        with ExitStack() as held:
            first = held.enter_context(system.create_server(("127.0.0.1", 0))).getsockname()[1]
            try:
                for port in range(first + 1, first + count):
                    held.enter_context(system.create_server(("127.0.0.1", port)))
            except (OSError, OverflowError):
                continue
            return int(first)
