"""Simulated traffic is shaped like production's and follows from its seed alone."""

from itertools import islice

from kvevents_core.simulation.cache import Chain, PrefixCache
from kvevents_core.simulation.traffic import TrafficShape, make_requests


def _take(count, seed=0, shape=None):
    return list(islice(make_requests(seed, shape), count))


def test_the_same_seed_gives_the_same_requests_and_another_seed_others():
    """Ranks that share a cache see the same requests; other data-parallel ranks see their own."""
    assert _take(50, seed=5) == _take(50, seed=5)
    assert _take(50, seed=5) != _take(50, seed=6)


def test_arrivals_are_in_order_and_come_at_the_asked_rate():
    """Poisson arrivals: the mean rate over many requests is near the one asked for."""
    requests = _take(2000, shape=TrafficShape(rate_per_s=50))
    arrivals = [request.arrival_s for request in requests]
    assert arrivals == sorted(arrivals)
    assert 40 < len(arrivals) / arrivals[-1] < 60


def test_much_of_the_traffic_is_found_in_a_cache_that_is_large_enough():
    """Shared system prompts and turns make prefixes common, as in production; not everything is."""
    cache = PrefixCache(1_000_000)
    hit = new = 0
    for request in _take(500):
        stored = cache.store(Chain(16, request.prompt))
        hit += stored.hit
        new += stored.new
    assert 0.4 < hit / (hit + new) < 0.95


def test_conversations_grow_turn_by_turn_and_end_before_they_are_too_long():
    """Some prompt continues an earlier prompt and its answer; none exceeds the context."""
    requests = _take(300)
    earlier = {request.prompt + request.output for request in requests}
    continued = [
        request
        for request in requests
        if any(request.prompt[: len(said)] == said for said in earlier)
    ]
    assert len(continued) > 100
    longest = max(len(request.prompt) + len(request.output) for request in requests)
    assert longest <= TrafficShape().context_tokens


def test_a_shape_without_room_for_conversations_still_makes_requests():
    """The generator never spins without yielding."""
    assert len(_take(5, shape=TrafficShape(conversations=0))) == 5
