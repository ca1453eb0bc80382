"""Where reading begins: names, times, saved positions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition

from kvevents_core import ConfigError
from kvevents_kafka.positions import Positions, parse_start

ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeConsumer:
    """A consumer whose log is known: partition 0 ends at 50, partition 1 at 7."""

    def __init__(self) -> None:
        self.at: dict[TopicPartition, Any] = {}

    def end_offsets(self, partitions: Any, timeout_ms: int) -> dict[TopicPartition, int]:
        return {partition: {ZERO: 50, ONE: 7}[partition] for partition in partitions}

    def offsets_for_times(self, times: Any, timeout_ms: int) -> dict[TopicPartition, Any]:
        return {p: SimpleNamespace(offset=42) if p == ZERO else None for p in times}

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.at[partition] = offset

    def seek_to_beginning(self, partition: TopicPartition) -> None:
        self.at[partition] = "beginning"

    def position(self, partition: TopicPartition, timeout_ms: int) -> Any:
        return self.at[partition]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("1970-01-01T00:00:01Z", 1000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01T01:00:01+01:00", 1000),
        ("1969-12-31", 0),
    ],
)
def test_starts_in_words_and_times(text: str, start: Any) -> None:
    """A time without a zone is UTC."""
    assert parse_start(text) == start


def test_a_saved_position_comes_back() -> None:
    """What ``as_dict`` told is a start."""
    positions = Positions(FakeConsumer(), "earliest")
    positions.note(SimpleNamespace(topic="t", partition=1, offset=8))
    positions.note(SimpleNamespace(topic="t", partition=0, offset=3))
    assert positions.as_dict() == {"t": {"0": 4, "1": 9}}
    assert parse_start(positions.as_dict()) == {ZERO: 4, ONE: 9}


@pytest.mark.parametrize(
    "bad", ["", "soon", "12:00", {"t": 1}, {"t": {"x": 1}}, {"t": {"0": None}}]
)
def test_what_is_no_start(bad: Any) -> None:
    """Everything else is refused under its key."""
    with pytest.raises(ConfigError) as refused:
        parse_start(bad)
    assert refused.value.key == "start"


@pytest.mark.parametrize(
    ("start", "is_first", "at"),
    [
        ("earliest", True, {ZERO: "beginning", ONE: "beginning"}),
        ("latest", True, {ZERO: 50, ONE: 7}),
        ("latest", False, {ZERO: "beginning", ONE: "beginning"}),
        (1000, True, {ZERO: 42, ONE: 7}),
        ({ZERO: 5}, True, {ZERO: 5, ONE: "beginning"}),
    ],
    ids=str,
)
def test_where_each_partition_begins(start: Any, is_first: bool, at: Any) -> None:
    """Partitions that came after the reader are read whole."""
    consumer = FakeConsumer()
    positions = Positions(consumer, start)
    positions.resolve([ZERO, ONE], is_first=is_first, timeout_s=1.0)
    positions.seek([ZERO, ONE])
    assert consumer.at == at


def test_a_topic_made_anew_is_read_from_its_beginning() -> None:
    """Offsets of the old topic are forgotten, those of others are not."""
    consumer = FakeConsumer()
    positions = Positions(consumer, "latest")
    positions.resolve([ZERO, ONE], is_first=True, timeout_s=1.0)
    positions.seek([ZERO, ONE])
    positions.begin_again([ZERO])
    assert consumer.at == {ZERO: "beginning", ONE: 7}
    assert positions.as_dict() == {"t": {"0": 0, "1": 7}}


def test_another_consumer_goes_on_where_the_first_stood() -> None:
    """What was resolved or read is not resolved again."""
    positions = Positions(FakeConsumer(), "latest")
    positions.resolve([ZERO], is_first=True, timeout_s=1.0)
    positions.note(SimpleNamespace(topic="t", partition=0, offset=60))
    newer = FakeConsumer()
    positions.move_to(newer)
    positions.resolve([ZERO, ONE], is_first=False, timeout_s=1.0)
    positions.seek([ZERO, ONE])
    assert newer.at == {ZERO: 61, ONE: "beginning"}


def test_a_corrupt_record_is_passed_by() -> None:
    """The client names the partition in its text; the next offset is tried."""
    consumer = FakeConsumer()
    consumer.at = {ZERO: 5, ONE: 6}
    positions = Positions(consumer, "earliest")
    positions.skip_one(
        ValueError(f"Record batch for partition {ONE} at offset 6 failed crc check")
    )
    assert consumer.at == {ZERO: 5, ONE: 7}
    positions.skip_one(ValueError("something else"))
    assert consumer.at == {ZERO: 5, ONE: 7}
