"""The in-process backend: the smallest complete one, and the tests' stand-in for a broker log.

Streams live in named hubs inside this process. A hub can be stopped and started again like a
broker. Nothing here opens a socket or starts a thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pydantic import Field

from kvevents_core.backend import (
    CONTRACT_VERSION,
    Arrival,
    Backend,
    BackendSettings,
    Capabilities,
    ReaderOptions,
    Receipt,
    Record,
    Sink,
    SinkStatus,
    Source,
    Trouble,
)
from kvevents_core.errors import ClosedError
from kvevents_core.hookspecs import hookimpl
from kvevents_core.naming import StreamId

if TYPE_CHECKING:
    from collections.abc import Sequence

_PORTION: Final = 512


class MemorySettings(BackendSettings):
    """Keys of the memory backend."""

    hub: str = "default"
    """Name of the hub inside this process."""
    capacity: int = Field(default=100_000, ge=1)
    """Records a hub keeps; the oldest go first, as with a broker's retention."""
    max_message_bytes: int | None = Field(default=None, ge=1)
    """Largest payload the hub takes."""

    def leaves_process(self) -> bool:
        """Return False: a hub is memory of this process."""
        return False


class MemoryHub:
    """One log of records for all streams, in the order they came."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.running = True
        self.records: deque[Record] = deque()
        self.first_offset = 0
        self._epochs: dict[StreamId, int] = {}
        self.generation = 0
        """Raised by ``restart``: what sinks had sent but not seen confirmed may be gone."""

    def stop(self) -> None:
        """Become unreachable; what is stored stays."""
        with self.changed:
            self.running = False

    def restart(self) -> None:
        """Become reachable again."""
        with self.changed:
            self.running = True
            self.generation += 1
            self.changed.notify_all()

    def append(self, records: Sequence[Record], capacity: int) -> bool:
        """Store ``records``, or return False if the hub is stopped."""
        with self.changed:
            if not self.running:
                return False
            self.records.extend(records)
            for record in records:
                if record.epoch is not None:
                    self._epochs[record.stream] = max(
                        record.epoch, self._epochs.get(record.stream, 0)
                    )
            while len(self.records) > capacity:
                self.records.popleft()
                self.first_offset += 1
            self.changed.notify_all()
            return True

    def last_epoch(self, stream: StreamId) -> int | None:
        """Return the highest epoch ever stored of ``stream``."""
        with self.changed:
            return self._epochs.get(stream)


_hubs: dict[str, MemoryHub] = {}


def hub(name: str = "default") -> MemoryHub:
    """Return the hub called ``name`` of this process."""
    return _hubs.setdefault(name, MemoryHub())


class MemorySink(Sink):
    """Appends to a hub; confirms at once."""

    def __init__(self, settings: MemorySettings, stream: StreamId) -> None:
        self._settings = settings
        self._stream = stream
        self._hub = hub(settings.hub)
        self._receipts: list[Receipt] = []
        self._closed = False
        self._last_epoch: int | None = None
        self._ready = False
        self._epoch: int | None = None
        self._superseded_by: int | None = None

    def status(self) -> SinkStatus:
        """Return whether the hub runs and who owns the stream."""
        if not self._ready and self._hub.running:
            self._last_epoch = self._hub.last_epoch(self._stream)
            self._ready = True
        return SinkStatus(
            ready=self._ready,
            connected=self._hub.running,
            last_epoch=self._last_epoch,
            superseded_by=self._superseded_by,
            generation=self._hub.generation,
            max_message_bytes=self._settings.max_message_bytes,
            error=None if self._hub.running else f"hub {self._settings.hub!r} is stopped",
        )

    def send(self, records: Sequence[Record]) -> int:
        """Append ``records``; 0 while the hub is stopped."""
        if self._closed:
            raise ClosedError(f"the sink of stream {self._stream} is closed")
        if not records:
            return 0
        newest = self._hub.last_epoch(self._stream)
        ours = records[0].epoch
        if newest is not None and ours is not None and newest > ours:
            self._superseded_by = newest
            return 0
        limit = self._settings.max_message_bytes
        fitting = [r for r in records if limit is None or len(r.payload) <= limit]
        if not self._hub.append(fitting, self._settings.capacity):
            return 0
        if len(fitting) == len(records):
            self._receipts.append(Receipt(records[0].seq, records[-1].seq))
        else:
            self._receipts += [self._receipt_of(record, limit) for record in records]
        return len(records)

    @staticmethod
    def _receipt_of(record: Record, limit: int | None) -> Receipt:
        too_large = limit is not None and len(record.payload) > limit
        return Receipt(record.seq, record.seq, "too_large" if too_large else None)

    def take_receipts(self) -> Sequence[Receipt]:
        """Return what became of the records of each ``send``."""
        receipts, self._receipts = self._receipts, []
        return receipts

    def close(self, timeout_s: float) -> None:
        """Refuse from now on."""
        self._closed = True

    def describe(self) -> dict[str, Any]:
        """Return the hub's name."""
        return {"hub": self._settings.hub}


class MemorySource(Source):
    """Reads a hub from the start or from now."""

    def __init__(self, settings: MemorySettings, reader: ReaderOptions) -> None:
        self._name = settings.hub
        self._hub = hub(settings.hub)
        self._reader = reader
        self._closed = False
        self._told_stopped = False
        with self._hub.changed:
            end = self._hub.first_offset + len(self._hub.records)
        start = reader.start
        self._offset = end if start == "latest" else 0
        if isinstance(start, dict):
            self._offset = int(start["offset"])

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        """Return the next portion of the wanted streams."""
        deadline = time.monotonic() + timeout_s
        with self._hub.changed:
            while True:
                if self._closed:
                    raise ClosedError("the source is closed")
                if not self._hub.running and not self._told_stopped:
                    self._told_stopped = True
                    return [Trouble(0, f"hub {self._name!r} is stopped")]
                found = self._read() if self._hub.running else []
                left_s = deadline - time.monotonic()
                if found or left_s <= 0:
                    return found
                self._hub.changed.wait(left_s)

    def _read(self) -> list[Arrival]:
        self._told_stopped = False
        first = self._hub.first_offset
        self._offset = max(self._offset, first)
        found: list[Arrival] = []
        while self._offset < first + len(self._hub.records) and len(found) < _PORTION:
            record = self._hub.records[self._offset - first]
            self._offset += 1
            if self._reader.wants(record.stream):
                found.append(record)
        return found

    def position(self) -> dict[str, Any]:
        """Return the offset in the hub's log."""
        return {"offset": self._offset}

    def close(self) -> None:
        """Refuse from now on."""
        with self._hub.changed:
            self._closed = True
            self._hub.changed.notify_all()


class MemoryBackend(Backend[MemorySettings]):
    """Registers as ``memory``."""

    name: ClassVar[str] = "memory"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities(
        confirms=True, durable=True, carries_epoch=True
    )
    settings_model: ClassVar[type[BackendSettings]] = MemorySettings

    def open_sink(self, settings: MemorySettings, stream: StreamId) -> MemorySink:
        """Return a sink on the hub named in ``settings``."""
        return MemorySink(settings, stream)

    def open_source(self, settings: MemorySettings, reader: ReaderOptions) -> MemorySource:
        """Return a source on the hub named in ``settings``."""
        return MemorySource(settings, reader)


@hookimpl
def kvevents_backend() -> MemoryBackend:
    """Return the memory backend."""
    return MemoryBackend()
