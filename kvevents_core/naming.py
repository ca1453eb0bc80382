"""Names of streams, topics and subjects: one escaping rule and one builder for both ends.

A model is called ``Qwen/Qwen3-0.6B``; a Kafka topic allows no ``/``, and in a NATS subject ``.``
separates tokens. So every name is escaped, reversibly and without collisions: ASCII letters, digits
and ``-`` stay, every other UTF-8 byte becomes ``_XX`` (two upper-case hex digits, ``_`` itself too),
and the empty name becomes ``_``. The result is legal in a Kafka topic (``[a-zA-Z0-9._-]``, Kafka 4.3)
and as a NATS subject token (nats-server 2.15). Pure: no I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-")
_ESCAPED: Final = re.compile(r"(?:[a-zA-Z0-9-]|_[0-9A-F]{2})+")
_FIELD: Final = re.compile(r"\{([^{}]*)\}")

STREAM_FIELDS: Final = ("tenant", "model", "instance", "rank")
"""What a template may name, in the order of a stream's identity."""


@dataclass(frozen=True, slots=True, order=True)
class StreamId:
    """Names the ordered batches of one KV cache: whose they are and of which data-parallel rank."""

    tenant: str
    model: str
    instance: str
    rank: int
    """Stream rank, 0..dp-1."""

    def __str__(self) -> str:
        """Return ``tenant/model/instance/rank``, each escaped; ``parse_stream_id`` reverses it."""
        names = (escape(name) for name in (self.tenant, self.model, self.instance))
        return "/".join((*names, str(self.rank)))


def escape(name: str) -> str:
    """Return ``name`` as one legal Kafka topic part and NATS subject token."""
    if not name:
        return "_"
    return "".join(
        chr(byte) if byte in _PLAIN else f"_{byte:02X}"
        for byte in name.encode("utf-8", "surrogatepass")
    )


def unescape(text: str) -> str:
    """Return the name that ``escape`` turned into ``text``.

    Raises:
        ValueError: ``text`` is not something ``escape`` returns.
    """
    if text == "_":
        return ""
    if not _ESCAPED.fullmatch(text):
        raise ValueError(f"{text!r} is not an escaped name")
    raw = re.sub(r"_([0-9A-F]{2})", lambda match: chr(int(match[1], 16)), text)
    name = raw.encode("latin-1").decode("utf-8", "surrogatepass")
    if escape(name) != text:
        raise ValueError(f"{text!r} is not an escaped name")
    return name


def parse_stream_id(text: str) -> StreamId:
    """Return the stream that ``str(StreamId)`` wrote as ``text``.

    Raises:
        ValueError: ``text`` is not a stream's name.
    """
    parts = text.split("/")
    if len(parts) != len(STREAM_FIELDS) or not re.fullmatch(r"0|[1-9][0-9]*", parts[3]):
        raise ValueError(f"{text!r} is not tenant/model/instance/rank")
    tenant, model, instance = (unescape(part) for part in parts[:3])
    return StreamId(tenant, model, instance, int(parts[3]))


def template_fields(template: str) -> tuple[str, ...]:
    """Return the field names of ``template`` in order.

    Raises:
        ValueError: A field is unknown or a brace stands alone.
    """
    fields = tuple(_FIELD.findall(template))
    unknown = [name for name in fields if name not in STREAM_FIELDS]
    if unknown or set(_FIELD.sub("", template)) & set("{}"):
        known = ", ".join("{" + name + "}" for name in STREAM_FIELDS)
        raise ValueError(f"{template!r} may name {known} and nothing else in braces")
    return fields


def expand(template: str, values: Mapping[str, str]) -> str:
    """Return ``template`` with each field replaced by the (already escaped) value of its name."""
    template_fields(template)
    return _FIELD.sub(lambda match: values[match[1]], template)


def expand_for(template: str, stream: StreamId) -> str:
    """Return the topic or subject of ``stream``; readers and publishers both call this."""
    values = {
        "tenant": escape(stream.tenant),
        "model": escape(stream.model),
        "instance": escape(stream.instance),
        "rank": str(stream.rank),
    }
    return expand(template, values)
