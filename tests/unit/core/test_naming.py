"""Names of streams and topics: reversible, collision-free, and built by one function."""

import pytest

from kvevents_core.naming import (
    StreamId,
    escape,
    expand,
    expand_for,
    parse_stream_id,
    template_fields,
    unescape,
)

STREAM = StreamId("acme", "Qwen/Qwen3-0.6B", "pod_1.a", 3)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("plain-1", "plain-1"),
        ("Qwen/Qwen3-0.6B", "Qwen_2FQwen3-0_2E6B"),
        ("a_b", "a_5Fb"),
        ("_", "_5F"),
        ("", "_"),
        ("*", "_2A"),
        (">", "_3E"),
        ("a b", "a_20b"),
        ("ä", "_C3_A4"),
        ("\x00", "_00"),
        ("..", "_2E_2E"),
    ],
)
def test_names_are_escaped_for_topics_and_subjects(name, token):
    """Nothing that Kafka forbids or NATS gives a meaning to is left; the way back is exact."""
    assert escape(name) == token
    assert unescape(token) == name


def test_names_that_look_alike_after_other_schemes_stay_apart():
    """Replacing characters would merge these; each must keep a stream of its own."""
    names = ["a/b", "a_b", "a.b", "a-b", "a b", "a_2Fb", "A/b", "", "_"]
    assert len({escape(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "token", ["a.b", "a b", "_2f", "_2", "__", "a_", "_41", "_C3", "*", "a/b", "-_", "_FF", "ä"]
)
def test_what_escape_never_returns_is_refused(token):
    """One name has one token, so a token that is spelt another way is nobody's."""
    with pytest.raises(ValueError, match=r"is not an escaped name|can't decode"):
        unescape(token)


def test_a_stream_is_written_and_read_back():
    """The identity in one line, for headers and keys."""
    assert str(STREAM) == "acme/Qwen_2FQwen3-0_2E6B/pod_5F1_2Ea/3"
    assert parse_stream_id(str(STREAM)) == STREAM


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "a/b/c/d/0", "a/b/c/-1", "a/b/c/01", "a/b/c/x", "a/b.c/d/0", "a/b/c/٣"]
)
def test_what_is_no_stream_is_refused(text):
    """Too few or too many parts, a rank that is no plain number, a part that is not escaped."""
    with pytest.raises(ValueError, match=r"is not"):
        parse_stream_id(text)


def test_streams_sort_by_owner_and_then_by_rank_as_a_number():
    """Rank 10 comes after rank 9."""
    ranks = [10, 9, 0]
    ordered = sorted(StreamId("t", "m", "i", rank) for rank in ranks)
    assert [stream.rank for stream in ordered] == [0, 9, 10]


def test_a_template_names_the_stream():
    """Both ends call this, so that topic and subscription cannot differ."""
    template = "kv-events.{tenant}.{model}.{instance}.{rank}"
    assert expand_for(template, STREAM) == "kv-events.acme.Qwen_2FQwen3-0_2E6B.pod_5F1_2Ea.3"
    assert expand_for("kv-events", STREAM) == "kv-events"
    assert template_fields(template) == ("tenant", "model", "instance", "rank")


def test_a_reader_puts_wildcards_where_it_does_not_know():
    """Values are taken as they are; escaping is the business of ``expand_for``."""
    values = {"tenant": "*", "model": ">", "instance": "x", "rank": "0"}
    assert expand("{tenant}.{model}", values) == "*.>"


@pytest.mark.parametrize(
    "template", ["{port}", "{}", "{rank", "rank}", "{{rank}}", "{rank!r}", "{rank:03}", "{ rank}"]
)
def test_a_template_with_anything_else_in_braces_is_refused(template):
    """Python's format language is not offered: it could reach into objects."""
    for call in (template_fields, lambda text: expand_for(text, STREAM)):
        with pytest.raises(ValueError, match=r"may name \{tenant\}"):
            call(template)
