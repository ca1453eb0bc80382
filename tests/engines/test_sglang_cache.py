"""SGLang's real caches publish through kvevents, and a reader's mirror equals what they hold."""

from __future__ import annotations

import json

import pytest
from engines.conftest import Transport
from engines.environments import EngineEnvironment
from engines.reading import reading

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

ADAPTER = "kvevents_core.engines.sglang_publisher.KVEventsPublisher"
RANKS = (0, 1, 2)
"""RadixCache, UnifiedRadixCache with its Python core, and with its Rust core."""


def test_mirror_equals_each_cache(sglang: EngineEnvironment, transport: Transport) -> None:
    """All three event types arrive, and the reader ends with exactly each cache's own blocks."""
    facts = {"flag": json.dumps(transport.flag), "steps": 80}
    driver = sglang.drive("sglang_cache.py", facts, **transport.variables)
    started = driver.hear(120)
    assert started["publishers"] == [ADAPTER] * len(RANKS), driver.output
    for rank, source in enumerate(started["local_sources"]):
        assert source == expected_source(transport, rank)
    with reading(transport.flag, ranks=RANKS) as reader:
        driver.go_on()
        told = driver.hear(120)
        for rank in RANKS:
            reader.until_equal(rank, told["contents"][rank], 60)
        assert told["pending"] == [0, 0, 0]
        assert reader.stream_ranks() == set(RANKS)
        assert set(reader.event_types()) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    driver.go_on()
    assert driver.wait() == 0, driver.output


def expected_source(transport: Transport, rank: int) -> dict[str, object] | None:
    """Return what SGLang may tell a local process: a bound ZMQ socket or nothing."""
    if not transport.is_zmq:
        return None
    suffix = f"_dp{rank}" if rank else ""
    return {
        "dp_rank": rank,
        "endpoint": transport.flag["endpoint"] + suffix,
        "topic": "kv-events",
        "block_size": 4,
        "replay_endpoint": transport.flag["replay_endpoint"] + suffix,
    }


def test_mirror_equals_each_cache_in_process(sglang: EngineEnvironment) -> None:
    """The same with the in-process backend and a reader beside the caches."""
    facts = {"flag": '{"publisher":"memory"}', "steps": 80, "read_here": True}
    driver = sglang.drive("sglang_cache.py", facts)
    assert driver.hear(120)["publishers"] == [ADAPTER] * len(RANKS), driver.output
    driver.go_on()
    assert driver.hear(120)["mirror_equal"] is True
    driver.go_on()
    assert driver.wait() == 0, driver.output
