"""vLLM's real ``KVCacheManager`` publishes through kvevents; a reader's mirror equals its table."""

from __future__ import annotations

import json

import pytest
from engines.environments import EngineEnvironment
from engines.reading import free_ports, reading

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

ADAPTER = "kvevents_core.engines.vllm_publisher.KVEventsPublisher"


def test_mirror_equals_cache_over_zmq(vllm: EngineEnvironment) -> None:
    """All three event types arrive and the reader ends with exactly the cache's own blocks."""
    port = free_ports(4)
    flag = {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{port}",
        "bind": True,  # no key of vLLM's
        "replay_endpoint": f"tcp://127.0.0.1:{port + 2}",
        "topic": "kv-events",
    }
    command_line = ["--kv-events-config", json.dumps(flag)]
    facts = {"command_line": command_line, "stream_rank": 1, "steps": 80}
    driver = vllm.drive("vllm_cache.py", facts, KVEVENTS_REPLACE_ZMQ="1")
    started = driver.hear()
    assert started["publisher"] == ADAPTER, driver.output
    told = started["publisher_config"]
    assert told["endpoint"] == f"tcp://127.0.0.1:{port + 1}"
    assert told["replay_endpoint"] == f"tcp://127.0.0.1:{port + 3}"
    assert told["enable_kv_cache_events"] is True
    assert "bind" not in told
    with reading(flag, ranks=[1]) as reader:
        driver.go_on()
        told = driver.hear()
        reader.until_equal(1, told["content"])
        assert told["pending"] == 0
        assert reader.stream_ranks() == {1}
        assert set(reader.event_types()) == {"BlockStored", "BlockRemoved", "AllBlocksCleared"}
    driver.go_on()
    assert driver.wait() == 0, driver.output
