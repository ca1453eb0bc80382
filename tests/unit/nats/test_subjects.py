"""Subjects, filters and headers say the same to publisher and reader."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.protocol.command import hpub_cmd

from kvevents_core import ReaderOptions, Record, StreamId
from kvevents_nats.subjects import (
    HeaderDecoder,
    HeaderEncoder,
    bound_subject,
    covers,
    encoded_bytes,
    reader_filter,
    stream_name,
    subject_of,
)

TEMPLATE = "kv-events.{tenant}.{model}.{instance}.{rank}"
STREAM = StreamId("acme", "Qwen/Qwen3-0.6B", "pod 1", 3)
names = st.text(max_size=30)
streams = st.builds(StreamId, names, names, names, st.integers(0, 4096))


def reader(**changes: object) -> ReaderOptions:
    """Return the options of a reader of one instance."""
    options = {"tenant": "acme", "model": "Qwen/Qwen3-0.6B", "instance": "pod 1"}
    return ReaderOptions(**{**options, **changes})  # type: ignore[arg-type]


def test_every_name_becomes_one_token_of_the_subject() -> None:
    """Every name becomes one token of the subject."""
    assert subject_of(TEMPLATE, STREAM) == "kv-events.acme.Qwen_2FQwen3-0_2E6B.pod_201.3"


@given(streams)
def test_a_subject_has_one_token_per_field_and_no_blank_or_wildcard(stream: StreamId) -> None:
    """A subject has one token per field and no blank or wildcard."""
    tokens = subject_of(TEMPLATE, stream).split(".")
    assert len(tokens) == 5
    assert all(t and t.isascii() and not set(t) & set("*> \t\r\n") for t in tokens)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "kv-events.acme.Qwen_2FQwen3-0_2E6B.pod_201.*"),
        ({"ranks": (3,)}, "kv-events.acme.Qwen_2FQwen3-0_2E6B.pod_201.3"),
        ({"ranks": (3, 4)}, "kv-events.acme.Qwen_2FQwen3-0_2E6B.pod_201.*"),
        ({"all_instances": True}, "kv-events.acme.Qwen_2FQwen3-0_2E6B.*.*"),
        ({"all_instances": True, "model": ""}, "kv-events.acme.*.*.*"),
        ({"model": ""}, "kv-events.acme._.pod_201.*"),
    ],
)
def test_a_filter_has_wildcards_only_where_the_reader_left_a_choice(
    changes: dict[str, object], expected: str
) -> None:
    """A filter has wildcards only where the reader left a choice."""
    assert reader_filter(TEMPLATE, reader(**changes)) == expected


@given(streams, st.booleans(), st.sampled_from([None, (0,), (1, 2)]))
def test_what_is_wanted_lies_within_the_filter(
    stream: StreamId, every: bool, ranks: tuple[int, ...] | None
) -> None:
    """What is wanted lies within the filter."""
    options = ReaderOptions(
        stream.tenant, stream.model, stream.instance, ranks=ranks, all_instances=every
    )
    assert options.wants(stream) == (ranks is None or stream.rank in ranks)
    if options.wants(stream):
        assert covers(reader_filter(TEMPLATE, options), subject_of(TEMPLATE, stream))


@pytest.mark.parametrize(
    "other",
    [
        StreamId("evil", STREAM.model, STREAM.instance, 3),
        StreamId("acme", "other", STREAM.instance, 3),
        StreamId("acme", STREAM.model, "pod 2", 3),
        StreamId("acme", STREAM.model, STREAM.instance, 4),
    ],
)
def test_another_stream_is_not_wanted(other: StreamId) -> None:
    """Another stream is not wanted."""
    assert not reader(ranks=(3,)).wants(other)


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.*.c", "a.b.c", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.b.c", "a.b", False),
        ("a.b", "a.>", False),
        ("a.*", "a.*", True),
    ],
)
def test_covers_follows_the_servers_rule_for_wildcards(
    pattern: str, subject: str, expected: bool
) -> None:
    """Covers follows the servers rule for wildcards."""
    assert covers(pattern, subject) is expected


def test_a_created_stream_is_bound_to_exactly_what_its_name_fixes() -> None:
    """A created stream is bound to exactly what its name fixes."""
    assert bound_subject(TEMPLATE, "kv-events", STREAM) == "kv-events.*.*.*.*"
    assert bound_subject(TEMPLATE, "kv-{tenant}", STREAM) == "kv-events.acme.*.*.*"
    assert stream_name("kv-{tenant}-{model}", "a b", "m") == "kv-a_20b-m"


@given(
    streams,
    st.integers(0, 2**53 - 1),
    st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
    names,
    names,
)
def test_headers_survive_the_round_trip_within_the_size_announced(
    stream: StreamId, epoch: int, seq: int, after: int | None, engine: str, publisher: str
) -> None:
    """Headers survive the round trip within the size announced."""
    encoder = HeaderEncoder(stream, engine, publisher)
    headers = encoder.encode(Record(stream, epoch, seq, b""), after)
    place = HeaderDecoder().decode(headers)
    assert place[:3] == (stream, epoch, seq)
    assert place.after == after
    assert encoded_bytes(headers) <= encoder.longest_bytes()


@given(
    streams, st.none() | st.integers(0, 99), st.binary(max_size=50), st.sampled_from(["", "a.b"])
)
def test_a_command_is_what_the_client_library_would_write(
    stream: StreamId, after: int | None, payload: bytes, reply: str
) -> None:
    """The short cut around ``publish`` writes the same bytes."""
    encoder = HeaderEncoder(stream, "vllm", "host:1-abcd")
    record = Record(stream, 2**50, 2**60, payload)
    lines = "".join(f"{k}: {v}\r\n" for k, v in encoder.encode(record, after).items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    subject = subject_of(TEMPLATE, stream)
    theirs = hpub_cmd(subject, reply, block, payload)
    assert encoder.command(subject, record, after, reply) == theirs
    assert encoded_bytes(encoder.encode(record, after)) == len(block)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        {"Nats-Msg-Id": "x"},
        {"Nats-Msg-Id": "a/b/c/0:1"},
        {"Nats-Msg-Id": "a/b/c/0:-1:2"},
        {"Nats-Msg-Id": "a/b/c/0:1:18446744073709551616"},
        {"Nats-Msg-Id": "a/b/0:1:2"},
        {"Nats-Msg-Id": "a/b./c/0:1:2"},
    ],
)
def test_foreign_headers_are_refused_with_a_reason(headers: dict[str, str] | None) -> None:
    """Foreign headers are refused with a reason."""
    with pytest.raises(ValueError, match=r"Nats-Msg-Id|not tenant|not an escaped"):
        HeaderDecoder().decode(headers)


@given(st.dictionaries(st.text(max_size=12), st.text(max_size=40), max_size=4), st.text())
def test_no_header_can_do_more_than_raise_value_error(
    headers: dict[str, str], message_id: str
) -> None:
    """No header can do more than raise value error."""
    decoder = HeaderDecoder()
    for given_headers in (headers, {**headers, "Nats-Msg-Id": message_id, "Kvevents": message_id}):
        with contextlib.suppress(ValueError):
            assert decoder.decode(given_headers).epoch < 2**53
