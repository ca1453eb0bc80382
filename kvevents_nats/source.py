"""The receiving end: any number of streams of one tenant, by one subject with wildcards.

JetStream mode reads the log from its start, a time or a position, and goes on behind the last
message read whatever happens to server or connection. Core mode hears what is published while it
listens, no more. Holes, restarts and conflicts are for the reader's core to see; what they would
look like without this module's help is in ``reorder``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from kvevents_core import Malformed, ReaderOptions, Record, Source, StreamId, Trouble
from kvevents_core.backend import Arrival
from kvevents_core.errors import ClosedError, ConfigError
from kvevents_nats.arrivals import Arrivals
from kvevents_nats.client import round_trip
from kvevents_nats.connection import Connection, NotPermittedError
from kvevents_nats.jetstream import ApiError, JetStreamApi, StreamError, StreamFacts
from kvevents_nats.pull import BATCH, ConsumerLostError, Puller
from kvevents_nats.reorder import Reorder, Stored
from kvevents_nats.settings import NatsSettings
from kvevents_nats.subjects import HeaderDecoder, reader_filter, stream_name, subject_of

CHANNEL: Final = 0
RETRY_S: Final = 0.5
"""Pause before a missing stream is looked for again."""
LATE_S: Final = 3.0
"""How much longer than an acknowledgement a late record is waited for."""
HELD: Final = 4096
CLOSE_S: Final = 1.0
MOST_KNOWN: Final = 10_000


class NatsSource(Source):
    """Reads what ``reader`` asks for.

    Args:
        settings: The backend's settings, the publisher's own.
        reader: Which streams, and from where.

    Raises:
        ConfigError: ``reader.start`` is none of the known forms.
    """

    def __init__(self, settings: NatsSettings, reader: ReaderOptions) -> None:
        self._settings = settings
        self._reader = reader
        self._filter = reader_filter(settings.subject, reader)
        self._stream = stream_name(settings.stream, reader.tenant, reader.model)
        self._start = _read_start(reader.start)
        self._log_seq: int | None = None
        self._created: str | None = None
        self._resume_from(reader.start)
        self._closed = False
        self._said: str | None = None
        self._arrivals = Arrivals()
        self._arrivals.position = self._log_seq
        self._decoder = HeaderDecoder()
        self._known: dict[StreamId, tuple[str, bool]] = {}
        self._reorder = Reorder(settings.ack_timeout_s + LATE_S, HELD)
        self._puller: Puller | None = None
        self._dropping = False
        self._starved = False
        session = self._read_log if settings.mode == "jetstream" else self._listen
        self._link = Connection(
            settings,
            f"kvevents reader of {self._filter}",
            session=session,
            changed=self._on_link_change,
        )
        self._link.start()

    # The reader's thread -----------------------------------------------------------------------

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        """Return what arrived, waiting at most ``timeout_s`` for the first."""
        if self._closed:
            raise ClosedError(f"the NATS source of {self._filter} is closed")
        taken = self._arrivals.take(timeout_s)
        if taken and self._starved:
            self._starved = False
            self._link.post(self._kick)
        return taken

    def position(self) -> dict[str, Any] | None:
        """Return the place in the JetStream stream behind what was received."""
        seq = self._arrivals.position
        if self._settings.mode != "jetstream" or seq is None:
            return None
        return {"stream": self._stream, "seq": seq, "created": self._created or ""}

    def close(self) -> None:
        """Close the connection and end the thread."""
        self._closed = True
        self._arrivals.wake()
        self._link.stop(CLOSE_S)

    # Loop thread -------------------------------------------------------------------------------

    def _on_link_change(self) -> None:
        if not self._link.connected and self._link.error is not None:
            self._say(self._link.error)

    def _say(self, trouble: str) -> None:
        if trouble != self._said:
            self._said = trouble
            self._arrivals.put(Trouble(CHANNEL, trouble))

    def _kick(self) -> None:
        if self._puller is not None:
            self._puller.kick()

    async def _read_log(self, nc: Any) -> None:
        puller = Puller(
            self._link,
            nc,
            JetStreamApi(self._link, nc, self._settings.domain),
            stream=self._stream,
            subject=self._filter,
            take=self._take_stored,
            room=self._room,
            tick=self._release_due,
        )
        self._puller = puller
        await puller.open()
        while True:
            try:
                facts = await puller.facts()
                await puller.read(self._consumer_start(facts), self._on_opened)
            except ConsumerLostError as exc:
                self._link.note(f"reading {self._stream!r} anew: {exc}")
            except (StreamError, ApiError, NotPermittedError) as exc:
                # Readers often come before the first publisher: no stream is no alarm.
                missing = isinstance(exc, StreamError)
                self._link.note(str(exc), logging.INFO if missing else logging.WARNING)
                self._say(str(exc))
            await asyncio.sleep(RETRY_S)

    def _on_opened(self) -> None:
        self._said = None
        self._link.note(None)

    def _room(self) -> int:
        room = self._arrivals.room()
        self._starved = room < BATCH
        return room

    def _consumer_start(self, facts: StreamFacts | None) -> dict[str, Any]:
        """Return where a consumer has to begin, as consumer configuration."""
        if facts is not None:
            self._check_same_log(facts)
            if self._start == {"deliver_policy": "new"} and self._log_seq is None:
                # Fixed now, so that nothing is skipped if this connection fails at once.
                self._log_seq = facts.last_seq
        if self._log_seq is not None:
            return {"deliver_policy": "by_start_sequence", "opt_start_seq": self._log_seq + 1}
        return self._start

    def _check_same_log(self, facts: StreamFacts) -> None:
        if self._created and facts.created != self._created and self._log_seq is not None:
            self._say(f"stream {self._stream!r} was created anew: what it held before is gone")
            self._log_seq = 0
        elif self._log_seq is not None and facts.last_seq < self._log_seq:
            self._say(f"stream {self._stream!r} has lost its last messages")
            self._log_seq = facts.last_seq
        self._created = facts.created

    def _take_stored(self, message: Any, log_seq: int) -> None:
        self._log_seq = log_seq
        read = self._read(message)
        if isinstance(read, Malformed):
            self._arrivals.put(read, self._safe_position())
        elif read is not None:
            record, after = read
            for stored in self._reorder.push(Stored(record, after, log_seq), time.monotonic()):
                self._arrivals.put(stored.record, self._safe_position())

    def _release_due(self) -> None:
        for stored in self._reorder.due(time.monotonic()):
            self._arrivals.put(stored.record, self._safe_position())

    def _safe_position(self) -> int | None:
        """Return up to where the log need not be read again."""
        held = self._reorder.lowest_held()
        return self._log_seq if held is None else held - 1

    def _read(self, message: Any) -> tuple[Record, int | None] | Malformed | None:
        try:
            place = self._decoder.decode(message.headers)
        except ValueError as exc:
            return Malformed(CHANNEL, str(exc))
        subject, is_wanted = self._known.get(place.stream) or self._look_at(place.stream)
        if subject != message.subject:
            # Anybody may write any name into a header; the server checks only subjects.
            return Malformed(CHANNEL, f"stream {place.stream} came on another's subject")
        if not is_wanted:
            return None
        return Record(place.stream, place.epoch, place.seq, message.data, CHANNEL), place.after

    def _look_at(self, stream: StreamId) -> tuple[str, bool]:
        """Return the subject of ``stream`` and whether it was asked for; remembered."""
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        seen = (subject_of(self._settings.subject, stream), self._reader.wants(stream))
        self._known[stream] = seen
        return seen

    # Loop thread, core mode --------------------------------------------------------------------

    async def _listen(self, nc: Any) -> None:
        await nc.subscribe(self._filter, cb=self._on_live)
        await round_trip(nc, self._settings.ack_timeout_s)
        self._link.check_permitted("subscribe", self._filter)
        self._on_opened()
        await asyncio.Event().wait()

    async def _on_live(self, message: Any) -> None:
        read = self._read(message)
        if read is None:
            return
        if self._arrivals.is_full():
            if not self._dropping:
                self._dropping = True
                self._arrivals.put(Trouble(CHANNEL, "the reader is too slow: records are dropped"))
            return
        self._dropping = False
        self._arrivals.put(read if isinstance(read, Malformed) else read[0])

    def _resume_from(self, start: str | dict[str, Any]) -> None:
        if isinstance(start, dict):
            self._log_seq = int(start["seq"])
            self._created = str(start.get("created", "")) or None


def _read_start(start: str | dict[str, Any]) -> dict[str, Any]:
    """Return ``start`` as consumer configuration (nats-server 2.15, ``ConsumerConfig``)."""
    if isinstance(start, dict):
        if not isinstance(start.get("seq"), int) or start["seq"] < 0:
            raise ConfigError(f"start {start!r} is no position of a NATS source", key="start")
        return {"deliver_policy": "all"}
    if start == "earliest":
        return {"deliver_policy": "all"}
    if start == "latest":
        return {"deliver_policy": "new"}
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as exc:
        raise ConfigError(
            f"start {start!r} is neither earliest, latest nor an ISO 8601 time", key="start"
        ) from exc
    if moment.tzinfo is None:
        moment = moment.astimezone()
    utc = moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return {"deliver_policy": "by_start_time", "opt_start_time": utc}
