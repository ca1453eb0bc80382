"""The receiving end: every partition of the topic, read by assigned offsets, without groups.

A rebuildable index wants history, and committed offsets would hide it. Duplicates, gaps and epochs
are core's business; here records of other streams are left out and troubles told.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import TYPE_CHECKING, Any, Final

from kafka import TopicPartition
from kafka.errors import AuthorizationError, CorruptRecordError, KafkaError

from kvevents_core import Malformed, ReaderOptions, Record, Source, StreamId, Trouble
from kvevents_core.errors import ClosedError
from kvevents_kafka import client as clients
from kvevents_kafka.client_log import client_log
from kvevents_kafka.positions import Positions, parse_start
from kvevents_kafka.records import RecordDecoder, topic_of, topic_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvevents_core.backend import Arrival
    from kvevents_kafka.client import Client
    from kvevents_kafka.settings import KafkaSettings

MOST_RECORDS: Final = 2_000
SLICE_S: Final = 0.25
"""Longest single wait inside the client, so that new partitions and troubles are noticed."""
REFRESH_S: Final = 1.0
"""How often partitions are looked for while some are missing."""
DISCOVER_S: Final = 10.0
"""How often topics that match a pattern are looked for."""
REMIND_S: Final = 10.0
"""The same trouble is told again after so long."""
CHANNEL: Final = 0

_numbers: Final = itertools.count()


class KafkaSource(Source):
    """Reads the streams that ``reader`` asks for.

    Args:
        settings: The publisher's own settings.
        reader: What to read, and from where.

    Raises:
        ConfigError: Kafka does not allow the topic's name, ``reader.start`` is no start, or
            kafka-python refuses an option.
    """

    def __init__(self, settings: KafkaSettings, reader: ReaderOptions) -> None:
        self._reader = reader
        self._pattern = topic_pattern(settings.topic, reader)
        own = StreamId(reader.tenant, reader.model, reader.instance, 0)
        self._topics = set() if self._pattern else {topic_of(settings.topic, own)}
        start = parse_start(reader.start)
        number = next(_numbers)
        self._client_id = settings.client_id or f"kvevents-reader-{os.getpid()}-{number}"
        self._settings = settings
        self._client = self._open()
        client_log.watch(self._client_id)
        self._positions = Positions(self._client.api, start)
        self._assigned: set[TopicPartition] = set()
        self._topic_ids: dict[str, object] = {}
        self._has_begun = False
        """Whether partitions were ever found: those that come later are new."""
        self._decoder = RecordDecoder()
        self._was_missing = False
        """Whether the brokers have said that there is no such topic: all that comes is new."""
        self._refresh_at = 0.0
        self._discover_at = 0.0
        self._told: dict[str, float] = {}
        self._closed = False

    def _open(self) -> Client:
        client = clients.consumer(self._settings, self._client_id, max_poll_records=MOST_RECORDS)
        for topic in self._topics:
            client.ask_for(topic)
        return client

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        """Return what arrived, waiting at most about ``timeout_s`` for the first."""
        if self._closed:
            raise ClosedError("the Kafka source is closed")
        deadline = time.monotonic() + timeout_s
        arrivals: list[Arrival] = []
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                self._assign(left_s)
                polled = self._poll(min(left_s, SLICE_S))
            except CorruptRecordError as error:
                arrivals.append(Malformed(CHANNEL, f"skipped a corrupt record: {error}"))
                self._positions.skip_one(error)
            except KafkaError as error:
                self._tell(arrivals, _told_as(error))
                time.sleep(min(left_s, 0.05))
            except Exception as error:
                # Nothing of ours raises here: the client is in a state that it does not know.
                self._tell(arrivals, f"the client is made anew after {error!r}"[:200])
                self._begin_anew()
                time.sleep(min(left_s, 0.25))
            else:
                for records in polled:
                    arrivals.extend(self._decoded(records))
                self._tell_missing(arrivals)
            if arrivals or time.monotonic() >= deadline:
                return arrivals

    def _poll(self, timeout_s: float) -> Iterable[list[Any]]:
        if not self._assigned:
            time.sleep(min(timeout_s, 0.05))
            return ()
        return self._client.api.poll(timeout_ms=int(timeout_s * 1000)).values()  # type: ignore[no-any-return]

    def _decoded(self, records: list[Any]) -> Iterable[Arrival]:
        decoder = self._decoder
        for record in records:
            self._positions.note(record)
            try:
                stream = decoder.stream(record.headers)
                if not self._reader.wants(stream):
                    continue
                epoch, seq = decoder.place(record.headers)
            except ValueError as error:
                where = f"{record.topic}/{record.partition} offset {record.offset}"
                yield Malformed(CHANNEL, f"{where}: {error}")
                continue
            if record.value is None:
                yield Malformed(CHANNEL, f"{record.topic}/{record.partition}: a tombstone")
                continue
            yield Record(stream, epoch, seq, bytes(record.value), CHANNEL)

    # Partitions --------------------------------------------------------------------------------

    def _assign(self, timeout_s: float) -> None:
        """Assign what partitions there are by now; each is started where ``start`` says."""
        now = time.monotonic()
        if self._pattern is not None and now >= self._discover_at and self._client.is_connected():
            # Only while connected: the client waits for this answer without a limit.
            self._discover_at = now + DISCOVER_S
            self._topics |= {t for t in self._client.api.topics() if self._pattern.fullmatch(t)}
        for topic in self._topics:
            self._notice_new_life(topic)
        found = {
            TopicPartition(topic, partition)
            for topic in self._topics
            for partition in self._client.partitions(topic) or ()
        }
        new = found - self._assigned
        if new:
            is_first = not self._has_begun and not self._was_missing
            self._positions.resolve(new, is_first=is_first, timeout_s=timeout_s)
            self._has_begun = True
            self._client.api.assign(sorted(self._assigned | new))
            self._assigned |= new
            self._positions.seek(new)
        elif not found and now >= self._refresh_at:
            self._refresh_at = now + REFRESH_S
            self._was_missing = self._was_missing or self._client.is_connected()
            self._client.refresh()

    def _notice_new_life(self, topic: str) -> None:
        """Read ``topic`` whole if it was deleted and made anew: offsets of the old one mean nothing.

        kafka-python 3.0 would take the shorter log for a truncated one, and go on at its end.
        """
        topic_id, known = self._client.cluster.topic_id(topic), self._topic_ids.get(topic)
        if topic_id is None or topic_id == known:
            return
        self._topic_ids[topic] = topic_id
        if known is not None:
            self._positions.begin_again(p for p in self._assigned if p.topic == topic)

    def _begin_anew(self) -> None:
        """Go on with another client where this one stood."""
        clients.close_quietly(self._client)
        self._client = self._open()
        self._positions.move_to(self._client.api)
        self._assigned = set()

    # Troubles ----------------------------------------------------------------------------------

    def _tell_missing(self, arrivals: list[Arrival]) -> None:
        """Tell why nothing can be read, if something is known to be wrong."""
        if self._client.is_connected() and self._assigned:
            self._told.clear()
            return
        for topic in self._topics:
            trouble = self._client.trouble(topic)
            if trouble is not None:
                self._tell(arrivals, trouble)

    def _tell(self, arrivals: list[Arrival], reason: str) -> None:
        now = time.monotonic()
        if now - self._told.get(reason, -REMIND_S) >= REMIND_S:
            self._told[reason] = now
            arrivals.append(Trouble(CHANNEL, reason))

    def position(self) -> dict[str, Any] | None:
        """Return the next offset of each partition, by topic."""
        return self._positions.as_dict()

    def close(self) -> None:
        """End the client; quiet when called again."""
        if not self._closed:
            self._closed = True
            clients.close_quietly(self._client)
            client_log.forget(self._client_id)


def _told_as(error: KafkaError) -> str:
    """Return ``error`` in one line, for a person."""
    text = " ".join(str(error).split())[:200]
    if isinstance(error, AuthorizationError):
        return f"not authorized to read the topic: grant READ ({text})"
    return text
