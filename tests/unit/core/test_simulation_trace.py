"""Rows of a Mooncake trace become requests with the reuse and timing that the trace has."""

import json

import pytest

from kvevents_core.simulation.cache import Chain, PrefixCache
from kvevents_core.simulation.trace import TraceError, parse_row, read_trace, trace_requests

ROWS = [
    {"timestamp": 27_000, "input_length": 1100, "output_length": 3, "hash_ids": [0, 1, 2]},
    {"timestamp": 27_500, "input_length": 1024, "output_length": 40, "hash_ids": [0, 1]},
    {"timestamp": 30_000, "input_length": 600, "output_length": 1, "hash_ids": [0, 9]},
]


@pytest.fixture
def trace_file(tmp_path):
    """A small trace of three rows, two of which share prefixes."""
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")
    return path


def test_lengths_and_times_are_the_traces(trace_file):
    """Tokens per request and the time between requests come from the row; speed divides time."""
    requests = list(trace_requests(read_trace(trace_file), speed=2))
    assert [len(request.prompt) for request in requests] == [1100, 1024, 600]
    assert [len(request.output) for request in requests] == [3, 40, 1]
    assert [request.arrival_s for request in requests] == [0, 0.25, 1.5]


def test_equal_hash_ids_are_equal_tokens_and_different_ids_differ(trace_file):
    """Two readings agree, prefixes are shared exactly as far as the ids are."""
    first, second, third = trace_requests(read_trace(trace_file))
    again = list(trace_requests(read_trace(trace_file)))
    assert [first, second, third] == again
    assert first.prompt[:1024] == second.prompt
    assert first.prompt[:512] == third.prompt[:512]
    assert first.prompt[512:528] != third.prompt[512:528]


def test_the_hit_rate_of_a_large_cache_is_the_one_the_ids_promise(trace_file):
    """With blocks of the trace's own size every repeated full block hits and nothing else does."""
    cache = PrefixCache(1000, block_size=512)
    hits = [
        cache.store(Chain(512, request.prompt)).hit
        for request in trace_requests(read_trace(trace_file))
    ]
    assert hits == [0, 2, 1]


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}', "hash_ids is None"),
        ('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        (
            '{"timestamp": "0", "input_length": 1, "output_length": 1, "hash_ids": [1]}',
            "timestamp",
        ),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        (
            '{"timestamp": 0, "input_length": true, "output_length": 1, "hash_ids": [1]}',
            "input_length",
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": -1, "hash_ids": [1]}',
            "output_length",
        ),
        (
            '{"timestamp": 0, "input_length": 513, "output_length": 1, "hash_ids": [1]}',
            "there are 2",
        ),
    ],
)
def test_a_row_that_is_none_is_refused_with_file_line_and_cause(tmp_path, line, phrase):
    """The message says where and what was found, and the line is an attribute."""
    path = tmp_path / "trace.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    rows = read_trace(path)
    next(rows)
    with pytest.raises(TraceError, match=phrase) as caught:
        next(rows)
    assert caught.value.line == 2
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    """Missing and binary files give the same kind of error."""
    with pytest.raises(TraceError, match="cannot be read") as caught:
        list(read_trace(tmp_path / "absent.jsonl"))
    assert caught.value.line is None
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="UTF-8"):
        list(read_trace(tmp_path / "binary"))


def test_traces_with_another_block_size_are_read_when_told():
    """The Qwen traces use 16 tokens per id."""
    row = parse_row(
        '{"timestamp": 1.5, "input_length": 17, "output_length": 0, "hash_ids": [4, 5], "turn": 1}',
        16,
    )
    (request,) = trace_requests([row], block_tokens=16)
    assert len(request.prompt) == 17
    assert request.output == ()
