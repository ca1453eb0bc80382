"""Read any number of streams from Redis with one blocking XREAD."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import redis

from kvevents_core import Malformed, ReaderOptions, Record, Source, StreamId, Trouble
from kvevents_core.errors import ClosedError, ConfigError
from kvevents_core.naming import parse_stream_id
from kvevents_redis.keys import INDEX, key_of, record_of
from kvevents_redis.settings import RedisSettings

PORTION = 256
LOOK_EVERY_S = 1.0


class RedisSource(Source):
    """Streams are found in the index, so that a rank or an engine may come later."""

    def __init__(self, settings: RedisSettings, reader: ReaderOptions) -> None:
        if isinstance(reader.start, str) and reader.start not in ("earliest", "latest"):
            raise ConfigError(
                f"redis cannot start at {reader.start!r}: IDs hold no time", key="start"
            )
        self._client: Any = redis.Redis.from_url(settings.url, **settings.client_options())
        self._url = settings.url
        self._reader = reader
        self._next: dict[StreamId, str] = {}
        self._look_at = 0.0
        self._first_look = True
        self._in_trouble = False
        self._closed = False

    def receive(self, timeout_s: float) -> Sequence[Record | Malformed | Trouble]:
        """Return the next entries of all streams."""
        if self._closed:
            raise ClosedError("the Redis source is closed")
        try:
            found = self._read(timeout_s)
        except (redis.RedisError, OSError) as error:
            time.sleep(min(timeout_s, 0.05))
            was, self._in_trouble = self._in_trouble, True
            return [] if was else [Trouble(0, f"{self._url}: {error}")]
        self._in_trouble = False
        return found

    def _read(self, timeout_s: float) -> list[Record | Malformed | Trouble]:
        if time.monotonic() >= self._look_at:
            self._look()
        if not self._next:
            time.sleep(min(timeout_s, 0.02))
            self._look_at = 0.0
            return []
        streams = {key_of(stream).encode(): stream for stream in self._next}
        wanted = {key_of(stream): last for stream, last in self._next.items()}
        block_ms = max(1, min(1000, int(1000 * timeout_s)))
        answer = self._client.xread(wanted, count=PORTION, block=block_ms) or []
        found: list[Record | Malformed | Trouble] = []
        for key, entries in answer.items() if isinstance(answer, dict) else answer:
            stream = streams[key]
            for entry_id, fields in entries:
                self._next[stream] = entry_id.decode()
                record = record_of(stream, entry_id, fields)
                found.append(record or Malformed(0, f"entry {entry_id!r} of {stream}"))
        return found

    def _look(self) -> None:
        start = self._reader.start
        known = start.get("streams", {}) if isinstance(start, dict) else {}
        for name in self._client.smembers(INDEX):
            stream = parse_stream_id(name.decode())
            if stream in self._next or not self._reader.wants(stream):
                continue
            self._next[stream] = known.get(str(stream), "0-0")
            key = key_of(stream)
            if start == "latest" and self._first_look and self._client.exists(key):
                self._next[stream] = self._client.xinfo_stream(key)["last-generated-id"].decode()
        self._first_look = False
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def position(self) -> dict[str, Any]:
        """Return the last ID read of each stream."""
        return {"streams": {str(stream): last for stream, last in self._next.items()}}

    def close(self) -> None:
        """Free the connection."""
        self._closed = True
        self._client.close()
