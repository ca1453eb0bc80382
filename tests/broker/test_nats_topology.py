"""More than one NATS server: a leaf node before a hub, and a cluster whose leader goes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from broker.cache_and_reader import LONG, Cache, Reading, open_publisher
from broker.nats_fixtures import NatsServers, require_binary
from broker.nats_server import NatsServer
from broker.nats_streams import administer, configure
from ports import free_port
from waiting import wait_until

from kvevents_core import Gap

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(180)]

LEAFNODES = 'leafnodes {{ listen: "127.0.0.1:{port}" }}'


def test_an_engine_on_a_leaf_node_publishes_to_the_hubs_stream(
    nats_servers: NatsServers, tenant: str
) -> None:
    """``domain`` names the hub's JetStream; outages of the hub are survived."""
    hub = nats_servers(domain="hub", name="hub", config=LEAFNODES.format(port=-1))
    port = hub.monitor("varz")["leaf"]["port"]
    hub.config = LEAFNODES.format(port=port)  # the same one after a restart
    remote = f'leafnodes {{ reconnect: "1s", remotes: [ {{ url: "nats://127.0.0.1:{port}" }} ] }}'
    leaf = nats_servers(domain="leaf", name="leaf", config=remote)
    wait_until(lambda: leaf.monitor("leafz")["leafnodes"] == 1, what="the leaf's connection")
    at_leaf = configure(leaf.url, tenant, domain="hub")
    cache = Cache(open_publisher(at_leaf))
    with Reading(at_leaf) as near, Reading(configure(hub.url, tenant)) as far:
        cache.during(1.0, lambda: hub.restart(crash=True))
        for reading in (near, far):
            reading.wait_level_with(cache)
            reading.assert_complete(cache)
    assert leaf.monitor("jsz")["messages"] == 0
    assert hub.monitor("jsz")["messages"] == cache.batches + 1
    cache.publisher.shutdown()


class Cluster:
    """Three servers with JetStream.

    Args:
        folder: Where their folders go.
    """

    def __init__(self, folder: Path) -> None:
        routes = [free_port() for _ in range(3)]
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.servers = [
            NatsServer(
                folder / f"n{number}",
                name=f"n{number}",
                config=f"cluster {{ name: c, listen: 127.0.0.1:{port}, routes: [{urls}] }}",
            )
            for number, port in enumerate(routes)
        ]

    def start(self) -> None:
        """Start all three and wait until they have found together."""
        for server in self.servers:
            server.start()
        wait_until(self._has_leader, 30, "a leader of the cluster")

    def _has_leader(self) -> bool:
        page = self.servers[0].monitor("jsz")
        return bool(page.get("meta_cluster", {}).get("leader"))

    @property
    def urls(self) -> str:
        return ",".join(server.url for server in self.servers)

    def leader_of(self, stream: str) -> NatsServer | None:
        """Return the server that leads ``stream``."""
        for server in self.servers:
            if server._process is None:
                continue
            page = server.monitor("jsz?streams=true&accounts=true")
            for account in page.get("account_details", []):
                for detail in account.get("stream_detail", []):
                    leader = detail.get("cluster", {}).get("leader")
                    if detail["name"] == stream and leader:
                        return next(s for s in self.servers if s.name == leader)
        return None

    def close(self) -> None:
        for server in self.servers:
            server.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own."""
    require_binary()
    made = Cluster(tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_leaders_that_crash_or_step_down_lose_nothing(cluster: Cluster, tenant: str) -> None:
    """Whatever a change of leader drops in the middle is sent again and finds its place."""
    config = configure(cluster.urls, tenant, stream_replicas=3, ack_timeout_s=1.0)
    cache = Cache(open_publisher(config))

    async def step_down(client: Any) -> None:
        # Only a disturbance: a cluster that is electing just now need not answer.
        with contextlib.suppress(nats.errors.TimeoutError, nats.errors.NoRespondersError):
            await client.request("$JS.API.STREAM.LEADER.STEPDOWN.kv-events", b"", timeout=1)

    def change_leaders() -> None:
        for _ in range(6 if LONG else 2):
            time.sleep(0.5)
            administer(cluster.servers[0].url, step_down)
            time.sleep(0.5)
            leader = wait_until(lambda: cluster.leader_of("kv-events"), what="a leader")
            assert leader is not None
            leader.kill()
            time.sleep(1.0)
            leader.start()

    with Reading(config) as reading:
        cache.wait_delivered(60)
        cache.during(1.0, change_leaders, per_s=1000)
        reading.wait_level_with(cache, 60)
        assert not reading.of(Gap), (reading.of(Gap), reading.stats, cache.publisher.describe())
        reading.assert_complete(cache)
    cache.publisher.shutdown()
