"""The background thread of one stream: makes producers, finds the last epoch, watches the owner.

It waits for brokers so that the sender thread never does. A finished producer is offered to the
sender thread, which takes it over with ``take_offer`` and hands it back with ``replace``.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from kafka.errors import KafkaError
from kafka.partitioner import DefaultPartitioner

from kvevents_kafka import client as clients
from kvevents_kafka.client_log import client_log
from kvevents_kafka.ownership import PartitionEnd
from kvevents_kafka.records import key_of
from kvevents_kafka.topics import create_topic, size_limit

if TYPE_CHECKING:
    from kvevents_core import SinkHost, StreamId
    from kvevents_kafka.client import Client
    from kvevents_kafka.settings import KafkaSettings
    from kvevents_kafka.window import Window

logger = logging.getLogger("kvevents")

TICK_S: Final = 0.1
RETRY_S: Final = 1.0
"""Pause after trouble; also the rhythm of asking for a topic that does not exist."""
UNREACHED_S: Final = 2.0
"""Records that wait so long without any connection are trouble, whatever the client says."""
FORGOTTEN_S: Final = 5.0
"""So long after a request would have timed out, records that nobody complains of are forgotten ones:
kafka-python 3.0.12 may drop what it has for a broker that leaves the metadata just then
(``UnknownBrokerIdError`` in its thread), and fails it only after ``delivery_timeout_ms``."""
REMIND_S: Final = 60.0
"""The same trouble is logged again after so long."""


class Offer(NamedTuple):
    """A producer that is ready, for the sender thread."""

    client: Client
    partition: int
    alone: bool
    """Whether it sends records one by one."""


class Link:
    """The connection of one stream to its partition.

    Args:
        settings: The settings.
        stream: The stream.
        topic: Its topic.
        host: What core offers.
        window: What the sender thread has under way; only looked at.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        stream: StreamId,
        topic: str,
        host: SinkHost,
        window: Window,
    ) -> None:
        self._settings = settings
        self._stream = stream
        self._topic = topic
        self._host = host
        self._window = window
        self.client_id = settings.client_id or f"kvevents-{stream.instance}-{stream.rank}"
        # Written by this thread, read by any: each is one reference, replaced whole.
        self.ready = False
        self.connected = False
        self.last_epoch: int | None = None
        self.superseded_by: int | None = None
        self.superseder = ""
        self.broker_limit: int | None = None
        self.partition: int | None = None
        self.partitions = 0
        self.forgotten_after: int | None = None
        """How many records were confirmed when the client, connected to the partition's leader and
        content, was found to send nothing of what it was given; None while it does its work."""
        self.trouble: str | None = None
        self._trouble_lasts = False
        """True if only a confirmed record ends the trouble, not a connection alone."""
        self._told: tuple[str | None, float] = (None, 0.0)
        self._lock = threading.Lock()
        self._offer: Offer | None = None
        self._retired: list[Client] = []
        self._wants_producer = True
        self._alone = False
        self._not_before = 0.0
        self._candidate: Client | None = None
        self._asked_at = 0.0
        self._current: Client | None = None
        self._end: PartitionEnd | None = None
        self._end_client: Client | None = None
        self._look_at = 0.0
        self._reached_at = 0.0
        self._confirmed_before = 0
        self._moved_at = 0.0
        self._looked_at = 0.0
        self._patience = 1
        self._nets: clients.Nets = []
        """What this thread may wait in."""
        self._stopping = threading.Event()
        self._nudged = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"kvevents-kafka-{stream.rank}", daemon=True
        )

    def start(self) -> None:
        """Start the thread."""
        client_log.watch(self.client_id)
        self._thread.start()

    def take_offer(self) -> Offer | None:
        """Return a producer that became ready; the sender thread owns it until ``replace``."""
        with self._lock:
            offer, self._offer = self._offer, None
            return offer

    def replace(self, old: Client, *, alone: bool, lasting: bool, trouble: str) -> None:
        """Take back a producer that is of no use and make another; sender thread."""
        clients.abandon_producer(old)
        self._set_trouble(trouble)
        self._trouble_lasts = True
        with self._lock:
            self._retired.append(old)
            self._wants_producer = True
            self._alone = alone
            self._not_before = time.monotonic() + (RETRY_S if lasting else 0.0)
        self._nudged.set()

    def confirmed(self) -> None:
        """Note that the brokers confirmed records: whatever the trouble was, it is over."""
        if self.trouble is not None:
            client_log.clear(self.client_id)
            self._set_trouble(None)
            self._trouble_lasts = False

    def stop(self) -> None:
        """Ask the thread to end, now or as soon as the client lets go of it."""
        self._stopping.set()
        self._nudged.set()

    def join(self, timeout_s: float) -> bool:
        """Wait for the thread, at last by ending what it waits for; True if it ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s / 2)
        if self._thread.is_alive():
            clients.end_waiting(self._nets)
            self._thread.join(timeout_s / 2)
        return not self._thread.is_alive()

    # The thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._tick()
                except Exception as error:
                    if self._stopping.is_set():
                        break
                    self._set_trouble(self._explain(error))
                    self._stopping.wait(RETRY_S)
                self._nudged.wait(TICK_S)
                self._nudged.clear()
        finally:
            self._close()

    def _tick(self) -> None:
        self._close_retired()
        if self._wants_producer and time.monotonic() >= self._not_before:
            self._make_producer()
        current = self._current
        if current is not None:
            self._note_connection(current)
            if self._end is not None and self.connected and time.monotonic() >= self._look_at:
                self._look_at = time.monotonic() + self._settings.owner_check_s
                self._look_for_owner(self._end)

    def _make_producer(self) -> None:
        if self._candidate is None:
            self._candidate = clients.producer(
                self._settings, self.client_id, batch_size=0 if self._alone else None
            )
            if self._settings.create_topics:
                self._ask_admin(self._candidate, create=True)
            self._candidate.ask_for(self._topic)
        candidate = self._candidate
        partitions = candidate.partitions(self._topic)
        if partitions is None:
            self._wait_for_topic(candidate)
            return
        self._prepare(candidate, partitions)
        partition = self.partition
        assert partition is not None
        self._candidate, self._current = None, candidate
        self._reached_at = self._moved_at = time.monotonic()
        self.forgotten_after = None
        with self._lock:
            self._offer = Offer(candidate, partition, self._alone)
            self._wants_producer = False
        self.connected = self.ready = True
        if not self._trouble_lasts:
            self.confirmed()
        self._host.wake()

    def _wait_for_topic(self, candidate: Client) -> None:
        self.connected = candidate.is_connected()
        trouble = candidate.trouble(self._topic)
        if trouble is not None:
            self._set_trouble(trouble)
        if time.monotonic() - self._asked_at >= RETRY_S:
            self._asked_at = time.monotonic()
            candidate.refresh()

    def _prepare(self, candidate: Client, partitions: list[int]) -> None:
        """Find out what must be known before the first record: partition, limit, last epoch."""
        key = key_of(self._stream)
        if self.partition is None or self.partition not in partitions:
            self.partition = int(
                DefaultPartitioner().partition(
                    self._topic, None, key, None, None, candidate.cluster
                )
            )
        elif len(partitions) != self.partitions:
            logger.warning(
                "kvevents: topic %r now has %d partitions (it had %d): stream %s keeps partition "
                "%d until its publisher restarts",
                self._topic,
                len(partitions),
                self.partitions,
                self._stream,
                self.partition,
            )
        self.partitions = len(partitions)
        self._ask_admin(candidate, create=False)
        if self._end is None:
            self._open_end(self.partition, key)

    def _open_end(self, partition: int, key: bytes) -> None:
        if self._end_client is None:
            self._end_client = clients.consumer(
                self._settings,
                self.client_id,
                self._nets,
                check_crcs=False,
                fetch_max_wait_ms=100,
                max_partition_fetch_bytes=262_144,
                max_poll_records=1_000,
            )
        end = PartitionEnd(
            self._end_client, self._topic, partition, key, self._stopping.is_set
        )  # fmt: skip
        self.last_epoch = end.last_epoch()
        self._end = end
        self._look_at = time.monotonic() + self._settings.owner_check_s

    def _ask_admin(self, candidate: Client, *, create: bool) -> None:
        admin = None
        try:
            admin = clients.admin(self._settings, self.client_id, self._nets)
            if create and create_topic(admin, self._settings, self._topic):
                logger.info("kvevents: created topic %r", self._topic)
            if not create:
                self.broker_limit = size_limit(admin, self._topic)
        except KafkaError as error:
            # Neither is needed to send; if the topic is missing, waiting for it says so.
            if create:
                why = candidate.trouble(self._topic) or self._explain(error)
                self._set_trouble(f"topic {self._topic!r} could not be created: {why}")
        finally:
            if admin is not None:
                clients.close_quietly(admin)
                if admin.net in self._nets:
                    self._nets.remove(admin.net)

    def _note_connection(self, current: Client) -> None:
        usable = current.partitions(self._topic) is not None
        reached = usable and current.is_connected()
        if reached or not len(self._window):
            self._reached_at = time.monotonic()
        trouble = None if reached else current.trouble(self._topic)
        self._look_for_forgotten(current)
        if trouble is None and time.monotonic() - self._reached_at > UNREACHED_S:
            trouble = "no connection to the brokers"
        connected = usable and trouble is None  # an idle client may have no connection open
        if trouble is not None:
            self._set_trouble(trouble)
        elif connected and not self._trouble_lasts:
            self.confirmed()
        if connected != self.connected:
            self.connected = connected
            self._host.wake()

    def _look_for_forgotten(self, current: Client) -> None:
        now, confirmed, settings = time.monotonic(), self._window.confirmed, self._settings
        has_moved = confirmed != self._confirmed_before
        if has_moved:
            self._confirmed_before, self._patience = confirmed, 1
        was_away = now - self._looked_at > 10 * TICK_S  # what happened meanwhile was not seen
        self._looked_at = now
        if has_moved or was_away or not len(self._window) or not self._is_content(current):
            self._moved_at = now
        patience_s = (settings.linger_ms + settings.request_timeout_ms) / 1000 + FORGOTTEN_S
        if now - self._moved_at <= patience_s * self._patience:
            self.forgotten_after = None
        elif self.forgotten_after is None:
            self.forgotten_after = confirmed
            self._patience *= 2
            self._host.wake()

    def _is_content(self, current: Client) -> bool:
        """Return whether nothing that is known keeps the client from sending."""
        partition = self.partition
        leads = partition is not None and current.reaches_leader(self._topic, partition)
        return leads and current.trouble(self._topic) is None

    def _look_for_owner(self, end: PartitionEnd) -> None:
        ours = self._host.epoch()
        if ours is None or not end.may_read:
            return
        try:
            newest = end.newer_epoch(self._window.own_run)
        except KafkaError:
            return  # the next look covers this one
        if newest is not None and newest > ours:
            self.superseder = end.newest_publisher
            self.superseded_by = newest
            self._host.wake()

    def _explain(self, error: BaseException) -> str:
        cause = client_log.cause(self.client_id)
        return cause or " ".join(str(error).split())[:200] or type(error).__name__

    def _set_trouble(self, trouble: str | None) -> None:
        self.trouble = trouble
        told, at = self._told
        now = time.monotonic()
        if trouble is None:
            if told is not None:
                logger.info("kvevents: stream %s: Kafka takes records again", self._stream)
            self._told = (None, now)
        elif trouble != told or now - at >= REMIND_S:
            logger.warning(
                "kvevents: stream %s waits for Kafka at %s: %s",
                self._stream,
                ",".join(self._settings.bootstrap_servers),
                trouble,
            )
            self._told = (trouble, now)
            self._host.wake()

    def _close_retired(self) -> None:
        with self._lock:
            retired, self._retired = self._retired, []
        for client in retired:
            if client is self._current:
                self._current = None
            clients.close_producer(client, 2.0)

    def _close(self) -> None:
        """End what this thread holds; the sender thread ends the producer it took."""
        offer = self.take_offer()
        with self._lock:
            waiting, self._retired = self._retired, []
        waiting += [offer.client] if offer else []
        waiting += [self._candidate] if self._candidate else []
        for client in waiting:
            clients.close_producer(client, 0.5)
        if self._end_client is not None:
            clients.close_quietly(self._end_client)
        client_log.forget(self.client_id)
        # A client's errors hold the sockets of connections that failed.
        self._candidate = self._current = self._end_client = self._end = None
