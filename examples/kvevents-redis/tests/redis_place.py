"""A place on a real Redis server for the conformance kit, behind a relay that can be cut."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from kvevents_core import Sink, StreamId
from kvevents_core.testing import Observed, Observer, Place, TcpRelay


class RedisObserver(Observer):
    """Reads a stream's entries with a plain client, beside the relay."""

    def __init__(self, client: Any, key: str) -> None:
        self._client = client
        self._key = key
        self._last = "-"

    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return the entries that are new."""
        deadline = time.monotonic() + timeout_s
        while not (entries := self._client.xrange(self._key, self._last)):
            if time.monotonic() > deadline:
                return []
            time.sleep(0.002)
        self._last = f"({entries[-1][0].decode()}"
        return [_observed(*entry) for entry in entries]

    def close(self) -> None:
        """Nothing to free: the client is the place's."""


def _observed(entry_id: bytes, fields: dict[bytes, bytes]) -> Observed:
    epoch, seq = (int(part) for part in entry_id.split(b"-"))
    flaw = None if set(fields) == {b"p"} else f"fields {sorted(fields)}"
    return Observed(seq, fields.get(b"p", b""), epoch, flaw=flaw)


class RedisPlace(Place):
    """Streams that no other test uses; the server serves the whole run."""

    client_modules = ("redis",)
    bad_settings = (
        {"url": "redis://"},
        {"url": "http://127.0.0.1:6379"},
        {"url": "redis://127.0.0.1:port"},
        {"url": "redis://user:secret@127.0.0.1:6379"},
        {"max_length": 0},
    )

    def __init__(self, port: int) -> None:
        super().__init__()
        self.relay = self.peer = TcpRelay("127.0.0.1", port)
        self.settings = {"url": f"redis://127.0.0.1:{self.relay.port}/0"}
        self.secrets = {"password": "correct-horse-battery-staple"}
        self._client = redis.Redis(port=port)

    def observe(self, sink: Sink, stream: StreamId) -> RedisObserver:
        """Return a plain reader of the stream's key."""
        return RedisObserver(self._client, f"kv-events:{stream}")

    def corrupt(self, stream: StreamId, sink: Sink) -> bool:
        """Add an entry with other fields, right behind the last one."""
        last = self._client.xinfo_stream(f"kv-events:{stream}")["last-generated-id"].decode()
        epoch, seq = last.split("-")
        self._client.xadd(f"kv-events:{stream}", {"x": "y"}, id=f"{epoch}-{int(seq) + 1}")
        return True

    def close(self) -> None:
        """End relay and client."""
        self.relay.close()
        self._client.close()
