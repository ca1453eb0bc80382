"""vLLM's real server, unmodified, publishes through kvevents: one rank and two, replay, restart."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.environments import EngineEnvironment
from engines.reading import free_ports, reading
from engines.servers import Server, prompts, vllm_server
from engines.test_sglang_server import read_until

from kvevents_core import Restarted

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(1500)]


def zmq_flag(port: int) -> dict[str, Any]:
    """Return the flag of a publisher on loopback; ``bind`` is a key that stock vLLM refuses."""
    return {
        "publisher": "zmq",
        "endpoint": f"tcp://127.0.0.1:{port}",
        "bind": True,
        "topic": "kv-events",
        "replay_endpoint": f"tcp://127.0.0.1:{port + 10}",
    }


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Servers of a test, killed after it."""
    started: list[Server] = []
    yield started
    for server in started:
        server.kill()


def test_dp1_life_of_a_server(vllm: EngineEnvironment, servers: list[Server]) -> None:
    """Requests, evictions, the sources document, replay to a late reader, and a restart."""
    flag = zmq_flag(free_ports(20))
    server = vllm_server(vllm, flag, KVEVENTS_REPLACE_ZMQ="1")
    servers.append(server)
    server.wait_until_healthy()
    with reading(flag, ranks=[0]) as reader:
        for prompt in prompts(8):
            server.complete(prompt)
        read_until(reader, lambda: reader.event_types()["BlockRemoved"], "removals")
        assert reader.event_types()["BlockStored"] >= 8
        assert reader.stream_ranks() == {0}

        told = server.ask("/kv_event_sources")
        assert set(told) == {"0"}
        assert told["0"]["endpoint"] == flag["endpoint"]
        assert "bind" not in told["0"]

        with reading(flag, ranks=[0]) as late:
            held = reader.mirror.blocks(reader.stream(0))
            read_until(late, lambda: held == late.mirror.blocks(reader.stream(0)), "the history")

        server.kill()
        again = vllm_server(vllm, flag, KVEVENTS_REPLACE_ZMQ="1")
        servers.append(again)
        again.wait_until_healthy()
        again.complete(prompts(1)[0])
        read_until(
            reader,
            lambda: any(isinstance(item, Restarted) for item in reader.items),
            "the restart",
            60.0,
        )


def test_dp2_is_exactly_two_streams(
    vllm: EngineEnvironment, servers: list[Server], tmp_path: Path
) -> None:
    """Two EngineCores hold two caches: streams 0 and 1, told with their real endpoints."""
    port = free_ports(20)
    flag = zmq_flag(port)
    server = vllm_server(vllm, flag, "--data-parallel-size", "2", KVEVENTS_REPLACE_ZMQ="1")
    servers.append(server)
    server.wait_until_healthy()
    with reading(flag, ranks=[0, 1]) as reader:

        def both_stored() -> bool:
            streams = reader.mirror.streams()
            return len(streams) == 2 and all(reader.mirror.blocks(each) for each in streams)

        for prompt in prompts(12):
            server.complete(prompt)
        read_until(reader, both_stored, "stores of both ranks")
        assert reader.stream_ranks() == {0, 1}
    told = server.ask("/kv_event_sources")
    assert {rank: each["endpoint"] for rank, each in told.items()} == {
        "0": f"tcp://127.0.0.1:{port}",
        "1": f"tcp://127.0.0.1:{port + 1}",
    }


def test_third_partys_backend_is_known_by_the_served_model(
    vllm: EngineEnvironment, servers: list[Server], tmp_path: Path
) -> None:
    """A foreign backend's keys reach EngineCore, and the stream carries the served model's name."""
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    third_party = Path(__file__).parent / "third_party"
    paths = [vllm.environ()["PYTHONPATH"], str(third_party)]
    server = vllm_server(
        vllm,
        {"publisher": "ledger", "ledger_folder": str(ledger)},
        PYTHONPATH=os.pathsep.join(paths),
    )
    servers.append(server)
    server.wait_until_healthy()
    server.complete(prompts(1)[0])
    (path,) = ledger.iterdir()
    assert path.name.startswith("rank0-")
    assert '"stream": "default/tiny/' in path.read_text()
    assert server.ask("/kv_event_sources") == {}
