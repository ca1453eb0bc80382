"""The publisher end to end through the memory backend: stalls, drops, holes, life and death."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Iterator

import pytest
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    ConfigError,
    EventPublisher,
    EventPublisherFactory,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    NullEventPublisher,
    Placement,
    RankGate,
    Restarted,
    subscribe,
)
from kvevents_core.items import Item
from kvevents_core.memory import MemoryHub, hub
from kvevents_core.rhythm import Rhythm

_names = itertools.count()


@pytest.fixture
def place() -> tuple[dict[str, object], MemoryHub]:
    """A configuration with a hub of its own."""
    name = f"hub{next(_names)}"
    return {"publisher": "memory", "hub": name, "instance": "engine"}, hub(name)


@pytest.fixture
def made() -> Iterator[list[EventPublisher]]:
    """Publishers to shut down at the end."""
    publishers: list[EventPublisher] = []
    yield publishers
    for publisher in publishers:
        publisher.shutdown(0.1)


def create(
    config: dict[str, object], made: list[EventPublisher], **more: object
) -> EventPublisher:
    publisher = EventPublisher(KVEventsConfig.from_mapping({**config, **more}))
    made.append(publisher)
    return publisher


def batch(number: int) -> KVEventBatch:
    return KVEventBatch(time.time(), [BlockStored([1 << 40 | number], None, [1], 1, None, "GPU")])


def read_all(config: dict[str, object], until_seq: int) -> list[Item]:
    items: list[Item] = []
    with subscribe(config) as subscription:

        def reached() -> bool:
            items.extend(subscription.receive(0.05))
            return any(isinstance(i, Batch) and i.seq >= until_seq for i in items)

        wait_until(reached, what=f"batch {until_seq}")
    return items


@pytest.mark.parametrize("overflow", ["drop_newest", "drop_oldest"])
def test_a_stalled_sink_never_blocks_and_gaps_equal_drops(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher], overflow: str
) -> None:
    """C22: the peer stalls under load: publish returns at once, and gaps equal the counted losses.

    The last loss is among them.
    """
    config, broker = place
    publisher = create(config, made, max_queue_size=50, overflow=overflow)
    wait_until(lambda: publisher.stats().published_batches == 1)
    broker.stop()
    slowest = 0.0
    end = time.monotonic() + 1.0
    number = 0
    while time.monotonic() < end:
        begin = time.perf_counter()
        publisher.publish(batch(number))
        slowest = max(slowest, time.perf_counter() - begin)
        number += 1
        time.sleep(0.0005)
    broker.restart()
    wait_until(lambda: publisher.stats().queued_batches == 0)
    wait_until(lambda: publisher.stats().in_flight_batches == 0)
    stats = publisher.stats()
    lost = stats.lost["overflow"]
    assert lost > 100
    assert stats.published_batches + lost == stats.next_seq
    items = read_all(config, stats.next_seq - 1)
    gaps = [item for item in items if isinstance(item, Gap)]
    assert sum(gap.last_seq - gap.first_seq + 1 for gap in gaps) == lost
    kept = sum(len(item.events) for item in items if isinstance(item, Batch))
    assert kept + lost == number + 1  # and the opening AllBlocksCleared
    assert slowest < 0.1  # a call takes microseconds; the machine may be busy


def test_batches_lost_to_a_restarted_peer_are_sent_again_and_come_once(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C12: the peer goes and comes back under load; nothing is lost that fits, order is kept."""
    config, broker = place
    publisher = create(config, made)
    for number in range(600):
        publisher.publish(batch(number))
        if number % 200 == 100:
            broker.stop()
        if number % 200 == 150:
            broker.restart()
    broker.restart()
    items = read_all(config, 600)
    assert [i.seq for i in items if isinstance(i, Batch)] == list(range(601))
    assert not [item for item in items if not isinstance(item, Batch)]
    assert publisher.stats().lost == {}


def test_a_second_publisher_takes_the_stream_and_the_first_falls_silent(
    place: tuple[dict[str, object], MemoryHub],
    made: list[EventPublisher],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C19: one clean stream and one loud error, whatever their clocks say."""
    config, _ = place
    first = EventPublisher(KVEventsConfig.from_mapping(config), clock=lambda: 5_000)
    made.append(first)
    wait_until(lambda: first.stats().published_batches == 1)
    second = EventPublisher(KVEventsConfig.from_mapping(config), clock=lambda: 1_000)
    made.append(second)
    wait_until(lambda: second.stats().published_batches == 1)
    assert second.stats().epoch == 5_001
    with caplog.at_level(logging.ERROR, "kvevents"):
        first.publish(batch(1))
        wait_until(lambda: first.stats().superseded_by == 5_001)
        first.publish(batch(2))
        wait_until(lambda: first.stats().lost.get("superseded", 0) >= 2)
    second.publish(batch(3))
    items = read_all(config, 1)
    assert [i for i in items if isinstance(i, Restarted)] == [
        Restarted(first.stream, 5_000, 5_001)
    ]
    assert first.describe()["superseded_by"] == 5_001
    assert len([r for r in caplog.records if "newer publisher" in r.message]) == 1


def test_shutdown_is_idempotent_and_counts_what_comes_later(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C5: the second call is quiet and quick; a publisher lives once."""
    config, _ = place
    publisher = create(config, made)
    publisher.publish(batch(0))
    assert publisher.shutdown() == 0
    assert publisher.shutdown() == 0
    publisher.publish(batch(1))
    stats = publisher.stats()
    assert stats.lost == {"closed": 1}
    assert not stats.sender_alive
    assert stats.published_batches == 2


def test_shutdown_with_a_dead_peer_keeps_its_deadline_and_says_how_much_is_unsent(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C6: full outbox, dead peer: no exception, in time, every batch accounted for."""
    config, broker = place
    broker.stop()
    publisher = create(config, made, max_queue_size=100)
    for number in range(150):
        publisher.publish(batch(number))
    begin = time.monotonic()
    assert publisher.shutdown(0.3) == 100
    assert time.monotonic() - begin < 3.0
    assert publisher.stats().lost == {"overflow": 50, "unsent_at_close": 100}


def test_no_thread_outlives_shutdown(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C23: whatever a publisher started ends with it."""
    before = set(threading.enumerate())
    publisher = create(place[0], made)
    assert set(threading.enumerate()) - before
    publisher.shutdown()
    assert set(threading.enumerate()) == before


def test_a_forked_child_refuses_and_never_hangs(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C24: in the child publish returns and counts, shutdown returns; the parent goes on."""
    config, _ = place
    publisher = create(config, made)
    publisher.publish(batch(0))
    child = os.fork()
    if child == 0:
        publisher.publish(batch(1))
        refused = publisher.stats().lost == {"forked": 1}
        publisher.shutdown()
        os._exit(0 if refused else 1)
    done = wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child or None, 10)
    assert done
    publisher.publish(batch(2))
    assert len([i for i in read_all(config, 2) if isinstance(i, Batch)]) == 3


@pytest.mark.parametrize("text", [None, "", "{}", '{"publisher": "null"}'])
def test_without_a_publisher_everything_is_a_quiet_no_op(text: str | None) -> None:
    """Null publishers take whatever an engine passes and start nothing."""
    before = threading.active_count()
    publisher = EventPublisherFactory.create(text, 3)
    assert isinstance(publisher, NullEventPublisher)
    publisher.publish(batch(0))
    assert publisher.shutdown() == 0
    assert not publisher.records_events
    assert threading.active_count() == before
    NullEventPublisher(attn_dp_rank=1, endpoint="tcp://*:5999", bind=None).publish(object())


def test_a_closed_gate_starts_nothing_and_an_open_one_publishes(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """C25: one boolean for publisher, recording and metrics, in every process of TP 2."""
    config = KVEventsConfig.from_mapping(place[0])
    gates = [RankGate.resolve(config, Placement(tp_rank=rank, tp_size=2)) for rank in (0, 1)]
    assert [g.enabled for g in gates] == [True, False]
    assert [g.records_events for g in gates] == [g.collects_metrics for g in gates]
    silent = gates[1].create_publisher()
    assert isinstance(silent, NullEventPublisher)
    speaking = gates[0].create_publisher()
    assert isinstance(speaking, EventPublisher)
    made.append(speaking)
    assert speaking.records_events
    assert speaking.stream.rank == 0


def test_a_disabled_configuration_makes_no_publisher() -> None:
    """The class says what is missing instead of failing inside."""
    with pytest.raises(ConfigError, match="publishes nothing") as caught:
        EventPublisher(KVEventsConfig.from_cli(None))
    assert caught.value.key == "publisher"


def test_describe_and_stats_are_plain_data(
    place: tuple[dict[str, object], MemoryHub], made: list[EventPublisher]
) -> None:
    """Operators get the stream, the epoch and the state without asking the sender."""
    publisher = create(place[0], made)
    wait_until(lambda: publisher.stats().epoch is not None)
    facts = publisher.describe()
    assert facts["publisher"] == "memory"
    assert facts["stream"] == str(publisher.stream)
    assert facts["pid"] == os.getpid()
    assert facts["error"] is None


def test_a_client_that_hangs_is_told_and_what_it_holds_up_is_counted(
    place: tuple[dict[str, object], MemoryHub],
    made: list[EventPublisher],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C6: a send that never returns: publish goes on, shutdown ends and says how much is left."""
    config, _ = place
    publisher = create(config, made)
    wait_until(lambda: publisher.stats().published_batches == 1)
    hangs, released = threading.Event(), threading.Event()

    def hang(_records: object) -> int:
        hangs.set()
        released.wait(30)
        return 0

    monkeypatch.setattr(publisher._sending.sink, "send", hang)
    publisher.publish(batch(0))
    assert hangs.wait(5)
    for number in range(1, 10):
        publisher.publish(batch(number))
    begin = time.monotonic()
    with caplog.at_level(logging.ERROR, "kvevents"):
        assert publisher.shutdown(0.1) == 10
    assert time.monotonic() - begin < 3
    assert "did not end" in caplog.text
    released.set()
    wait_until(lambda: not publisher.stats().sender_alive)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_death_of_the_sender_thread_shows(
    place: tuple[dict[str, object], MemoryHub],
    made: list[EventPublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C20: no longer connected, an error, and at shutdown a count (ai-dynamo/dynamo#11783)."""
    config, _ = place
    publisher = create(config, made)
    wait_until(lambda: publisher.stats().published_batches == 1)

    def die(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(Rhythm, "follow", die)
    publisher.publish(batch(0))
    wait_until(lambda: not publisher.stats().sender_alive)
    publisher.publish(batch(1))
    now = publisher.stats()
    assert not now.connected
    assert "died" in str(now.error)
    assert publisher.shutdown(0.1) == now.queued_batches + now.in_flight_batches > 0
