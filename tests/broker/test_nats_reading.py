"""Reading from NATS: starts, positions, wildcards, core mode, plain clients."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from broker.cache_and_reader import Cache, Reading, open_publisher
from broker.nats_server import NatsServer
from broker.nats_streams import administer, configure, stream_of
from waiting import wait_until

from kvevents_core import Batch, Gap, Mirror, ReaderOptions, Restarted, Subscription, subscribe

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(60)]


def published(url: str, tenant: str, count: int, **more: Any) -> Cache:
    """Return a cache that has published ``count`` batches."""
    cache = Cache(open_publisher(configure(url, tenant, **more), more.pop("rank", 0)))
    for _ in range(count):
        cache.step()
    cache.wait_delivered()
    return cache


def test_a_reader_goes_on_where_another_stopped(nats_url: str, tenant: str) -> None:
    """The position is JSON, covers what was received, and nothing comes twice or never."""
    config = configure(nats_url, tenant)
    cache = published(nats_url, tenant, 100)
    with Reading(config) as reading:
        reading.wait_level_with(cache)
        position = json.loads(json.dumps(reading._subscription.position()))
    for _ in range(50):
        cache.step()
    with Reading(config, start=position) as reading:
        reading.wait_level_with(cache)
        assert [seq for _, seq in reading.seqs()] == list(range(101, 151))
        assert not reading.of(Gap)
    cache.publisher.shutdown()


def test_latest_begins_with_what_comes_next(nats_url: str, tenant: str) -> None:
    """Latest begins with what comes next."""
    config = configure(nats_url, tenant)
    cache = published(nats_url, tenant, 100)
    with Reading(config, start="latest") as reading:

        def something_read() -> bool:
            cache.step()
            time.sleep(0.01)
            return bool(reading.of(Batch))

        wait_until(something_read, what="a live batch")
        reading.wait_level_with(cache)
        first = reading.of(Batch)[0].seq
        assert first > 100
        assert [seq for _, seq in reading.seqs()] == list(range(first, cache.batches + 1))
        assert not reading.of(Gap)
    cache.publisher.shutdown()


def test_a_time_begins_with_what_was_stored_after_it(nats_url: str, tenant: str) -> None:
    """A time begins with what was stored after it."""
    config = configure(nats_url, tenant)
    cache = published(nats_url, tenant, 100)
    moment = datetime.now(UTC)
    while datetime.now(UTC) == moment:
        pass
    for _ in range(10):
        cache.step()
    with Reading(config, start=moment.isoformat()) as reading:
        reading.wait_level_with(cache)
        assert [seq for _, seq in reading.seqs()] == list(range(101, 111))
        assert not reading.of(Gap)
    cache.publisher.shutdown()


def test_one_reader_tells_ranks_instances_and_models_of_its_tenant_apart(
    nats_url: str, tenant: str
) -> None:
    """And sees nothing of another tenant's."""
    caches = [
        Cache(open_publisher(configure(nats_url, tenant, model=model, instance=instance), rank))
        for model in ("m/1", "m.2")
        for instance in ("i 1", "i2")
        for rank in (0, 1)
    ]
    stranger = published(nats_url, f"{tenant}x", 5)
    for number, cache in enumerate(caches):
        for _ in range(10 + number):
            cache.step()
        cache.wait_delivered()
    reader = ReaderOptions(tenant, "", "", all_instances=True)
    items: list[Any] = []
    subscription = Subscription(configure(nats_url, tenant), reader)

    def all_read() -> bool:
        items.extend(subscription.receive(0.2))
        return len(items) >= sum(cache.batches + 1 for cache in caches)

    wait_until(all_read, what="all streams")
    subscription.close()
    assert not [item for item in items if not isinstance(item, Batch)]
    for cache in caches:
        seqs = [item.seq for item in items if item.stream == cache.publisher.stream]
        assert seqs == list(range(cache.batches + 1))
        cache.publisher.shutdown()
    assert stranger.publisher.stream not in {item.stream for item in items}
    stranger.publisher.shutdown()


def test_chosen_ranks_only(nats_url: str, tenant: str) -> None:
    """Chosen ranks only."""
    config = configure(nats_url, tenant)
    caches = [Cache(open_publisher(config, rank)) for rank in range(4)]
    for cache in caches:
        for _ in range(20):
            cache.step()
        cache.wait_delivered()
    with Reading(config, ranks=[1, 3]) as reading:
        wait_until(lambda: len(reading.items) >= 42, what="two ranks")
        assert {item.stream.rank for item in reading.of(Batch)} == {1, 3}
        assert len(reading.items) == 42
    for cache in caches:
        cache.publisher.shutdown()


def test_a_plain_client_reads_subject_headers_and_payload(nats_url: str, tenant: str) -> None:
    """What the how-to shows: no kvevents on the reading side."""
    cache = published(nats_url, tenant, 3)
    subject = f"kv-events.{tenant}.org_2Fmodel.i0.0"

    async def read(client: Any) -> list[Any]:
        subscription = await client.jetstream().subscribe(subject, ordered_consumer=True)
        messages = [await subscription.next_msg(5) for _ in range(4)]
        await subscription.unsubscribe()
        return messages

    messages = administer(nats_url, read)
    epoch = cache.publisher.stats().epoch
    identities = [message.headers["Nats-Msg-Id"] for message in messages]
    assert identities == [f"{stream_of(tenant)}:{epoch}:{seq}" for seq in range(4)]
    version, engine, publisher = messages[0].headers["Kvevents"].split(" ")
    assert (version, engine) == ("1", "kvevents")
    assert f":{os.getpid()}-" in publisher
    _, events, rank = msgspec.msgpack.decode(messages[1].data)
    assert (events[0]["type"], events[0]["block_hashes"], rank) == ("BlockStored", [1], 0)
    cache.publisher.shutdown()


def test_the_plain_client_of_the_how_to_prints_what_was_published(
    nats_url: str, tenant: str
) -> None:
    """Word for word, but for the address and the tenant."""
    page = (Path(__file__).parents[2] / "docs/how-to/nats.md").read_text("utf-8")
    code = next(b for b in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "nats." in b)
    code = code.replace("nats://localhost:4222", nats_url).replace("acme", tenant)
    cache = published(nats_url, tenant, 1)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
    finally:
        process.kill()
        process.communicate()
    epoch = cache.publisher.stats().epoch
    assert lines == [
        f"{stream_of(tenant)} {epoch} 0 ['AllBlocksCleared']\n",
        f"{stream_of(tenant)} {epoch} 1 ['BlockStored']\n",
    ]
    cache.publisher.shutdown()


def test_core_mode_carries_live_traffic_and_says_that_it_is_at_most_once(
    nats_server: NatsServer, tenant: str
) -> None:
    """Core mode carries live traffic and says that it is at most once."""
    nats_server.jetstream = False
    nats_server.restart()
    config = configure(nats_server.url, tenant, mode="core")
    cache = Cache(open_publisher(config))
    with Reading(config, start="latest") as reading:

        def heard() -> bool:
            cache.step()
            time.sleep(0.01)
            return bool(reading.of(Batch))

        wait_until(heard, what="live traffic")
        cache.run(0.3, per_s=1000)
        reading.wait_level_with(cache)
        first = reading.of(Batch)[0].seq
        assert [seq for _, seq in reading.seqs()] == list(range(first, cache.batches + 1))
        assert not reading.of(Gap)
    assert cache.publisher.describe()["delivery"] == "at most once"
    assert cache.publisher.stats().published_batches == cache.batches + 1
    cache.publisher.shutdown()


def test_core_mode_misses_only_what_no_reader_could_hear(
    nats_server: NatsServer, tenant: str
) -> None:
    """After an outage the mirror says too little at most, and every missing number is a gap."""
    config = configure(nats_server.url, tenant, mode="core")
    cache = Cache(open_publisher(config))
    with Reading(config, start="latest") as reading:

        def heard() -> bool:
            cache.step()
            time.sleep(0.01)
            return bool(reading.of(Batch))

        wait_until(heard, what="live traffic")
        cache.during(0.5, lambda: nats_server.restart(crash=True))
        cache.run(0.5)
        reading.wait_level_with(cache)
        covered = [seq for _, seq in reading.seqs()]
        for gap in reading.of(Gap):
            covered += range(gap.first_seq, gap.last_seq + 1)
        assert sorted(covered) == list(range(min(covered), cache.batches + 1))
        assert reading.mirror.blocks(cache.publisher.stream) <= cache.contents()
        assert not reading.of(Restarted)
    cache.publisher.shutdown()


def test_nothing_is_left_behind(nats_url: str, tenant: str) -> None:
    """Neither threads here nor consumers there."""
    before = {thread.name for thread in threading.enumerate()}
    config = configure(nats_url, tenant)
    cache = published(nats_url, tenant, 10)
    with Reading(config) as reading:
        reading.wait_level_with(cache)
    cache.publisher.shutdown()
    assert {thread.name for thread in threading.enumerate()} - before == set()

    async def consumers(client: Any) -> list[Any]:
        found: list[Any] = await client.jetstream().consumers_info("kv-events")
        return [each for each in found if tenant in (each.config.filter_subject or "")]

    wait_until(lambda: administer(nats_url, consumers) == [], what="the consumer's removal")


CHILD = """
    import os, sys
    from kvevents_core import EventPublisherFactory, KVEventBatch, AllBlocksCleared, KVEventsConfig
    config = KVEventsConfig.from_mapping(
        {"publisher": "nats", "servers": sys.argv[1], "tenant": sys.argv[2], "instance": "i"},
        environ={})
    publisher = EventPublisherFactory.create(config)
    for _ in range(100):
        publisher.publish(KVEventBatch(ts=1.0, events=[AllBlocksCleared()]))
    if sys.argv[3] == "fork":
        pid = os.fork()
        if pid == 0:
            publisher.publish(KVEventBatch(ts=1.0, events=[AllBlocksCleared()]))
            publisher.shutdown(0.5)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        print("left", publisher.shutdown(5.0))
"""


@pytest.mark.parametrize("server", ["there", "absent"])
def test_a_process_that_never_shuts_down_ends_within_seconds(
    nats_url: str, tenant: str, server: str
) -> None:
    """A process that never shuts down ends within seconds."""
    url = nats_url if server == "there" else "nats://127.0.0.1:1"
    command = [sys.executable, "-c", textwrap.dedent(CHILD), url, tenant, "exit"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_a_forked_child_neither_hangs_nor_harms_its_parent(nats_url: str, tenant: str) -> None:
    """A forked child neither hangs nor harms its parent."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        textwrap.dedent(CHILD),
        nats_url,
        tenant,
        "fork",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (0, "left 0\n"), done.stderr


def test_ctrl_c_while_publishing_ends_in_time(nats_url: str, tenant: str) -> None:
    """SIGINT reaches the main thread; the connection's thread is not disturbed by it."""
    code = textwrap.dedent(CHILD) + textwrap.dedent("""
        import time
        try:
            print("ready", flush=True)
            while True:
                publisher.publish(KVEventBatch(ts=1.0, events=[AllBlocksCleared()]))
                time.sleep(0.001)
        except KeyboardInterrupt:
            print("left", publisher.shutdown(5.0))
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", code, nats_url, tenant, "exit"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, "left 0\n"), err


def test_a_late_record_finds_its_place_and_one_that_never_comes_is_a_gap(
    nats_url: str, tenant: str
) -> None:
    """What a server dropped in the middle is stored behind later ones when it is sent again."""
    config = configure(nats_url, tenant, ack_timeout_s=0.1)
    cache = published(nats_url, tenant, 1)  # makes the stream
    epoch = (cache.publisher.stats().epoch or 0) + 1
    cache.publisher.shutdown()
    payload = msgspec.msgpack.encode([1.0, [], 0])

    async def write(client: Any) -> None:
        for seq in (0, 1, 4, 3, 2, 5, 8):
            headers = {"Nats-Msg-Id": f"{stream_of(tenant)}:{epoch}:{seq}", "Kvevents": "1 e p"}
            await client.jetstream().publish(
                f"kv-events.{tenant}.org_2Fmodel.i0.0", payload, headers=headers
            )

    administer(nats_url, write)
    with Reading(config) as reading:
        reading.wait_for(8, epoch)
        assert [s for e, s in reading.seqs() if e == epoch] == [0, 1, 2, 3, 4, 5, 8]
        assert [(g.first_seq, g.last_seq) for g in reading.of(Gap)] == [(6, 7)]


def test_repeats_that_outlive_the_duplicate_window_are_dropped_by_readers(
    nats_server: NatsServer, tenant: str
) -> None:
    """The server stores them twice; numbers tell."""
    cache = published(nats_server.url, tenant, 20, duplicate_window_s=0.1)

    async def repeat(client: Any) -> int:
        stream = client.jetstream()
        stored = [await stream.get_msg("kv-events", seq) for seq in range(5, 15)]
        for one in stored:
            # The server's window is time, and nothing tells its end; each message has its own.
            while (await stream.publish(one.subject, one.data, headers=one.headers)).duplicate:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        info = await stream.stream_info("kv-events")
        return int(info.state.messages)

    assert administer(nats_server.url, repeat) == 31
    cache.step()
    config = configure(nats_server.url, tenant)
    with Reading(config) as reading:
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
        assert reading.stats.duplicates == 10
    cache.publisher.shutdown()


def test_in_core_mode_a_slow_reader_sees_a_gap_for_what_it_could_not_keep(
    nats_url: str, tenant: str
) -> None:
    """Its memory is bounded; what does not fit is dropped, said and numbered."""
    config = configure(nats_url, tenant, mode="core")
    cache = Cache(open_publisher(config))
    with subscribe(config, start="latest") as subscription:
        mirror = Mirror()
        items: list[Any] = []

        def heard(seq: int) -> bool:
            for item in subscription.receive(0.05):
                mirror.apply(item)
                items.append(item)
            return bool(items) and isinstance(items[-1], Batch) and items[-1].seq >= seq

        def begun() -> bool:
            cache.step()
            return heard(0)

        wait_until(begun, what="live traffic")
        for _ in range(8000):
            cache.step()
        cache.wait_delivered()
        wait_until(lambda: (heard(0), subscription.stats().troubles)[1], what="the notice")
        assert "too slow" in (subscription.stats().last_trouble or "")

        def is_quiet() -> bool:
            before = len(items)
            heard(0)
            return len(items) == before

        wait_until(is_quiet, what="the end of what was kept")
        cache.step()
        wait_until(lambda: heard(cache.batches), what="the next batch")
        assert subscription.stats().gaps >= 1
        assert subscription.stats().lost_batches > 1000
        assert mirror.blocks(cache.publisher.stream) <= cache.contents()
    cache.publisher.shutdown()
