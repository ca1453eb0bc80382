"""Who owns a stream: reads the end of its partition for the highest epoch. One thread.

Several streams may share a partition, so records are told apart by their key. Never reads payloads.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from kafka import TopicPartition
from kafka.errors import AuthorizationError, KafkaTimeoutError

from kvevents_kafka.records import RecordDecoder, publisher_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvevents_kafka.client import Client

logger = logging.getLogger("kvevents")

FIRST_WINDOW: Final = 1_000
GROWTH: Final = 4
MOST_RECORDS: Final = 50_000
"""How far back a last epoch is looked for; beyond, the clock has surely passed it."""
LOOK_RECORDS: Final = 2_000
"""Most records of others read in one later look."""
REQUEST_TIMEOUT_MS: Final = 3_000
READ_TIMEOUT_S: Final = 10.0


class PartitionEnd:
    """The end of the partition of one stream.

    Args:
        client: A consumer for this purpose alone; the caller closes it.
        topic: The topic.
        partition: The stream's partition.
        key: The stream's record key.
        stopped: Tells that reading is no longer wanted.
    """

    def __init__(
        self, client: Client, topic: str, partition: int, key: bytes, stopped: Callable[[], bool]
    ) -> None:
        self._client = client
        self._consumer = client.api
        self._partition = TopicPartition(topic, partition)
        self._key = key
        self._stopped = stopped
        self._consumer.assign([self._partition])
        self._decoder = RecordDecoder()
        self._seen = 0
        """Offset up to which all has been looked at."""
        self._may_read = True
        self.newest_publisher = ""
        """Who wrote the highest epoch seen, in its own words."""

    @property
    def may_read(self) -> bool:
        """Return False once the brokers refused: ownership cannot be watched then."""
        return self._may_read

    def last_epoch(self) -> int | None:
        """Return the highest epoch near the end of the log; None if it holds none of our key.

        Raises:
            KafkaError: The brokers did not answer; ask again later.
        """
        begin, end = self._bounds()
        self._seen = end
        found: int | None = None
        upper, window = end, FIRST_WINDOW
        while upper > begin and end - upper < MOST_RECORDS and found is None:
            lower = max(begin, upper - window)
            found = self._highest(lower, upper)
            upper, window = lower, window * GROWTH
        return found

    def newer_epoch(self, own_run: tuple[int, int]) -> int | None:
        """Return the highest epoch of our key since the last look; None if there is none.

        Args:
            own_run: (first, next) offset of our latest records in the log, which are skipped.

        Raises:
            KafkaError: The brokers did not answer; ask again later.
        """
        begin, end = self._bounds()
        # A log shorter than what was seen is that of a topic made anew.
        seen = self._seen if self._seen <= end else begin
        first = max(seen, end - LOOK_RECORDS)
        upper = min(end, own_run[0]) if own_run[1] >= end else end
        found = self._highest(first, upper) if first < upper else None
        self._seen = end
        return found

    def _bounds(self) -> tuple[int, int]:
        partitions = [self._partition]
        begin = self._consumer.beginning_offsets(partitions, timeout_ms=REQUEST_TIMEOUT_MS)
        end = self._consumer.end_offsets(partitions, timeout_ms=REQUEST_TIMEOUT_MS)
        return begin[self._partition], end[self._partition]

    def _highest(self, first: int, upper: int) -> int | None:
        """Return the highest epoch of our key in ``first <= offset < upper``."""
        try:
            return self._read(first, upper)
        except AuthorizationError:
            self._may_read = False
            logger.warning(
                "kvevents: no permission to read topic %r: the epoch of stream %s comes from the "
                "clock, and a second publisher of it goes unnoticed here; grant READ on the topic",
                self._partition.topic,
                self._key.decode("ascii"),
            )
            return None

    def _read(self, first: int, upper: int) -> int | None:
        consumer = self._consumer
        consumer.seek(self._partition, first)
        found: int | None = None
        deadline = time.monotonic() + READ_TIMEOUT_S
        at = first
        while at < upper and not self._stopped():
            if time.monotonic() > deadline:
                raise KafkaTimeoutError(f"offsets {at} to {upper} could not be read in time")
            polled = consumer.poll(timeout_ms=200).get(self._partition, ())
            for record in polled:
                at = record.offset + 1
                if record.key == self._key and record.offset < upper:
                    found = self._higher(found, record.headers)
            if not polled:  # offsets without records: compacted, or a transaction's end
                at = max(at, consumer.position(self._partition, timeout_ms=200) or 0)
        return found

    def _higher(self, found: int | None, headers: list[tuple[str, bytes | None]]) -> int | None:
        try:
            epoch, _ = self._decoder.place(headers)
        except ValueError:
            return found
        if found is not None and epoch <= found:
            return found
        self.newest_publisher = publisher_of(headers)
        return epoch
