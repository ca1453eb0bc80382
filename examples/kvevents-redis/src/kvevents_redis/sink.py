"""Send one stream to Redis: a queue, and a thread that owns the client and empties it in order."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import redis

from kvevents_core import Receipt, Record, Sink, SinkHost, SinkStatus, StreamId
from kvevents_core.errors import ClosedError
from kvevents_redis.keys import INDEX, epoch_of, id_of, key_of
from kvevents_redis.settings import RedisSettings

QUEUE = 1024
GROUP = 128
PAUSE_S = 0.1


class RedisSink(Sink):
    """What the queue holds stays there until the server has answered, whatever happens between."""

    def __init__(self, settings: RedisSettings, stream: StreamId) -> None:
        self._settings = settings
        self._stream = stream
        self._key = key_of(stream)
        self._client: Any = redis.Redis.from_url(settings.url, **settings.client_options())
        self._queue: deque[Record] = deque()
        self._receipts: list[Receipt] = []
        self._changed = threading.Condition()
        self._status = SinkStatus(ready=False, connected=False)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kvevents-redis", daemon=True)

    def start(self, host: SinkHost) -> None:
        """Begin to reach the server."""
        self._host = host
        self._thread.start()

    def status(self) -> SinkStatus:
        """Return what the thread found last."""
        return self._status

    def send(self, records: Sequence[Record]) -> int:
        """Queue what fits."""
        with self._changed:
            if self._closed:
                raise ClosedError(f"the Redis sink of stream {self._stream} is closed")
            if not self._status.connected:
                return 0
            fitting = records[: QUEUE - len(self._queue)]
            self._queue.extend(fitting)
            self._changed.notify_all()
        return len(fitting)

    def take_receipts(self) -> Sequence[Receipt]:
        """Return what the server answered."""
        with self._changed:
            receipts, self._receipts = self._receipts, []
        return receipts

    def flush(self, timeout_s: float) -> bool:
        """Wait until the server has answered everything."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue or self._closed, timeout_s)
            return not self._queue

    def close(self, timeout_s: float) -> None:
        """Stop the thread; a server that does not answer is hung up on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s / 2)
            self._client.connection_pool.disconnect()
            self._thread.join(timeout_s / 2)
        self._client.close()

    def describe(self) -> dict[str, Any]:
        """Return where the stream stands."""
        return {"url": self._settings.url, "key": self._key, "queued": len(self._queue)}

    # The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closed:
            try:
                if not self._status.connected:
                    self._connect()
                self._push()
            except Exception as error:  # also what a hung-up client raises in its own inside
                self._tell(self._status, connected=False, error=f"{self._settings.url}: {error}")
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, PAUSE_S)

    def _connect(self) -> None:
        self._client.sadd(INDEX, str(self._stream))
        last_epoch = self._status.last_epoch
        if not self._status.ready and self._client.exists(self._key):
            last_epoch = epoch_of(self._client.xinfo_stream(self._key)["last-generated-id"])
        self._tell(SinkStatus(ready=True, connected=True, last_epoch=last_epoch))

    def _push(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closed, PAUSE_S)
            group = list(islice(self._queue, GROUP))
        if not group:
            self._client.ping()
            return
        pipeline = self._client.pipeline(transaction=False)
        for record in group:
            pipeline.xadd(
                self._key,
                {"p": record.payload},
                id=id_of(record),
                maxlen=self._settings.max_length,
            )
        answers = pipeline.execute(raise_on_error=False)
        for record, answer in zip(group, answers, strict=True):
            receipt = self._receipt_of(record, answer)
            with self._changed:
                self._queue.popleft()
                self._receipts.append(receipt)
                self._changed.notify_all()
        self._host.wake()

    def _receipt_of(self, record: Record, answer: Any) -> Receipt:
        if not isinstance(answer, redis.RedisError):
            return Receipt(record.seq, record.seq)
        if "equal or smaller" not in str(answer):
            raise answer  # out of memory, read-only, not authorized: it stays queued
        stored = self._client.xrange(self._key, id_of(record), id_of(record))
        if stored and stored[0][1] == {b"p": record.payload}:
            return Receipt(record.seq, record.seq)
        last = epoch_of(self._client.xinfo_stream(self._key)["last-generated-id"])
        if last is not None and record.epoch is not None and last > record.epoch:
            self._tell(self._status, superseded_by=last)
        return Receipt(record.seq, record.seq, "not_above_the_last")

    def _tell(self, status: SinkStatus, **changes: Any) -> None:
        self._status = dataclasses.replace(status, **changes)
        self._host.wake()
