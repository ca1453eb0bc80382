"""Who publishes, under which name and at which address: the layouts that went wrong in public."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator

import pytest
from ports import free_port
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockRemoved,
    BlockStored,
    EventPublisher,
    KVEventsConfig,
    Mirror,
    Placement,
    RankGate,
    StreamId,
    subscribe,
)
from kvevents_core.ranks import Layout

SIZES = (1, 2, 4)


def layouts() -> Iterator[Layout]:
    """Every TP, CP, PP and DP of 1, 2 or 4, once with each kind of data parallelism."""
    for tp, cp, pp, dp in itertools.product(SIZES, repeat=4):
        yield Layout(tp_size=tp * cp, pp_size=pp, attn_cp_size=cp, dp_size=dp)
        yield Layout(tp_size=tp * cp * dp, pp_size=pp, attn_cp_size=cp, attn_dp_size=dp)


def gate(config: KVEventsConfig, place: Placement) -> RankGate:
    return RankGate.resolve(config, place)


def test_the_truth_table_has_one_publisher_per_data_parallel_rank() -> None:
    """Of every layout exactly dp processes publish, record and measure; no other does any of it.

    sgl-project/sglang#10541, #16030, #22983, #29044, #29211.
    """
    config = KVEventsConfig.from_mapping({"publisher": "memory", "instance": "engine"})
    rows = list(layouts())
    assert len(rows) == 162
    for layout in rows:
        gates = [gate(config, place) for place in layout.placements()]
        for each in gates:
            answers = {each.publishes, each.records_events, each.collects_metrics, each.enabled}
            assert len(answers) == 1, layout
        ranks = [each.placement.stream_rank for each in gates if each.publishes]
        assert sorted(ranks) == list(range(layout.dp_size * layout.attn_dp_size)), layout


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_streams_are_numbered_over_all_nodes(nodes: int) -> None:
    """DP 16 on any number of nodes: ranks 0..15 and their addresses, each once.

    Local rank 3 of the second of two nodes is stream 11 and nothing else (ai-dynamo/dynamo#5589,
    #12039; llm-d/llm-d-router#2227).
    """
    config = KVEventsConfig.from_mapping(
        {"publisher": "zmq", "endpoint": "tcp://*:5557", "instance": "engine"}
    )
    assert config.backend_settings is not None
    places = Layout(dp_size=16).placements()
    per_node = len(places) // nodes
    found: dict[int, str | None] = {}
    for node in range(nodes):
        for place in places[node * per_node : (node + 1) * per_node]:
            if gate(config, place).publishes:
                stream = StreamId("t", "m", "engine", place.stream_rank)
                found[place.stream_rank] = config.backend_settings.address_of(stream)
    assert found == {rank: f"tcp://*:{5557 + rank}" for rank in range(16)}
    assert places[8 + 3].stream_rank == 11


def test_a_reader_of_some_ranks_dials_their_global_ports() -> None:
    """A sidecar that reads streams 2 and 3 of 4 finds them where their publishers are."""
    base = 20_000 + free_port() % 20_000
    config = {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{base}", "bind": True}
    parsed = KVEventsConfig.from_mapping({**config, "instance": "engine", "heartbeat_s": 0.05})
    publishers = [EventPublisher(parsed, rank) for rank in range(4)]
    heard: set[int] = set()
    try:
        with subscribe(parsed, ranks=(2, 3)) as subscription:

            def both_heard() -> bool:
                heard.update(
                    item.stream.rank
                    for item in subscription.receive(0.05)
                    if isinstance(item, Batch)
                )
                return len(heard) == 2

            wait_until(both_heard)
    finally:
        for publisher in publishers:
            publisher.shutdown(0.2)
    assert heard == {2, 3}


@pytest.mark.parametrize(
    ("publisher", "key", "address"),
    [
        ("nats", "servers", "nats://h:4222"),
        ("kafka", "bootstrap_servers", "b:9092"),
    ],
)
def test_a_brokers_address_is_the_same_for_every_rank(
    publisher: str, key: str, address: str
) -> None:
    """Port arithmetic belongs to ZMQ alone (vllm-project/vllm#18925)."""
    config = KVEventsConfig.from_mapping({"publisher": publisher, key: [address]})
    assert config.backend_settings is not None
    config.backend_settings.check_ranks(100_000)
    kept = getattr(config.backend_settings, key)
    assert address in (kept, *kept)


def test_the_name_of_a_stream_has_nothing_of_the_process_in_it() -> None:
    """Two processes on two hosts, one instance: one stream name (ai-dynamo/dynamo#9505, #12185)."""
    names = {
        KVEventsConfig.from_cli('{"publisher":"memory"}', environ=environ).instance
        for environ in (
            {"KVEVENTS_INSTANCE": "prod-7", "HOSTNAME": "node-a"},
            {"KVEVENTS_INSTANCE": "prod-7", "HOSTNAME": "node-b", "POD_NAME": "p"},
        )
    }
    assert names == {"prod-7"}


def test_every_number_for_json_survives_a_reader_with_floats() -> None:
    """Identities are text, epochs stay below 2**53 (ai-dynamo/dynamo#12185)."""
    config = KVEventsConfig.from_mapping({"publisher": "memory", "hub": "json numbers"})
    publisher = EventPublisher(config)
    try:
        wait_until(lambda: publisher.stats().published_batches)
        with subscribe(config) as subscription:
            wait_until(lambda: subscription.receive(0.05))
            position = subscription.position()
        for document in (publisher.describe(), position):
            text = json.dumps(document)
            assert json.loads(text, parse_int=float) == json.loads(text)
    finally:
        publisher.shutdown(0.2)


def test_streams_are_never_merged() -> None:
    """The same hash in two ranks is two blocks: one rank's removal leaves the other's.

    vllm-project/vllm#49689, #53129: merging needs to know how often a block is replicated, which
    the reader's own code decides.
    """
    mirror = Mirror()
    streams = [StreamId("t", "m", "i", rank) for rank in (0, 1)]
    for stream in streams:
        for seq in (0, 1):  # stored twice by one rank is not agreement of two
            mirror.apply(Batch(stream, 1, seq, 0.0, [BlockStored([7], None, [1], 1, None, "GPU")]))
    mirror.apply(Batch(streams[0], 1, 2, 0.0, [BlockRemoved([7], "GPU")]))
    assert [mirror.blocks(stream) for stream in streams] == [frozenset(), {7}]


@pytest.mark.parametrize("bind", [True, None], ids=["told", "inferred"])
def test_whether_a_publisher_binds_or_dials_is_logged(
    bind: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A concrete host is dialled unless told otherwise, and nobody has to guess which it was.

    NVIDIA/TensorRT-LLM#17631: a host taken to mean "dial" lost every event without an error.
    """
    config = KVEventsConfig.from_mapping(
        {"publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{free_port()}"}
        | ({} if bind is None else {"bind": bind})
    )
    with caplog.at_level(logging.INFO, "kvevents"):
        publisher = EventPublisher(config)
        publisher.shutdown(0.2)
    assert f"'bind': {bind is True}" in caplog.text
    assert publisher.describe()["bind"] is (bind is True)
