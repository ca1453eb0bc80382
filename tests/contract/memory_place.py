"""The conformance kit's view of the memory backend: a hub of its own for each test."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from kvevents_core.backend import Sink
from kvevents_core.memory import MemoryHub, hub
from kvevents_core.naming import StreamId
from kvevents_core.testing import Observed, Observer, Peer, Place

_numbers = itertools.count()


class MemoryPeer(Peer):
    """A hub that stops and starts."""

    def __init__(self, log: MemoryHub) -> None:
        self._log = log

    def stop(self) -> None:
        """Stop the hub."""
        self._log.stop()

    def start(self) -> None:
        """Start it again, if it was stopped."""
        if not self._log.running:
            self._log.restart()


class MemoryObserver(Observer):
    """Looks into the hub's list of records."""

    def __init__(self, log: MemoryHub, stream: StreamId) -> None:
        self._log = log
        self._stream = stream
        self._looked_at = 0

    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return the stream's records that were not there at the last look."""
        deadline = time.monotonic() + timeout_s
        while True:
            records = list(self._log.records)[self._looked_at :]
            self._looked_at += len(records)
            mine = [r for r in records if r.stream == self._stream]
            if mine or time.monotonic() > deadline:
                return [Observed(r.seq, r.payload, r.epoch) for r in mine]
            time.sleep(0.001)

    def close(self) -> None:
        """Nothing to free."""


class MemoryPlace(Place):
    """A fresh hub."""

    crosses_processes = False
    bad_settings = ({"capacity": 0}, {"max_message_bytes": "many"}, {"hub": None})
    client_modules = ("zmq", "nats", "kafka", "redis")

    def __init__(self) -> None:
        super().__init__()
        name = f"conformance-{next(_numbers)}"
        self.settings = {"hub": name, "max_message_bytes": 200_000}
        self.log = hub(name)
        self.peer = MemoryPeer(self.log)
        self.refused_payload = b"too large" * 30_000

    def observe(self, sink: Sink, stream: StreamId) -> MemoryObserver:
        """Return a look into the hub."""
        return MemoryObserver(self.log, stream)
