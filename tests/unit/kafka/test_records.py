"""How a record looks in Kafka, and that it is read back as it was sent."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvevents_core import ReaderOptions, Record, StreamId
from kvevents_kafka.records import (
    HeaderEncoder,
    RecordDecoder,
    key_of,
    publisher_of,
    topic_of,
    topic_pattern,
)

STREAM = StreamId("acme", "Qwen/Qwen3-0.6B", "pod-0", 3)
NAMES = st.text(max_size=30)
STREAMS = st.builds(StreamId, NAMES, NAMES, NAMES, st.integers(0, 10_000))


def test_topic_and_key_of_a_stream() -> None:
    """Names are escaped; tenant before model, so that prefixed ACLs work; the key says it all."""
    assert topic_of("kv-events", STREAM) == "kv-events"
    topic = topic_of("kv-events.{tenant}.{model}", STREAM)
    assert topic == "kv-events.acme.Qwen_2FQwen3-0_2E6B"
    assert key_of(STREAM) == b"acme/Qwen_2FQwen3-0_2E6B/pod-0/3"


def test_headers_as_they_stand_in_the_log() -> None:
    """The header names and forms that readers in other languages rely on."""
    headers = HeaderEncoder(STREAM, "sglang", "host:1").encode(Record(STREAM, 17, 2**64 - 1, b""))
    assert headers == [
        ("kvevents-stream", b"acme/Qwen_2FQwen3-0_2E6B/pod-0/3"),
        ("kvevents-epoch", b"17"),
        ("kvevents-seq", b"18446744073709551615"),
        ("kvevents-schema", b"1"),
        ("kvevents-engine", b"sglang"),
        ("kvevents-publisher", b"host:1"),
        ("content-type", b"application/msgpack"),
    ]


@given(STREAMS, st.integers(0, 2**53 - 1), st.integers(0, 2**64 - 1))
def test_a_record_is_read_back(stream: StreamId, epoch: int, seq: int) -> None:
    """Stream, epoch and seq survive the headers, whatever the names."""
    headers = HeaderEncoder(stream, "vllm", "host").encode(Record(stream, epoch, seq, b""))
    decoder = RecordDecoder()
    for _ in range(2):  # the second time from memory
        assert decoder.stream(headers) == stream
        assert decoder.place(headers) == (epoch, seq)


@given(STREAMS, st.integers(0, 2**53 - 1), st.integers(0, 2**64 - 1))
def test_the_overhead_covers_what_the_client_counts(
    stream: StreamId, epoch: int, seq: int
) -> None:
    """kafka-python's own estimate of a record's size stays within payload plus overhead."""
    from kafka.record.default_records import DefaultRecordBatchBuilder

    encoder = HeaderEncoder(stream, "sglang", "host:1")
    headers = encoder.encode(Record(stream, epoch, seq, b""))
    payload = b"x" * 1000
    counted = DefaultRecordBatchBuilder.estimate_size_in_bytes(key_of(stream), payload, headers)
    assert counted <= len(payload) + encoder.overhead_bytes()


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([], "not published by kvevents"),
        ([("kvevents-stream", None)], "not published by kvevents"),
        ([("kvevents-stream", b"\xff")], "tenant/model/instance/rank"),
        ([("kvevents-stream", b"a/b/c")], "tenant/model/instance/rank"),
    ],
    ids=str,
)
def test_headers_that_name_no_stream(headers: list[tuple[str, bytes | None]], says: str) -> None:
    """Anything else is refused with a reason, never with another error."""
    with pytest.raises(ValueError, match=says):
        RecordDecoder().stream(headers)


@pytest.mark.parametrize(
    "number", [b"", b"-1", b"+1", b" 1", b"1.0", b"\xb2", b"9" * 21, b"9" * 99]
)
def test_numbers_that_are_none(number: bytes) -> None:
    """Epoch and seq are plain decimals within their bounds."""
    headers = [("kvevents-epoch", b"1"), ("kvevents-seq", number)]
    with pytest.raises(ValueError, match="kvevents-seq"):
        RecordDecoder().place(headers)
    with pytest.raises(ValueError, match="kvevents-epoch"):
        RecordDecoder().place([("kvevents-epoch", number), ("kvevents-seq", b"1")])


def test_the_bounds_of_epoch_and_seq() -> None:
    """An epoch is below 2**53 (JSON), a seq below 2**64."""
    decoder = RecordDecoder()
    good = [("kvevents-epoch", b"%d" % (2**53 - 1)), ("kvevents-seq", b"%d" % (2**64 - 1))]
    assert decoder.place(good) == (2**53 - 1, 2**64 - 1)
    with pytest.raises(ValueError, match="epoch"):
        decoder.place([("kvevents-epoch", b"%d" % 2**53), good[1]])
    with pytest.raises(ValueError, match="seq"):
        decoder.place([good[0], ("kvevents-seq", b"%d" % 2**64)])


def test_who_published_is_shown_as_text() -> None:
    """What another process wrote of itself is bounded and printable."""
    headers = HeaderEncoder(STREAM, "e", "host:1").encode(Record(STREAM, 1, 0, b""))
    assert publisher_of(headers) == "host:1"
    assert (
        publisher_of([("kvevents-publisher", b"a\n\xff" + b"b" * 900)]) == "a?\ufffd" + "b" * 197
    )
    assert publisher_of([("kvevents-publisher", None)]) == ""


def test_a_reader_of_every_model_knows_its_topics() -> None:
    """Only where the model is in the topic's name must topics be looked for."""
    everything = ReaderOptions("acme", "", "", all_instances=True)
    assert topic_pattern("kv-events", everything) is None
    pattern = topic_pattern("kv.{tenant}.{model}.v1", everything)
    assert isinstance(pattern, re.Pattern)
    assert pattern.fullmatch(topic_of("kv.{tenant}.{model}.v1", STREAM))
    assert not pattern.fullmatch("kv.other.m.v1")
    assert not pattern.fullmatch("kvXacme.m.v1")
    one = ReaderOptions("acme", "m", "i")
    assert topic_pattern("kv.{tenant}.{model}", one) is None


@pytest.mark.parametrize(
    ("reader", "is_wanted"),
    [
        (ReaderOptions("acme", "Qwen/Qwen3-0.6B", "pod-0"), True),
        (ReaderOptions("acme", "Qwen/Qwen3-0.6B", "pod-0", ranks=(3,)), True),
        (ReaderOptions("acme", "Qwen/Qwen3-0.6B", "pod-0", ranks=(0, 1)), False),
        (ReaderOptions("other", "Qwen/Qwen3-0.6B", "pod-0"), False),
        (ReaderOptions("acme", "other", "pod-0"), False),
        (ReaderOptions("acme", "Qwen/Qwen3-0.6B", "pod-1"), False),
        (ReaderOptions("acme", "Qwen/Qwen3-0.6B", "", all_instances=True), True),
        (ReaderOptions("acme", "", "", all_instances=True), True),
        (ReaderOptions("acme", "other", "", all_instances=True), False),
        (ReaderOptions("other", "", "", all_instances=True), False),
    ],
    ids=str,
)
def test_what_a_reader_wants(reader: ReaderOptions, is_wanted: bool) -> None:
    """A topic is shared; a reader takes its own streams only."""
    assert reader.wants(STREAM) is is_wanted
