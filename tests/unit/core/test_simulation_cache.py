"""The simulated cache reports exactly what it holds, as an engine does."""

import random

import pytest

from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvevents_core.simulation.cache import Chain, PrefixCache, digest_of, reported_hash
from kvevents_core.simulation.traffic import make_requests


def _apply(events, held):
    """Keep a set of hashes by the events alone, strictly: no unknown remove, no double store."""
    for event in events:
        match event:
            case BlockStored():
                assert event.parent_block_hash is None or event.parent_block_hash in held
                assert not held.intersection(event.block_hashes)
                held.update(event.block_hashes)
            case BlockRemoved():
                assert held.issuperset(event.block_hashes)
                held.difference_update(event.block_hashes)
            case AllBlocksCleared():
                held.clear()


@pytest.mark.parametrize("capacity_blocks", [1, 7, 60, 100_000])
def test_events_replayed_in_order_give_the_dump_after_every_step(capacity_blocks):
    """A set kept by events alone equals the cache's own dump, whatever is evicted or cleared."""
    cache = PrefixCache(capacity_blocks)
    held = set()
    requests = make_requests(seed=3)
    for step in range(60):
        request = next(requests)
        chain = Chain(cache.block_size, request.prompt)
        cache.store(chain)
        chain.extend(request.output)
        cache.store(chain)
        if step == 40:
            cache.clear()
        _apply(cache.take_events(), held)
        assert held == cache.dump()
        assert len(cache) == len(held) <= capacity_blocks


def test_a_prefix_is_found_again_and_only_the_rest_is_stored():
    """The second request of a shared prefix reports its own blocks only, behind their parent."""
    cache = PrefixCache(100, block_size=4)
    shared = list(range(8))
    cache.store(Chain(4, [*shared, 100, 101, 102, 103]))
    (first,) = cache.take_events()
    stored = cache.store(Chain(4, [*shared, 200, 201, 202, 203, 204]))
    (second,) = cache.take_events()
    assert (stored.hit, stored.new, stored.evicted, stored.uncached) == (2, 1, 0, 0)
    assert first.parent_block_hash is None
    assert second.parent_block_hash == first.block_hashes[1]
    assert second.token_ids == [200, 201, 202, 203]
    assert second.block_size == 4
    assert second.medium == "GPU"


def test_a_prompt_of_one_repeated_token_gives_a_different_hash_for_every_block():
    """Hashes are chained: equal tokens behind different prefixes are different blocks."""
    cache = PrefixCache(100, block_size=4)
    cache.store(Chain(4, [7] * 40))
    (event,) = cache.take_events()
    assert len(set(event.block_hashes)) == len(event.block_hashes) == 10


def test_hashes_are_signed_64_bit_numbers_as_an_engine_sends_them():
    """Both signs occur, and no hash is small enough for a consumer to take it for something else."""
    cache = PrefixCache(1000, block_size=4)
    cache.store(Chain(4, range(800)))
    (event,) = cache.take_events()
    assert min(event.block_hashes) < 0 < max(event.block_hashes)
    assert all(-(2**63) <= name < 2**63 and abs(name) > 2**32 for name in event.block_hashes)


def test_the_least_recently_used_leaf_goes_first_and_never_a_parent_before_its_child():
    """Eviction is LRU over chains: a shared prefix outlives the branches that hang on it."""
    cache = PrefixCache(4, block_size=1)
    cache.store(Chain(1, [1, 2, 3]))
    cache.store(Chain(1, [1, 9]))
    cache.take_events()
    stored = cache.store(Chain(1, [1, 8]))
    removed, added = cache.take_events()
    first = digest_of(b"", [1])
    second = digest_of(first, [2])
    assert stored.evicted == 1
    assert removed.block_hashes == [reported_hash(digest_of(second, [3]))]
    assert added.parent_block_hash == reported_hash(first)


def test_a_sequence_longer_than_the_cache_keeps_its_beginning_and_says_what_did_not_fit():
    """The cache never holds more than its capacity and never evicts what it is just using."""
    cache = PrefixCache(3, block_size=2)
    stored = cache.store(Chain(2, range(10)))
    assert (stored.new, stored.uncached) == (3, 2)
    again = cache.store(Chain(2, range(10)))
    assert (again.hit, again.new, again.evicted) == (3, 0, 0)


def test_a_partly_filled_block_is_cached_only_once_it_is_full():
    """Only whole blocks are stored, and a chain hashes a token once however it grows."""
    cache = PrefixCache(10, block_size=4)
    chain = Chain(4, [1, 2, 3])
    cache.store(chain)
    assert cache.take_events() == []
    chain.extend([4, 5])
    cache.store(chain)
    (event,) = cache.take_events()
    assert event.token_ids == [1, 2, 3, 4]
    assert chain.blocks == Chain(4, [1, 2, 3, 4]).blocks


def test_a_closed_gate_records_nothing_however_much_is_served():
    """Without a publisher the cache works the same and its list of events stays empty."""
    silent, loud = PrefixCache(50, records_events=False), PrefixCache(50)
    requests = make_requests(seed=1)
    for _ in range(200):
        chain = Chain(16, next(requests).prompt)
        silent.store(chain)
        loud.store(chain)
        silent.clear()
        loud.clear()
    assert silent.take_events() == []
    assert silent.recorded_events == 0
    assert loud.recorded_events > 0
    assert silent.dump() == loud.dump()


def test_the_dump_is_worked_out_from_tokens_not_from_what_was_reported():
    """A block whose tokens changed shows in the dump: it does not repeat remembered hashes."""
    cache = PrefixCache(10, block_size=1)
    cache.store(Chain(1, [1, 2]))
    before = cache.dump()
    digest, block = next(iter(cache._resident.items()))
    cache._resident[digest] = type(block)(
        block.digest, block.parent_digest, (random.randrange(9, 99),)
    )
    assert cache.dump() != before


@pytest.mark.parametrize(("capacity_blocks", "block_size"), [(0, 16), (5, 0), (-1, 1)])
def test_an_impossible_size_is_refused(capacity_blocks, block_size):
    """A cache without room or with empty blocks is a mistake, named at once."""
    with pytest.raises(ValueError, match="at least 1"):
        PrefixCache(capacity_blocks, block_size=block_size)
