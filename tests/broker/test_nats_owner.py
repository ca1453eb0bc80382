"""One owner per stream on NATS: the highest epoch, whoever starts, restarts or has a wrong clock."""

from __future__ import annotations

import time

import pytest
from broker.cache_and_reader import Cache, LogRecords, Reading, open_publisher
from broker.nats_fixtures import NatsServers
from broker.nats_server import NatsServer
from broker.nats_streams import configure
from waiting import wait_until

from kvevents_core import Batch, Conflict, EventPublisher, Gap, KVEventsConfig, Restarted

pytestmark = [
    pytest.mark.broker("nats"),
    pytest.mark.timeout(60),
    pytest.mark.usefixtures("each_sender"),
]


def test_two_publishers_of_one_stream_end_as_one_clean_stream_and_one_loud_error(
    nats_url: str, tenant: str
) -> None:
    """The older one stops within a second of the newer one's first record, and says why."""
    config = configure(nats_url, tenant)
    with LogRecords() as log, Reading(config) as reading:
        older = Cache(open_publisher(config))
        older.run(0.3)
        newer = Cache(open_publisher(config))
        wait_until(lambda: newer.publisher.stats().published_batches, what="the newer's opening")
        began = time.monotonic()
        while older.publisher.stats().superseded_by is None:
            older.step()
            time.sleep(0.005)
            assert time.monotonic() - began < 1.0, "the older publisher has not noticed"
        newer.run(0.3)
        older.run(0.2)
        reading.wait_level_with(newer)
        assert reading.mirror.blocks(newer.publisher.stream) == newer.contents()
    assert older.publisher.stats().superseded_by == newer.publisher.stats().epoch
    assert older.publisher.stats().lost["superseded"] > 0
    errors = [text for text in log.texts if text.startswith("ERROR")]
    assert len(errors) == 1
    assert "newer publisher" in errors[0]
    assert len(reading.of(Restarted)) == 1
    newest = [item for item in reading.of(Batch) if item.epoch == newer.publisher.stats().epoch]
    assert [item.seq for item in newest] == list(range(newer.batches + 1))
    older.publisher.shutdown()
    newer.publisher.shutdown()


def publisher_at(config: KVEventsConfig, clock_ms: int) -> EventPublisher:
    """Return a publisher whose clock stands at ``clock_ms``."""
    # Only a thread takes the clock of a test.
    config = config.model_copy(update={"sender": "thread"})
    return EventPublisher(config, clock=lambda: clock_ms)


def test_a_restart_takes_over_at_once_even_with_a_clock_that_stepped_back(
    nats_url: str, tenant: str
) -> None:
    """The epoch is raised above the last one that the log holds."""
    config = configure(nats_url, tenant)
    first = Cache(open_publisher(config))
    first.run(0.1)
    first.wait_delivered()
    epoch = first.publisher.stats().epoch
    assert epoch is not None
    first.publisher.shutdown()
    second = Cache(publisher_at(config, 1000))
    second.run(0.1)
    second.wait_delivered()
    assert second.publisher.stats().epoch == epoch + 1
    with Reading(config) as reading:
        reading.wait_level_with(second)
        assert [item.epoch for item in reading.of(Restarted)] == [epoch + 1]
        assert not reading.of(Conflict)
        assert not reading.of(Gap)
        assert reading.mirror.blocks(second.publisher.stream) == second.contents()
    second.publisher.shutdown()


def test_equal_epochs_leave_exactly_one_publisher(nats_url: str, tenant: str) -> None:
    """Two starts in one millisecond: neither sees the other in the log, one of them gives way."""
    config = configure(nats_url, tenant)
    far = 2**52
    pair = [Cache(publisher_at(config, far)) for _ in range(2)]

    def one_left() -> bool:
        for cache in pair:
            cache.step()
        epochs = {cache.publisher.stats().epoch for cache in pair}
        beaten = [cache.publisher.stats().superseded_by is not None for cache in pair]
        return None not in epochs and sum(beaten) == 1

    wait_until(one_left, what="one publisher to give way")
    for cache in pair:
        cache.publisher.shutdown()


def test_a_publisher_cut_off_while_it_was_replaced_learns_of_it_when_it_returns(
    nats_server: NatsServer, tenant: str
) -> None:
    """It has missed the newer one's live records, so it reads the end of its own subject."""
    older = Cache(open_publisher(configure(nats_server.url, tenant, reconnect_wait_s=3.0)))
    older.run(0.1)
    older.wait_delivered()
    nats_server.stop()
    wait_until(lambda: not older.publisher.stats().connected, what="the outage to show")
    older.step()
    nats_server.start()
    newer = Cache(open_publisher(configure(nats_server.url, tenant)))
    newer.step()
    newer.wait_delivered()
    wait_until(lambda: older.publisher.stats().superseded_by, what="the older to notice")
    assert older.publisher.stats().superseded_by == newer.publisher.stats().epoch
    older.publisher.shutdown()
    newer.publisher.shutdown()


NO_READING = """
authorization { users: [
  { user: "engine", password: "pw", permissions: {
      publish: ["kv-events.>", "$JS.API.STREAM.INFO.*", "$JS.API.STREAM.CREATE.*"]
      subscribe: ["_INBOX.>"] } }
  { user: "reader", password: "pw" }
] }
"""


def test_without_permission_to_read_its_own_stream_a_publisher_warns_and_uses_the_clock(
    nats_servers: NatsServers, tenant: str
) -> None:
    """Without permission to read its own stream a publisher warns and uses the clock."""
    server = nats_servers(config=NO_READING)
    config = configure(server.url, tenant, user="engine", password="pw")
    with LogRecords() as log:
        cache = Cache(open_publisher(config))
        cache.run(0.2)
        cache.wait_delivered()
    epoch = cache.publisher.stats().epoch
    assert epoch is not None
    assert abs(epoch - time.time() * 1000) < 60_000
    assert any("epoch is taken from the clock" in text for text in log.texts), log.texts
    assert any("second publisher" in text for text in log.texts), log.texts
    with Reading(configure(server.url, tenant, user="reader", password="pw")) as reading:
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()
