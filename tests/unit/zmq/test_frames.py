"""The bytes of the replay protocol, both framings, and our extension of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvevents_core.naming import StreamId
from kvevents_zmq import frames
from kvevents_zmq.frames import End, HeadReply, Replayed, parse_reply, parse_request

SEQ_258 = b"\x00\x00\x00\x00\x00\x00\x01\x02"


def test_the_request_is_what_the_engines_read() -> None:
    """An empty delimiter, then eight bytes, big-endian."""
    assert frames.format_request(258) == [b"", SEQ_258]
    assert parse_request([b"", SEQ_258]) == 258


def test_the_head_request_is_a_number_no_seq_reaches_for_a_stock_server() -> None:
    """Longer than 8 bytes with a non-zero first byte: above every u64."""
    assert frames.HEAD_REQUEST[0] != 0
    assert int.from_bytes(frames.HEAD_REQUEST, "big") > 2**64
    assert parse_request([b"", frames.HEAD_REQUEST]) == frames.HEAD_REQUEST


def test_what_is_no_request_is_none() -> None:
    """No delimiter, too short, too many frames, a long one that begins with zero."""
    for bad in (
        [],
        [SEQ_258],
        [b"x", SEQ_258],
        [b"", b""],
        [b"", b"\x01" * 7],
        [b"", b"\x00" * 9],
        [b"", SEQ_258, b""],
    ):
        assert parse_request(bad) is None


def test_both_framings_of_a_reply_are_read() -> None:
    """The old one has no topic frame; a missing delimiter is no obstacle."""
    assert parse_reply([b"", b"kv", SEQ_258, b"p"]) == Replayed(b"kv", 258, b"p")
    assert parse_reply([b"", b"", SEQ_258, b""]) == Replayed(b"", 258, b"")
    assert parse_reply([b"", SEQ_258, b"p"]) == Replayed(None, 258, b"p")
    assert parse_reply([b"kv", SEQ_258, b"p"]) == Replayed(b"kv", 258, b"p")


def test_both_end_markers_are_read() -> None:
    """-1 signed, 2**64 - 1 unsigned."""
    assert parse_reply(list(frames.END)) == End()
    assert parse_reply([b"", b"\xff" * 8, b""]) == End()


def test_a_head_comes_back_as_it_was_sent() -> None:
    """Stream, epoch and seqs, also without an epoch."""
    stream = StreamId("t", "Qwen/Qwen3-0.6B", "pod_1", 3)
    for head in (HeadReply(stream, 2**53 - 1, 5, 2**63), HeadReply(stream, None, 0, 0)):
        assert parse_reply(frames.format_head(head)) == head


def test_a_bad_head_is_none() -> None:
    """Not JSON, missing fields, wrong types, seqs that run backwards."""
    good = frames.format_head(HeadReply(StreamId("t", "m", "i", 0), 1, 2, 3))[2]
    for bad in (b"", b"{", b"[]", b"{}", good.replace(b"2", b'"2"'), good.replace(b"3", b"1")):
        assert parse_reply([b"", frames.HEAD_REQUEST, bad]) is None


def test_a_head_of_an_unreadable_stream_keeps_its_seqs() -> None:
    """The seqs are what recovery needs."""
    body = b'{"stream":"nonsense","epoch":1,"first_seq":2,"next_seq":3}'
    assert parse_reply([b"", frames.HEAD_REQUEST, body]) == HeadReply(None, 1, 2, 3)


@given(st.lists(st.binary(max_size=20), max_size=6))
def test_no_frames_make_the_parsers_raise(garbage: list[bytes]) -> None:
    """Whatever arrives is a request, a reply, or None."""
    parse_request(garbage)
    parse_reply(garbage)
    parse_reply([b"", frames.HEAD_REQUEST, *garbage[:1]])
