"""Where reading begins, and how far it has come: one offset per partition. One thread."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kafka import TopicPartition

from kvevents_core import ConfigError

Start = str | int | dict[TopicPartition, int]
"""``earliest``, ``latest``, Unix milliseconds, or offsets."""
_PATIENCE_MS: Final = 3_000
_PARTITION: Final = re.compile(r"topic='([^']*)', partition=(\d+)")


def parse_start(start: str | Mapping[str, Any]) -> Start:
    """Return ``ReaderOptions.start`` in Kafka's terms; a time without a zone is UTC.

    Raises:
        ConfigError: It is none of what ``start`` may be.
    """
    if isinstance(start, str):
        if start in ("earliest", "latest"):
            return start
        try:
            when = datetime.fromisoformat(start)
        except ValueError:
            raise _no_start(start) from None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return max(0, int(when.timestamp() * 1000))
    try:
        return {
            TopicPartition(str(topic), int(partition)): int(offset)
            for topic, partitions in start.items()
            for partition, offset in partitions.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise _no_start(start) from None


def _no_start(start: object) -> ConfigError:
    return ConfigError(
        f"start {start!r} is neither 'earliest', 'latest', an ISO time such as "
        "2026-01-31T12:00:00Z, nor a position that a subscription returned",
        key="start",
    )


class Positions:
    """The offsets of one consumer.

    Args:
        consumer: The ``KafkaConsumer``.
        start: Where to begin, as ``parse_start`` returned it.
    """

    def __init__(self, consumer: Any, start: Start) -> None:
        self._consumer = consumer
        self._start = start
        self._next: dict[TopicPartition, int] = {}

    def resolve(self, new: Iterable[TopicPartition], *, is_first: bool, timeout_s: float) -> None:
        """Find the offset each partition of ``new`` begins at, where it is not its oldest.

        Args:
            new: Partitions not read so far.
            is_first: Whether they were there when reading began; later ones are read whole.
            timeout_s: Longest wait for the brokers.

        Raises:
            KafkaError: The brokers did not answer; nothing has changed.
        """
        start = self._start
        partitions = [partition for partition in new if partition not in self._next]
        if not partitions:
            return
        timeout_ms = max(int(timeout_s * 1000), _PATIENCE_MS)
        if isinstance(start, dict):
            self._next.update({p: start[p] for p in partitions if p in start})
        elif start == "latest" and is_first:
            self._next.update(self._consumer.end_offsets(partitions, timeout_ms=timeout_ms))
        elif isinstance(start, int):
            times = dict.fromkeys(partitions, start)
            # The ends first: what is written in between must not be passed over.
            ends = self._consumer.end_offsets(partitions, timeout_ms=timeout_ms)
            found = self._consumer.offsets_for_times(times, timeout_ms=timeout_ms)
            self._next.update({p: found[p].offset if found[p] else ends[p] for p in partitions})

    def seek(self, new: Iterable[TopicPartition]) -> None:
        """Move the consumer to the beginning of each partition just assigned.

        An offset that the log no longer holds becomes its oldest one by ``auto_offset_reset``;
        what is missing then shows as a hole in the numbers of the streams.
        """
        for partition in new:
            if partition in self._next:
                self._consumer.seek(partition, self._next[partition])
            else:
                self._consumer.seek_to_beginning(partition)

    def begin_again(self, partitions: Iterable[TopicPartition]) -> None:
        """Read ``partitions`` from their beginning: their topic is another one now."""
        for partition in partitions:
            self._next[partition] = 0
            self._consumer.seek_to_beginning(partition)

    def move_to(self, consumer: Any) -> None:
        """Go on with another consumer."""
        self._consumer = consumer

    def note(self, record: Any) -> None:
        """Note that ``record`` was read."""
        self._next[TopicPartition(record.topic, record.partition)] = record.offset + 1

    def skip_one(self, error: Exception) -> None:
        """Go one offset past what ``error`` says cannot be read.

        kafka-python 3.0 names the partition in the text only.
        """
        named = _PARTITION.search(str(error))
        if named is None:
            return
        partition = TopicPartition(named[1], int(named[2]))
        at = self._consumer.position(partition, timeout_ms=_PATIENCE_MS)
        if at is not None:
            self._consumer.seek(partition, at + 1)

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the next offset of each partition read so far, by topic; JSON-able."""
        told: dict[str, dict[str, int]] = {}
        for partition, offset in sorted(self._next.items()):
            told.setdefault(partition.topic, {})[str(partition.partition)] = offset
        return told
