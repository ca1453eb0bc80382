r"""The bytes of the ZMQ transport, live and replay: pure.

    live          [topic, seq 8 B BE unsigned, payload]
    request       [b"", start seq 8 B BE]                          (DEALER to ROUTER)
    reply         [b"", topic, seq 8 B BE, payload]                (one per record with seq >= start)
    end           [b"", b"", ff ff ff ff ff ff ff ff, b""]
    old reply     [b"", seq 8 B BE, payload], end [b"", ff*8, b""] (read, never written)

Source: vLLM 0.33 ``distributed/kv_events.py`` (framing with the topic since vllm-project/vllm#45177),
SGLang 0.5.23 ``disaggregation/kv_events.py``.

Our extension, for which those servers send their end marker only, since they read the request as
a number no seq reaches:

    head request  [b"", b"KVEVENTS-HEAD\x01"]
    head reply    [b"", b"KVEVENTS-HEAD\x01", JSON], then the end marker

Never reads a payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from kvevents_core.naming import StreamId, parse_stream_id

SEQ_BYTES: Final = 8
MAX_SEQ: Final = 2**64 - 1
END_SEQ: Final = b"\xff" * SEQ_BYTES
END: Final = (b"", b"", END_SEQ, b"")
HEAD_REQUEST: Final = b"KVEVENTS-HEAD\x01"
MAX_REQUEST_BYTES: Final = 1024
"""The replay server drops a connection that sends a longer frame."""


class HeadReply(NamedTuple):
    """Where a publisher stands, as its replay socket says."""

    stream: StreamId | None
    epoch: int | None
    first_seq: int
    next_seq: int


class Replayed(NamedTuple):
    """One replayed record; ``topic`` is None in the old framing."""

    topic: bytes | None
    seq: int
    payload: bytes


class End(NamedTuple):
    """The end marker: nothing more follows for this request."""


class _Head(msgspec.Struct, frozen=True):
    stream: str
    epoch: int | None
    first_seq: int
    next_seq: int


_decode_head: Final = msgspec.json.Decoder(_Head).decode


def parse_request(frames: Sequence[bytes]) -> int | bytes | None:
    """Return what ``frames`` (without the identity) ask for; None if they are no request.

    An int is the first seq wanted. Bytes are an extension, known or not: it begins with a non-zero
    byte and is longer than a seq.
    """
    if len(frames) != 2 or frames[0]:
        return None
    request = frames[1]
    if len(request) == SEQ_BYTES:
        return int.from_bytes(request, "big")
    if len(request) > SEQ_BYTES and request[0]:
        return request
    return None


def format_request(first_seq: int) -> list[bytes]:
    """Return the frames that ask for every record from ``first_seq`` on."""
    return [b"", first_seq.to_bytes(SEQ_BYTES, "big")]


def format_head(head: HeadReply) -> tuple[bytes, ...]:
    """Return the frames (without the identity) that answer ``HEAD_REQUEST``."""
    body = _Head(str(head.stream), head.epoch, head.first_seq, head.next_seq)
    return (b"", HEAD_REQUEST, msgspec.json.encode(body))


def parse_reply(frames: Sequence[bytes]) -> Replayed | HeadReply | End | None:
    """Return what a replay server sent, old or new framing; None if it is no reply of either."""
    body = frames[1:] if len(frames) > 2 and not frames[0] else frames
    if len(body) == 2 and body[0] == HEAD_REQUEST:
        return _parse_head(body[1])
    if len(body) not in (2, 3) or len(body[-2]) != SEQ_BYTES:
        return None
    if body[-2] == END_SEQ:
        return End()
    topic = body[0] if len(body) == 3 else None
    return Replayed(topic, int.from_bytes(body[-2], "big"), body[-1])


def _parse_head(body: bytes) -> HeadReply | None:
    try:
        head = _decode_head(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not 0 <= head.first_seq <= head.next_seq <= MAX_SEQ or (head.epoch or 0) < 0:
        return None
    try:
        stream = parse_stream_id(head.stream)
    except ValueError:
        stream = None
    return HeadReply(stream, head.epoch, head.first_seq, head.next_seq)
