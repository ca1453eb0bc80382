"""Nearest names: generous for advice, strict where a misspelling stops the engine."""

import pytest

from kvevents_core.suggestions import distance, misspelling_of, nearest

KEYS = ("topic", "hwm", "endpoint", "replay_endpoint", "max_queue_size", "model")


@pytest.mark.parametrize(
    ("first", "second", "edits"),
    [
        ("", "", 0),
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("abc", "ab", 1),
        ("kitten", "sitting", 3),
    ],
)
def test_distance_counts_edits_and_swaps(first, second, edits):
    """The same from either side."""
    assert distance(first, second) == distance(second, first) == edits


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("endpont", "endpoint"),
        ("replay_endpiont", "replay_endpoint"),
        ("Max-Queue-Size", "max_queue_size"),
        ("maxqueuesize", "max_queue_size"),
        ("hvm", "hwm"),
        ("queue_size", "max_queue_size"),
        ("colour", None),
    ],
)
def test_advice_is_the_nearest_name(typed, meant):
    """Or none, where nothing is near."""
    assert nearest(typed, KEYS) == meant


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("tpoic", "topic"), ("hvm", "hwm"), ("queue_size", None), ("debug", None), ("a", None)],
)
def test_only_evident_misspellings_count(typed, meant):
    """A variable that merely resembles a key is somebody else's."""
    assert misspelling_of(typed, KEYS) == meant


def test_no_names_no_advice():
    """An empty list of known names is no error."""
    assert nearest("x", ()) is None
    assert misspelling_of("x", ()) is None
