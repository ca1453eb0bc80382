"""vLLM's real ``KVCacheManager`` publishes through kvevents; a reader's mirror equals its table."""

from __future__ import annotations

import json

import pytest
from engines.conftest import Transport
from engines.environments import EngineEnvironment
from engines.reading import reading

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

ADAPTER = "kvevents_core.engines.vllm_publisher.KVEventsPublisher"


def test_mirror_equals_cache(vllm: EngineEnvironment, transport: Transport) -> None:
    """All three event types arrive, and the reader ends with exactly the cache's own blocks.

    The flag went through vLLM's parser and a pickle; ``servers`` and ``bootstrap_servers`` are
    keys that stock vLLM refuses.
    """
    facts = {"flag": json.dumps(transport.flag), "stream_rank": 1, "steps": 80}
    driver = vllm.drive("vllm_cache.py", facts, **transport.variables)
    started = driver.hear(120)
    assert started["publisher"] == ADAPTER, driver.output
    if transport.is_zmq:
        told = started["publisher_config"]
        assert told["endpoint"] == transport.flag["endpoint"] + "_dp1"
        assert told["replay_endpoint"] == transport.flag["replay_endpoint"] + "_dp1"
        assert told["enable_kv_cache_events"] is True
    else:
        assert started["publisher_config"] is None
    with reading(transport.flag, ranks=[1]) as reader:
        driver.go_on()
        told = driver.hear(120)
        reader.until_equal(1, told["content"], 60)
        assert told["pending"] == 0
        assert reader.stream_ranks() == {1}
        assert set(reader.event_types()) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    driver.go_on()
    assert driver.wait() == 0, driver.output


def test_mirror_equals_cache_in_process(vllm: EngineEnvironment) -> None:
    """The same with the in-process backend and a reader beside the cache."""
    facts = {"flag": '{"publisher":"memory"}', "stream_rank": 1, "steps": 80, "read_here": True}
    driver = vllm.drive("vllm_cache.py", facts)
    assert driver.hear(120)["publisher"] == ADAPTER, driver.output
    driver.go_on()
    assert driver.hear(120)["mirror_equal"] is True
    driver.go_on()
    assert driver.wait() == 0, driver.output


def test_mirror_equals_cache_of_the_newer_release(newer_vllm: EngineEnvironment) -> None:
    """VLLM 0.33.0, its own Python files over 0.32.0's libraries, publishes the same way."""
    facts = {"flag": '{"publisher":"memory"}', "stream_rank": 1, "steps": 80, "read_here": True}
    driver = newer_vllm.drive("vllm_cache.py", facts)
    started = driver.hear(120)
    assert started["version"] == "0.33.0"
    assert started["publisher"] == ADAPTER, driver.output
    driver.go_on()
    assert driver.hear(120)["mirror_equal"] is True
    driver.go_on()
    assert driver.wait() == 0, driver.output
