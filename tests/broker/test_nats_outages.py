"""NATS servers that stop, crash, freeze, fill up or change: nothing is lost in silence.

Publisher and reader are kvevents_core's, the server is the real one.
"""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from broker.cache_and_reader import LONG, Cache, LogRecords, Reading, open_publisher
from broker.nats_fixtures import NatsServers
from broker.nats_server import NatsServer
from broker.nats_streams import administer, configure, stream_of
from waiting import wait_until

from kvevents_core import Batch, Gap

pytestmark = [
    pytest.mark.broker("nats"),
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("each_sender"),
]
SHORT_CALL_S = 0.25
"""Far above what a publish may take; the machine may be busy, but an outage would take longer."""


def test_every_batch_arrives_once_and_in_order(nats_url: str, tenant: str) -> None:
    """Every batch arrives once and in order."""
    config = configure(nats_url, tenant)
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        for _ in range(3000):
            cache.step()
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.publisher.shutdown() == 0


def test_an_outage_of_the_server_loses_nothing(nats_server: NatsServer, tenant: str) -> None:
    """An outage of the server loses nothing."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))

    def outage() -> None:
        time.sleep(0.5)
        nats_server.stop()
        time.sleep(20.0 if LONG else 2.0)
        nats_server.start()

    with Reading(config) as reading:
        cache.during(1.0, outage)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.publisher.describe()["connections"] > 1
    assert cache.longest_call_s < SHORT_CALL_S
    cache.publisher.shutdown()


def test_crashes_at_random_lose_nothing(nats_server: NatsServer, tenant: str) -> None:
    """Crashes at random lose nothing."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))
    rhythm = random.Random(5)

    def crashes() -> None:
        for _ in range(20 if LONG else 5):
            time.sleep(rhythm.uniform(0.05, 0.6))
            nats_server.restart(crash=True)

    with Reading(config) as reading:
        cache.during(1.0, crashes, per_s=1000)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    assert cache.publisher.describe()["connections"] > 1
    cache.publisher.shutdown()


def test_a_frozen_server_is_noticed_and_blocks_nobody(
    nats_server: NatsServer, tenant: str
) -> None:
    """A frozen server is noticed and blocks nobody."""
    config = configure(nats_server.url, tenant, ack_timeout_s=0.5)
    cache = Cache(open_publisher(config))

    def freeze() -> None:
        time.sleep(0.3)
        nats_server.freeze()
        wait_until(lambda: cache.publisher.stats().error, 10, "an error")
        time.sleep(0.5)
        nats_server.thaw()

    with Reading(config) as reading:
        cache.during(1.0, freeze)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    cache.publisher.shutdown()


def test_shutdown_keeps_its_deadline_with_a_frozen_server(
    nats_server: NatsServer, tenant: str
) -> None:
    """Shutdown keeps its deadline with a frozen server."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config), tokens=2000)
    cache.step()
    cache.wait_delivered()
    nats_server.freeze()
    try:
        for _ in range(2000):
            cache.step()
        began = time.monotonic()
        assert cache.publisher.shutdown(1.0) > 0
        assert time.monotonic() - began < 3.0
    finally:
        nats_server.thaw()
    lost = cache.publisher.stats().lost
    assert sum(lost.values()) == 2000, lost


def test_no_server_at_all_is_no_error_and_shutdown_keeps_its_deadline(tenant: str) -> None:
    """No server at all is no error and shutdown keeps its deadline."""
    config = configure("nats://127.0.0.1:1", tenant)
    began = time.monotonic()
    cache = Cache(open_publisher(config))
    cache.step()
    assert time.monotonic() - began < 2.0
    wait_until(lambda: cache.publisher.stats().error, what="an error")
    assert "127.0.0.1:1" in (cache.publisher.stats().error or "")
    began = time.monotonic()
    assert cache.publisher.shutdown(0.5) == 1
    assert time.monotonic() - began < 2.5


def test_a_full_stream_that_refuses_new_messages_loses_only_what_is_counted(
    nats_server: NatsServer, tenant: str
) -> None:
    """The engine goes on; once there is room the stream continues, each hole a gap."""
    limit = {"max_msgs": 300, "discard": "new"}
    subjects = ["kv-events.*.*.*.*"]

    async def create(client: Any) -> None:
        await client.jetstream().add_stream(name="kv-events", subjects=subjects, **limit)

    administer(nats_server.url, create)
    config = configure(nats_server.url, tenant, max_queue_size=100, max_in_flight_batches=20)
    with LogRecords() as log:
        cache = Cache(open_publisher(config))
        cache.run(3.0)
    error = cache.publisher.stats().error or ""
    assert "maximum messages exceeded" in error
    assert any("discard is new, not old" in text for text in log.texts)
    assert cache.longest_call_s < SHORT_CALL_S

    async def enlarge(client: Any) -> None:
        await client.jetstream().update_stream(name="kv-events", subjects=subjects, max_msgs=10000)

    administer(nats_server.url, enlarge)
    with Reading(config) as reading:
        wait_until(lambda: cache.publisher.stats().error is None, what="recovery")
        cache.run(0.2)
        reading.wait_level_with(cache)
        reading.assert_holds_no_more(cache)
        lost = sum(cache.publisher.stats().lost.values())
        assert reading.lost() == lost > 0
    cache.publisher.shutdown()


def test_history_that_was_discarded_is_a_gap(nats_server: NatsServer, tenant: str) -> None:
    """History that was discarded is a gap."""
    config = configure(nats_server.url, tenant, stream_max_bytes=40_000)
    cache = Cache(open_publisher(config))
    for _ in range(1000):
        cache.step()
    cache.wait_delivered()
    with Reading(config) as reading:
        reading.wait_for(1000)
        assert len(reading.of(Gap)) == 1
        assert reading.of(Gap)[0].first_seq == 0
        reading.assert_holds_no_more(cache)
    cache.publisher.shutdown()


def test_a_deleted_stream_is_created_again_and_reading_goes_on(
    nats_server: NatsServer, tenant: str
) -> None:
    """A deleted stream is created again and reading goes on."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))

    async def delete(client: Any) -> None:
        await client.jetstream().delete_stream("kv-events")

    with Reading(config) as reading:
        cache.run(0.3)
        reading.wait_level_with(cache)
        cache.during(1.0, lambda: administer(nats_server.url, delete))
        cache.run(0.3)
        reading.wait_level_with(cache)
        reading.assert_holds_no_more(cache)
        # What was stored and deleted before it was read is gone; all else must be there.
        assert reading.lost() < 40
        assert cache.publisher.stats().lost == {}
    cache.publisher.shutdown()


def test_jetstream_switched_off_is_named_and_survived(
    nats_server: NatsServer, tenant: str
) -> None:
    """Jetstream switched off is named and survived."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))

    def switch_off() -> None:
        time.sleep(0.3)
        nats_server.jetstream = False
        nats_server.restart()
        wait_until(lambda: "JetStream" in (cache.publisher.stats().error or ""), what="error")
        nats_server.jetstream = True
        nats_server.restart()

    with Reading(config) as reading:
        cache.during(1.0, switch_off)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert cache.longest_call_s < SHORT_CALL_S
    cache.publisher.shutdown()


def test_a_lowered_max_payload_costs_at_most_what_was_on_its_way(
    nats_server: NatsServer, tenant: str
) -> None:
    """Later batches are split to fit; earlier ones too large now are counted and seen as gaps."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config), tokens=4000)
    with Reading(config) as reading:
        cache.run(0.5)
        reading.wait_level_with(cache)
        nats_server.max_payload = 2048
        nats_server.restart()
        cache.run(1.0)
        reading.wait_level_with(cache)
        lost = cache.publisher.stats().lost
        assert set(lost) <= {"rejected", "too_large"}, lost
        reading.assert_holds_no_more(cache)
        assert cache.publisher.describe()["connections"] < 5, "the server must not cut us off"
    cache.publisher.shutdown()


def test_a_max_payload_lowered_under_the_connection_is_survived(
    nats_server: NatsServer, tenant: str
) -> None:
    """The server cuts the connection at the first large record; the next one knows the limit."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config), tokens=1000)
    with Reading(config) as reading:
        cache.run(0.3)
        nats_server.max_payload = 2048
        nats_server.reload()
        cache.run(1.0)
        reading.wait_level_with(cache)
        reading.assert_holds_no_more(cache)
    cache.publisher.shutdown()


USERS = 'authorization {{ users: [ {{ user: "{user}", password: "pw" }} ] }}'


def test_revoked_credentials_are_named_and_given_back_ones_used(
    nats_servers: NatsServers, tenant: str
) -> None:
    """Revoked credentials are named and given back ones used."""
    server = nats_servers(config=USERS.format(user="engine"))
    config = configure(server.url, tenant, user="engine", password="pw")
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        cache.run(0.3)
        server.config = USERS.format(user="other")
        server.reload()
        wait_until(lambda: not cache.publisher.stats().connected, what="being thrown out")
        cache.run(1.0)
        assert "authorization" in (cache.publisher.stats().error or "").lower()
        server.config = USERS.format(user="engine")
        server.reload()
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    assert "pw" not in str(cache.publisher.describe())
    cache.publisher.shutdown()


def test_a_reader_that_stops_reading_for_a_while_misses_nothing(
    nats_url: str, tenant: str
) -> None:
    """What is not asked for is not sent: a slow reader is never cut off."""
    from kvevents_core import subscribe

    config = configure(nats_url, tenant)
    cache = Cache(open_publisher(config))
    with subscribe(config) as subscription:
        for _ in range(12_000):
            cache.step()
        cache.wait_delivered()
        seqs: list[int] = []

        def all_read() -> bool:
            seqs.extend(i.seq for i in subscription.receive(0.2) if isinstance(i, Batch))
            return len(seqs) > 12_000

        wait_until(all_read, 30, "all batches")
        assert seqs == list(range(12_001))
    cache.publisher.shutdown()


def test_a_stream_made_anew_does_not_mislead_a_reader_that_resumes(
    nats_server: NatsServer, tenant: str
) -> None:
    """A position in a stream that no longer exists is not used to skip the new one."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        for _ in range(500):
            cache.step()
        reading.wait_level_with(cache)
        position = reading._subscription.position()
    assert position["source"]["seq"] == 501

    async def purge(client: Any) -> None:
        await client.jetstream().delete_stream("kv-events")

    administer(nats_server.url, purge)
    for _ in range(100):
        cache.step()
    with Reading(config, start=position) as reading:
        reading.wait_level_with(cache)
        assert [seq for _, seq in reading.seqs()] == list(range(501, 601))
        assert not reading.of(Gap)
    assert stream_of(tenant) == cache.publisher.stream
    cache.publisher.shutdown()
