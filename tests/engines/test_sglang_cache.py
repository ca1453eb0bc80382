"""SGLang's real caches publish through kvevents, and a reader's mirror equals what they hold."""

from __future__ import annotations

import json

import pytest
from engines.environments import EngineEnvironment
from engines.reading import free_ports, reading

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

ADAPTER = "kvevents_core.engines.sglang_publisher.KVEventsPublisher"


@pytest.mark.parametrize("cache", ["radix", "python", "rust"])
def test_mirror_equals_cache_over_zmq(sglang: EngineEnvironment, cache: str) -> None:
    """All three event types arrive and the reader ends with exactly the cache's own blocks."""
    port = free_ports(4)
    flag = {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{port}",
        "bind": True,
        "replay_endpoint": f"tcp://127.0.0.1:{port + 2}",
        "topic": "kv-events",
    }
    facts = {"cache": cache, "flag": json.dumps(flag), "stream_rank": 1, "steps": 80}
    driver = sglang.drive("sglang_cache.py", facts, KVEVENTS_REPLACE_ZMQ="1")
    started = driver.hear()
    assert started["publisher"] == ADAPTER, driver.output
    assert started["local_source"] == {
        "dp_rank": 1,
        "endpoint": f"tcp://127.0.0.1:{port + 1}",
        "topic": "kv-events",
        "block_size": 4,
        "replay_endpoint": f"tcp://127.0.0.1:{port + 3}",
    }
    with reading(flag, ranks=[1]) as reader:
        driver.go_on()
        told = driver.hear()
        reader.until_equal(1, told["content"])
        assert told["pending"] == 0
        assert reader.stream_ranks() == {1}
        assert set(reader.event_types()) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    driver.go_on()
    assert driver.wait() == 0, driver.output
