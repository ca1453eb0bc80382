"""Escaping over arbitrary text: exact, collision-free, and legal wherever it is used."""

import re

from hypothesis import given
from hypothesis import strategies as st

from kvevents_core.naming import StreamId, escape, expand_for, parse_stream_id, unescape

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=20)
LEGAL = re.compile(r"[a-zA-Z0-9_-]+")
STREAMS = st.builds(StreamId, ANY_TEXT, ANY_TEXT, ANY_TEXT, st.integers(0, 2**31))


@given(ANY_TEXT)
def test_every_name_comes_back_and_is_legal_in_between(name):
    """Lone surrogates too: names come from command lines."""
    token = escape(name)
    assert LEGAL.fullmatch(token)
    assert unescape(token) == name


@given(ANY_TEXT)
def test_unescape_accepts_only_what_escape_returns(token):
    """Any text either is the one token of its name or is refused with ValueError."""
    try:
        name = unescape(token)
    except ValueError:
        return
    assert escape(name) == token


@given(STREAMS)
def test_every_stream_comes_back_from_its_name(stream):
    """No name can break out of its place in the identity."""
    assert parse_stream_id(str(stream)) == stream


@given(STREAMS, STREAMS)
def test_two_streams_never_share_a_subject(one, other):
    """Names are equal exactly when the streams are."""
    template = "{tenant}.{model}.{instance}.{rank}"
    same = expand_for(template, one) == expand_for(template, other)
    assert same == (one == other)
    assert (str(one) == str(other)) == (one == other)


@given(ANY_TEXT)
def test_no_text_makes_parse_stream_id_raise_anything_but_value_error(text):
    """Names arrive in headers of foreign records."""
    try:
        stream = parse_stream_id(text)
    except ValueError:
        return
    assert str(stream) == text
