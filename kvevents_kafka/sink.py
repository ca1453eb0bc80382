"""The sending end of one stream: one key, one partition, confirmed by the broker.

``Link`` waits for brokers on a thread of its own; here nothing waits. The order of a stream rests on
three things: an idempotent producer with one partition; the first error ends a producer before it
sends what comes after; and a new producer takes nothing before core has offered again everything
that the old one left unconfirmed.
"""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from kafka.errors import KafkaError, MessageSizeTooLargeError

from kvevents_core import Receipt, Record, Sink, SinkHost, SinkStatus, StreamId
from kvevents_core.errors import ClosedError
from kvevents_kafka import client as clients
from kvevents_kafka.link import Link
from kvevents_kafka.records import HeaderEncoder, key_of, topic_of
from kvevents_kafka.refusals import TOO_LARGE, judge
from kvevents_kafka.window import Sent, Window

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvevents_kafka.client import Client
    from kvevents_kafka.settings import KafkaSettings

logger = logging.getLogger("kvevents")

SMALLEST_LIMIT: Final = 1_024
_COLD: Final = SinkStatus(ready=False, connected=False)


class KafkaSink(Sink):
    """Sends the records of ``stream`` to its partition.

    Args:
        settings: The settings.
        stream: The stream.

    Raises:
        ConfigError: Kafka does not allow the topic's name.
    """

    def __init__(self, settings: KafkaSettings, stream: StreamId) -> None:
        self._settings = settings
        self._stream = stream
        self._topic = topic_of(settings.topic, stream)
        self._key = key_of(stream)
        self._pid = os.getpid()
        self._headers = HeaderEncoder(stream, "", "")
        self._link: Link | None = None
        self._host: SinkHost | None = None
        self._producer: Client | None = None
        self._on_error: Callable[[object], None] = self._wake
        self._partition = 0
        self._alone = False
        self._window = Window()
        self._early: list[Receipt] = []
        """Receipts for records that never reached the producer."""
        self._generation = 0
        self._resume_seq: int | None = None
        """Nothing is taken before this record is offered again."""
        self._failed_seq: int | None = None
        self._tries = 0
        self._refused_limit: int | None = None
        self._known: tuple[tuple[object, ...], SinkStatus] = ((), _COLD)
        self._closed = False

    def start(self, host: SinkHost) -> None:
        """Begin to connect in the background."""
        self._host = host
        self._headers = HeaderEncoder(self._stream, host.engine, host.identity)
        self._link = Link(self._settings, self._stream, self._topic, host, self._window)
        if find_spec("crc32c") is None:
            logger.warning(
                "kvevents: without the package crc32c Kafka takes several times the CPU"
            )
        self._link.start()

    def status(self) -> SinkStatus:
        """Return the present state."""
        link = self._link
        if link is None:
            return _COLD
        limits = (self._settings.max_request_size, link.broker_limit, self._refused_limit)
        limit = min(each for each in limits if each is not None) - self._headers.overhead_bytes()
        facts = (
            link.ready,
            link.connected,
            link.last_epoch,
            link.superseded_by,
            self._generation,
            max(limit, SMALLEST_LIMIT),
            link.trouble,
        )
        # Core asks for every group: the object is made anew only if something changed.
        known, status = self._known
        if facts != known:
            status = SinkStatus(*facts)
            self._known = (facts, status)
        return status

    def send(self, records: Sequence[Record]) -> int:
        """Give a prefix of ``records`` to the producer."""
        if self._closed or self._pid != os.getpid():
            raise ClosedError(f"the sink of stream {self._stream} is closed")
        client = self._producer or self._adopt()
        if client is None or not records:
            return 0
        if self._resume_seq is not None:
            if records[0].seq > self._resume_seq:
                return 0
            self._resume_seq = None
        taken = 0
        with client.loop.one_wakeup():
            for record in records:
                if not self._give(client, record):
                    break
                taken += 1
            if taken:
                self._window.call_when_settled(self._wake)
        return taken

    def _give(self, client: Client, record: Record) -> bool:
        """Return whether the producer took ``record``, or it is lost for good."""
        try:
            future = client.api.send(
                self._topic,
                record.payload,
                self._key,
                self._headers.encode(record),
                self._partition,
            )
        except MessageSizeTooLargeError:
            self._early.append(Receipt(record.seq, record.seq, "too_large"))
            return True
        except (KafkaError, ValueError, AssertionError) as error:
            # The producer is ending, or the topic vanished: its next failure says which.
            if isinstance(error, ValueError) and not len(self._window):
                self._give_up(client, error, record.seq)
            return False
        future.add_errback(self._on_error)
        self._window.add(Sent(record.seq, len(record.payload), future))
        return True

    def _wake(self, _: object = None) -> None:
        if self._host is not None:
            self._host.wake()

    def _end_producer(self, client: Client, _: object) -> None:
        """Let nothing be sent behind a record that failed. The client's thread."""
        clients.abandon_producer(client)
        self._wake()

    def take_receipts(self) -> Sequence[Receipt]:
        """Return what was confirmed or refused since the last call."""
        receipts, self._early = self._early, []
        if self._producer is None:
            self._adopt()
            return receipts
        confirmed = self._window.take_confirmed()
        if confirmed:
            self._failed_seq = None
            receipts += confirmed
            if self._link is not None and self._link.trouble is not None:
                self._link.confirmed()
        failed = self._window.failed()
        if failed is not None and self._producer is not None:
            receipts += self._take_failure(self._producer, failed)
        elif self._has_forgotten():
            self._resume_seq = self._window.first_seq()
            trouble = "the client holds records and sends none of them; it is made anew"
            self._drop(self._producer, alone=self._alone, lasting=False, trouble=trouble)
        return receipts

    def _has_forgotten(self) -> bool:
        """Return whether the client was found to hold its records, and nothing moved since."""
        found = self._link.forgotten_after if self._link is not None else None
        return found is not None and found == self._window.confirmed and len(self._window) > 0

    def _take_failure(self, client: Client, failed: Sent) -> list[Receipt]:
        self._tries = self._tries + 1 if failed.seq == self._failed_seq else 1
        self._failed_seq = failed.seq
        error = failed.future.exception
        verdict = judge(error, self._topic, was_alone=self._alone, tries=self._tries)
        receipts = []
        if verdict.rejected is not None:
            receipts.append(Receipt(failed.seq, failed.seq, verdict.rejected))
            self._window.drop_first()
            if type(error).__name__ in TOO_LARGE:
                self._lower_limit(failed.size_bytes)
        self._resume_seq = self._window.first_seq()
        self._drop(client, alone=verdict.alone, lasting=verdict.lasting, trouble=verdict.text)
        return receipts

    def _lower_limit(self, refused_bytes: int) -> None:
        """Learn the brokers' limit from what they refused, where they do not tell it."""
        link = self._link
        if link is not None and link.broker_limit is None:
            known = self._refused_limit or self._settings.max_request_size
            self._refused_limit = max(min(known, refused_bytes * 9 // 10), SMALLEST_LIMIT * 16)

    def _give_up(self, client: Client, error: BaseException, seq: int) -> None:
        self._resume_seq = seq
        self._drop(client, alone=self._alone, lasting=True, trouble=str(error)[:200])

    def _drop(self, client: Client, *, alone: bool, lasting: bool, trouble: str) -> None:
        self._window.clear()
        self._producer = None
        if self._link is not None:
            self._link.replace(client, alone=alone, lasting=lasting, trouble=trouble)

    def _adopt(self) -> Client | None:
        """Take over a producer that became ready; core must offer all unconfirmed again."""
        offer = self._link.take_offer() if self._link is not None else None
        if offer is None:
            return None
        self._producer, self._partition, self._alone = offer
        self._on_error = partial(self._end_producer, offer.client)
        if self._resume_seq is not None:
            self._generation += 1
            self._wake()
        return self._producer

    def flush(self, timeout_s: float) -> bool:
        """Wait until the broker answered for everything taken, at most ``timeout_s``."""
        client = self._producer
        if client is not None and self._window and self._pid == os.getpid():
            try:
                client.api.flush(max(0.0, timeout_s))
            except KafkaError:
                return False
        return self._window.is_settled()

    def close(self, timeout_s: float) -> None:
        """End the producer and the background thread."""
        if self._closed or self._pid != os.getpid():
            self._closed = True
            return
        self._closed = True
        deadline = time.monotonic() + timeout_s
        link, client = self._link, self._producer
        if link is not None:
            link.stop()
        if client is not None:
            clients.close_producer(client, timeout_s / 2)
            self._producer = None
            self._on_error = self._wake
            self._window.clear()
        if link is not None and not link.join(max(0.05, deadline - time.monotonic())):
            logger.info(
                "kvevents: kafka-python still waits for a broker; its thread ends by itself"
            )

    def describe(self) -> dict[str, Any]:
        """Return facts for operators."""
        link, settings = self._link, self._settings
        return {
            "bootstrap_servers": list(settings.bootstrap_servers),
            "topic": self._topic,
            "partition": link.partition if link else None,
            "partitions": link.partitions if link else 0,
            "key": self._key.decode("ascii"),
            "client_id": link.client_id if link else settings.client_id,
            "security_protocol": settings.security_protocol,
            "compression_type": settings.compression_type,
            "acks": settings.acks,
            "superseded_by_publisher": link.superseder if link else "",
            "confirmed_records": self._window.confirmed,
            "rebuilt": self._generation,
        }
