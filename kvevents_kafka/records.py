"""Where a stream lives in Kafka, and how a record looks there (pure).

One stream is one key and so one partition. A Kafka record::

    topic    kv-events (or a template of {tenant} and {model}, names escaped)
    key      the whole stream id, tenant/model/instance/rank, each name escaped
    value    the batch as ``wire`` encoded it, byte for byte
    headers  kvevents-stream     the stream id again, for tools that show headers only
             kvevents-epoch      decimal, < 2**53
             kvevents-seq        decimal, u64
             kvevents-schema     1, the version of this layout
             kvevents-engine     whose batches these are
             kvevents-publisher  host name and pid of who sent it
             content-type        application/msgpack

Topic names: letters, digits, ``.``, ``_``, ``-``, at most 249 characters (Kafka 4.3,
``org.apache.kafka.common.internals.Topic``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from kvevents_core import ConfigError, ReaderOptions, Record, StreamId
from kvevents_core.naming import escape, expand, expand_for, parse_stream_id, template_fields

SCHEMA: Final = b"1"
STREAM_HEADER: Final = "kvevents-stream"
EPOCH_HEADER: Final = "kvevents-epoch"
SEQ_HEADER: Final = "kvevents-seq"
PUBLISHER_HEADER: Final = "kvevents-publisher"
LONGEST_TOPIC: Final = 249
Headers = list[tuple[str, bytes]]

_BATCH_OVERHEAD: Final = 61 + 21
"""Bytes of a record batch's header and the most of a record's own (format v2)."""
_HEADER_OVERHEAD: Final = 4
_LONGEST_NUMBER: Final = 20
_MARGIN: Final = 64
_MOST_KNOWN: Final = 10_000


def topic_of(template: str, stream: StreamId) -> str:
    """Return the topic of ``stream``; publishers and readers both call this.

    Raises:
        ConfigError: Kafka does not allow the name.
    """
    topic = expand_for(template, stream)
    if len(topic) > LONGEST_TOPIC:
        raise ConfigError(
            f"topic {template!r} becomes {topic!r}, longer than Kafka's {LONGEST_TOPIC} "
            "characters; shorten the template or the model's name",
            key="topic",
        )
    return topic


def topic_pattern(template: str, reader: ReaderOptions) -> re.Pattern[str] | None:
    """Return the pattern of all topics ``reader`` may need, or None if it needs just one."""
    if not (reader.all_instances and not reader.model and "model" in template_fields(template)):
        return None
    # No escaped name contains this: it stands for the field until all else is quoted.
    mark = "\0"
    values = {"tenant": escape(reader.tenant), "model": mark}
    return re.compile(
        re.escape(expand(template, values)).replace(re.escape(mark), "[A-Za-z0-9_-]+")
    )


def key_of(stream: StreamId) -> bytes:
    """Return the record key of ``stream``."""
    return str(stream).encode("ascii")


class HeaderEncoder:
    """Builds the headers of one stream's records.

    Args:
        stream: The stream.
        engine: Whose batches these are.
        publisher: Who publishes; differs between any two processes.
    """

    def __init__(self, stream: StreamId, engine: str, publisher: str) -> None:
        self._head: Headers = [(STREAM_HEADER, key_of(stream))]
        self._tail: Headers = [
            ("kvevents-schema", SCHEMA),
            ("kvevents-engine", engine.encode()),
            (PUBLISHER_HEADER, publisher.encode()),
            ("content-type", b"application/msgpack"),
        ]

    def encode(self, record: Record) -> Headers:
        """Return the headers of ``record``."""
        return [
            *self._head,
            (EPOCH_HEADER, b"%d" % (record.epoch or 0)),
            (SEQ_HEADER, b"%d" % record.seq),
            *self._tail,
        ]

    def overhead_bytes(self) -> int:
        """Return the most bytes a record of this stream takes beside its payload."""
        fixed = [*self._head, *self._tail]
        used = sum(len(name) + len(value) + _HEADER_OVERHEAD for name, value in fixed)
        numbers = len(EPOCH_HEADER) + len(SEQ_HEADER) + 2 * (_HEADER_OVERHEAD + _LONGEST_NUMBER)
        key_bytes = len(self._head[0][1])
        return _BATCH_OVERHEAD + key_bytes + used + numbers + _MARGIN


class RecordDecoder:
    """Reads records back; remembers each stream's name, so that it is parsed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, StreamId] = {}

    def stream(self, headers: Sequence[tuple[str, bytes | None]]) -> StreamId:
        """Return the stream that ``headers`` name.

        Raises:
            ValueError: They are not a record's headers; the text says why.
        """
        name = _value(headers, STREAM_HEADER)
        stream = self._known.get(name)
        if stream is None:
            stream = parse_stream_id(name.decode("ascii", "replace"))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[name] = stream
        return stream

    def place(self, headers: Sequence[tuple[str, bytes | None]]) -> tuple[int, int]:
        """Return (epoch, seq) of a record with ``headers``.

        Raises:
            ValueError: They are not a record's headers; the text says why.
        """
        epoch = _number(headers, EPOCH_HEADER, 2**53)
        return epoch, _number(headers, SEQ_HEADER, 2**64)


def publisher_of(headers: Sequence[tuple[str, bytes | None]]) -> str:
    """Return who sent a record with ``headers``, printable; empty if it does not say."""
    for name, value in headers:
        if name == PUBLISHER_HEADER and value is not None:
            text = value[:200].decode("utf-8", "replace")
            return "".join(c if c.isprintable() else "?" for c in text)
    return ""


def _value(headers: Sequence[tuple[str, bytes | None]], wanted_name: str) -> bytes:
    for name, value in headers:
        if name == wanted_name and value is not None:
            return value
    raise ValueError(f"no {wanted_name} header: not published by kvevents")


def _number(headers: Sequence[tuple[str, bytes | None]], name: str, bound: int) -> int:
    text = _value(headers, name)
    # bytes.isdigit is ASCII only; the length keeps int() cheap whatever was sent.
    if text.isdigit() and len(text) <= _LONGEST_NUMBER and int(text) < bound:
        return int(text)
    raise ValueError(f"header {name} is {text[:40]!r}, not a number below {bound}")
