"""The JetStream stream behind the subjects: created, checked, never changed, named when missing."""

from __future__ import annotations

import time
from typing import Any

import pytest
from broker.cache_and_reader import Cache, LogRecords, Reading, open_publisher
from broker.nats_fixtures import NatsServers
from broker.nats_server import NatsServer
from broker.nats_streams import administer, configure
from waiting import wait_until

from kvevents_core import EventPublisher, Gap, subscribe

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(60)]
SUBJECTS = ["kv-events.*.*.*.*"]


def make(server: NatsServer, **config: Any) -> None:
    """Create a stream as an operator would."""

    async def create(client: Any) -> None:
        await client.jetstream().add_stream(
            **{"name": "kv-events", "subjects": SUBJECTS, **config}
        )

    administer(server.url, create)


def config_of(server: NatsServer, name: str = "kv-events") -> Any:
    """Return the configuration of a stream on the server."""

    async def ask(client: Any) -> Any:
        return (await client.jetstream().stream_info(name)).config

    return administer(server.url, ask)


def error_of(publisher: EventPublisher) -> str:
    """Return the publisher's error once there is one."""
    wait_until(lambda: publisher.stats().error, what="an error")
    return publisher.stats().error or ""


def test_a_created_stream_has_what_was_asked_for(nats_server: NatsServer, tenant: str) -> None:
    """A created stream has what was asked for."""
    config = configure(
        nats_server.url,
        tenant,
        stream="kv-{tenant}",
        stream_max_age_s=60,
        stream_max_bytes=1_000_000,
        stream_storage="memory",
        duplicate_window_s=30,
    )
    cache = Cache(open_publisher(config))
    cache.step()
    cache.wait_delivered()
    made = config_of(nats_server, f"kv-{tenant}")
    assert made.subjects == [f"kv-events.{tenant}.*.*.*"]
    assert (made.max_age, made.max_bytes, made.storage) == (60, 1_000_000, "memory")
    assert (made.discard, made.duplicate_window, made.num_replicas) == ("old", 30, 1)
    with Reading(config) as reading:
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


def test_an_existing_stream_is_left_as_it_is_and_both_values_are_named(
    nats_server: NatsServer, tenant: str
) -> None:
    """An existing stream is left as it is and both values are named."""
    make(nats_server, max_bytes=5_000_000, max_age=77, duplicate_window=10, storage="memory")
    before = config_of(nats_server)
    with LogRecords() as log:
        cache = Cache(open_publisher(configure(nats_server.url, tenant, stream_max_age_s=600)))
        cache.step()
        cache.wait_delivered()
    assert config_of(nats_server) == before
    warning = next(text for text in log.texts if "left as it is" in text)
    assert "max_age is 77.0 s, not 600.0 s" in warning
    assert "max_bytes is 5000000, not 1073741824" in warning
    assert "storage is memory, not file" in warning
    assert "duplicate_window is 10.0 s, not 120.0 s" in warning
    cache.publisher.shutdown()


def test_a_stream_that_may_not_be_created_is_named_and_used_once_it_is_there(
    nats_server: NatsServer, tenant: str
) -> None:
    """A stream that may not be created is named and used once it is there."""
    publisher = open_publisher(configure(nats_server.url, tenant, create_stream=False))
    error = error_of(publisher)
    assert f"no stream is bound to 'kv-events.{tenant}.org_2Fmodel.i0.0'" in error
    assert "'kv-events'" in error
    assert "create_stream" in error
    cache = Cache(publisher)
    cache.step()
    make(nats_server)
    cache.wait_delivered()
    assert publisher.stats().error is None
    publisher.shutdown()


def test_subjects_held_by_another_stream_are_named_with_the_remedy(
    nats_server: NatsServer, tenant: str
) -> None:
    """Subjects held by another stream are named with the remedy."""
    make(nats_server, name="archive", subjects=["kv-events.>"])
    publisher = open_publisher(configure(nats_server.url, tenant))
    error = error_of(publisher)
    assert "overlap" in error
    assert "set `stream` to the stream that holds these subjects" in error
    publisher.shutdown(0.1)
    cache = Cache(open_publisher(configure(nats_server.url, tenant, stream="archive")))
    cache.step()
    cache.wait_delivered()
    cache.publisher.shutdown()


def test_a_stream_bound_elsewhere_is_named(nats_server: NatsServer, tenant: str) -> None:
    """A stream bound elsewhere is named."""
    make(nats_server, subjects=["somewhere.else"])
    publisher = open_publisher(configure(nats_server.url, tenant))
    assert "is bound to somewhere.else, not to 'kv-events." in error_of(publisher)
    publisher.shutdown(0.1)


def test_ranks_that_create_the_stream_at_once_end_with_one(
    nats_server: NatsServer, tenant: str
) -> None:
    """Also with different wishes: the first one wins, the other warns."""
    caches = [
        Cache(open_publisher(configure(nats_server.url, tenant, stream_max_bytes=size), rank))
        for rank, size in enumerate([1_000_000, 2_000_000, 1_000_000, 2_000_000])
    ]
    for cache in caches:
        cache.step()
        cache.wait_delivered()
        cache.publisher.shutdown()
    assert config_of(nats_server).max_bytes in (1_000_000, 2_000_000)


def test_the_last_epoch_is_found_without_direct_access_too(
    nats_server: NatsServer, tenant: str
) -> None:
    """The last epoch is found without direct access too."""
    make(nats_server, allow_direct=False)
    config = configure(nats_server.url, tenant)
    far = 2**50
    first = EventPublisher(config, clock=lambda: far)
    Cache(first).step()
    wait_until(lambda: first.stats().published_batches == 2, what="delivery")
    first.shutdown()
    second = EventPublisher(config, clock=lambda: 1)
    wait_until(lambda: second.stats().epoch, what="an epoch")
    assert second.stats().epoch == far + 1
    second.shutdown()


def test_a_message_limit_of_the_stream_is_kept(nats_server: NatsServer, tenant: str) -> None:
    """It counts headers, as ``max_payload`` does; larger batches are split below it."""
    make(nats_server, max_msg_size=1500)
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config), tokens=800)
    with Reading(config) as reading:
        for _ in range(20):
            cache.step()
        reading.wait_level_with(cache)
        assert cache.publisher.stats().lost.get("rejected", 0) == 0
        reading.assert_holds_no_more(cache)
    assert cache.publisher.describe()["connections"] == 1
    cache.publisher.shutdown()


def test_a_limit_without_room_for_any_record_is_named(
    nats_server: NatsServer, tenant: str
) -> None:
    """A limit without room for any record is named."""
    make(nats_server, max_msg_size=100)
    publisher = open_publisher(configure(nats_server.url, tenant))
    assert "leaves no room" in error_of(publisher)
    publisher.shutdown(0.1)


def test_a_reader_whose_consumer_is_deleted_makes_another(
    nats_server: NatsServer, tenant: str
) -> None:
    """A reader whose consumer is deleted makes another."""
    config = configure(nats_server.url, tenant)
    cache = Cache(open_publisher(config))

    async def delete_all(client: Any) -> int:
        stream = client.jetstream()
        found = await stream.consumers_info("kv-events")
        for consumer in found:
            await stream.delete_consumer("kv-events", consumer.name)
        return len(found)

    with Reading(config) as reading:
        cache.run(0.3)
        reading.wait_level_with(cache)
        cache.during(0.3, lambda: administer(nats_server.url, delete_all))
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


READER = """
authorization {{ users: [
  {{ user: "engine", password: "pw" }}
  {{ user: "reader", password: "pw", permissions: {{
      publish: [ "$JS.API.CONSUMER.CREATE.kv-events.>" {more} ]
      subscribe: ["_INBOX.>"] }} }}
] }}
"""


def test_a_reader_needs_no_permission_beyond_its_consumer(
    nats_servers: NatsServers, tenant: str
) -> None:
    """Without a look at the stream itself it reads all the same."""
    server = nats_servers(config=READER.format(more=', "$JS.API.CONSUMER.MSG.NEXT.>"'))
    cache = Cache(open_publisher(configure(server.url, tenant, user="engine", password="pw")))
    cache.run(0.2)
    with Reading(configure(server.url, tenant, user="reader", password="pw")) as reading:
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
        assert not reading.of(Gap)
    cache.publisher.shutdown()


def test_a_reader_without_permission_to_ask_for_messages_is_told(
    nats_servers: NatsServers, tenant: str
) -> None:
    """A reader without permission to ask for messages is told."""
    server = nats_servers(config=READER.format(more=""))
    cache = Cache(open_publisher(configure(server.url, tenant, user="engine", password="pw")))
    cache.run(0.1)
    cache.wait_delivered()
    with subscribe(configure(server.url, tenant, user="reader", password="pw")) as subscription:
        deadline = time.monotonic() + 10
        while "MSG.NEXT" not in (subscription.stats().last_trouble or ""):
            subscription.receive(0.1)
            assert time.monotonic() < deadline, subscription.stats()
    cache.publisher.shutdown()
