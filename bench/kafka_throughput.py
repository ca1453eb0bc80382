"""Confirmed records per second and CPU per record: kvevents beside plain kafka-python.

    python bench/kafka_throughput.py [--records 20000] [--rounds 5] [--sizes 300,3072]

Starts Apache Kafka (Java 17 and Maven needed) on a random port, or uses ``KVEVENTS_TEST_KAFKA``.
Every way sends the same payloads with the same key, headers and producer options to one partition,
and ends when the broker has confirmed the last one. Ways take turns; medians are given. CPU is that
of the whole process, the client's thread included. Read the ratios: the absolute figures are this
machine's. What the client itself says is switched off, as it would be in an engine.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from kafka import KafkaProducer

from kvevents_core import (
    BlockStored,
    EventPublisherFactory,
    KVEventBatch,
    KVEventsConfig,
    Record,
    SinkHost,
    StreamId,
)
from kvevents_core.wire import BatchEncoder
from kvevents_kafka import KafkaBackend, KafkaSettings
from kvevents_kafka.records import HeaderEncoder, key_of

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from broker.kafka_artifacts import find_java, kafka_jars
from broker.kafka_broker import KafkaBroker

TOPIC = "kv-events"
WINDOW = 4096
"""Records under way at most, as core allows."""


class Cost(NamedTuple):
    """One run's figures."""

    per_s: float
    cpu_us: float


class EmptyHistory:
    """No replay ring."""

    def read(self, first_seq: int, limit: int) -> list[Record]:
        return []

    def bounds(self) -> tuple[int, int]:
        return (0, 0)


def stream_of(way: str, run: int) -> StreamId:
    return StreamId("bench", way, f"i{run}", 0)


def batch_like(payload: bytes, run: int) -> KVEventBatch:
    """Return a batch of about as many bytes on the wire as ``payload``."""
    tokens = max(1, (len(payload) - 120) // 3)
    event = BlockStored([run], None, list(range(256, 256 + tokens)), tokens, None)
    return KVEventBatch(ts=1.0, events=[event])


@contextmanager
def measured(count: int, costs: list[Cost]) -> Iterator[None]:
    """Measure what is done inside for ``count`` records."""
    cpu, began = time.process_time(), time.perf_counter()
    yield
    taken_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    costs.append(Cost(count / taken_s, cpu_s / count * 1e6))


def plain(bootstrap: str, payload: bytes, count: int, run: int, costs: list[Cost]) -> None:
    """Send with a ``KafkaProducer`` of the same options, and flush."""
    _plain(bootstrap, "plain", count, run, costs, lambda: payload)


def plain_encoding(
    bootstrap: str, payload: bytes, count: int, run: int, costs: list[Cost]
) -> None:
    """The same with the publisher's batches, each encoded before it is sent."""
    batch, encode = batch_like(payload, run), BatchEncoder(0).encode
    _plain(bootstrap, "encoding", count, run, costs, lambda: encode(batch))


def _plain(
    bootstrap: str, way: str, count: int, run: int, costs: list[Cost], value: Callable[[], bytes]
) -> None:
    stream = stream_of(way, run)
    settings = KafkaSettings(bootstrap_servers=bootstrap)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        compression_type=settings.compression_type,
        linger_ms=settings.linger_ms,
        batch_size=settings.batch_size,
        metrics_enabled=False,
    )
    producer.send(TOPIC, b"warm-up").get(timeout=10)
    encoder, key = HeaderEncoder(stream, "bench", "host:1"), key_of(stream)
    with measured(count, costs):
        for number in range(count):
            record = Record(stream, 1, number, value())
            producer.send(TOPIC, record.payload, key, encoder.encode(record))
        producer.flush()
    producer.close(timeout=5)


def our_sink(bootstrap: str, payload: bytes, count: int, run: int, costs: list[Cost]) -> None:
    """Hand records to the backend's sink as core does, and take every receipt."""
    stream = stream_of("sink", run)
    sink = KafkaBackend().open_sink(KafkaSettings(bootstrap_servers=bootstrap), stream)
    sink.start(SinkHost(lambda: None, lambda: 1, EmptyHistory(), "host:1", "bench"))
    while not sink.status().ready:
        time.sleep(0.001)
    records = [Record(stream, 1, number, payload) for number in range(count)]
    with measured(count, costs):
        sent = done = 0
        while done < count:
            room = min(512, WINDOW - (sent - done))
            moved = sink.send(records[sent : sent + room]) if room and sent < count else 0
            sent += moved
            done += sum(r.last_seq - r.first_seq + 1 for r in sink.take_receipts())
            if not moved:
                time.sleep(0.001)
    sink.close(1.0)


def our_publisher(bootstrap: str, payload: bytes, count: int, run: int, costs: list[Cost]) -> None:
    """``EventPublisher.publish`` up to the last confirmation: encoding and numbering included."""
    mapping = {"publisher": "kafka", "bootstrap_servers": bootstrap, "overflow": "block"}
    config = KVEventsConfig.from_mapping(
        {**mapping, "tenant": "bench", "model": "publisher", "instance": f"i{run}"}, environ={}
    )
    publisher: Any = EventPublisherFactory.create(config)
    batch = batch_like(payload, run)
    while not publisher.stats().published_batches:
        time.sleep(0.01)
    already = publisher.stats().published_batches
    with measured(count, costs):
        for _ in range(count):
            publisher.publish(batch)
        while publisher.stats().published_batches < already + count:
            time.sleep(0.01)
    publisher.shutdown()


WAYS: dict[str, Callable[[str, bytes, int, int, list[Cost]], None]] = {
    "kafka-python": plain,
    "kvevents, sink": our_sink,
    "kafka-python, encoding": plain_encoding,
    "kvevents, publisher": our_publisher,
}


def measure(bootstrap: str, size: int, records: int, rounds: int) -> None:
    """Print one table."""
    found: dict[str, list[Cost]] = {way: [] for way in WAYS}
    # Half of each payload is noise, as token ids are, so that the codec has real work.
    payload = os.urandom(size // 2) + bytes(size - size // 2)
    for number in range(rounds):
        for way, run in WAYS.items():
            run(bootstrap, payload, records, size * 1000 + number, found[way])
    plain_cpu = statistics.median(cost.cpu_us for cost in found["kafka-python"])
    print(f"\n{size} B, {records} records, {rounds} rounds\n")
    print("| way | records/s, median (min - max) | CPU per record, us | x kafka-python's CPU |")
    print("|---|---|---|---|")
    for way, costs in found.items():
        rates = [cost.per_s for cost in costs]
        cpu = statistics.median(cost.cpu_us for cost in costs)
        print(
            f"| {way} | {statistics.median(rates):,.0f} ({min(rates):,.0f} - {max(rates):,.0f}) "
            f"| {cpu:.1f} | {cpu / plain_cpu:.2f} |"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="300,3072")
    options = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("kvevents").setLevel(logging.CRITICAL)
    clients = f"kafka-python {version('kafka-python')}, crc32c {version('crc32c')}"
    print(f"Python {platform.python_version()}, {clients}, {os.cpu_count()} cores")
    sizes = [int(size) for size in options.sizes.split(",")]
    existing = os.environ.get("KVEVENTS_TEST_KAFKA")
    with kafka_jars() as jars:
        broker = None if existing else KafkaBroker(find_java(), jars)
        try:
            if broker is not None:
                broker.start()
            for size in sizes:
                measure(
                    existing or broker.bootstrap(),  # type: ignore[union-attr]
                    size,
                    options.records,
                    options.rounds,
                )
        finally:
            if broker is not None:
                broker.close()


if __name__ == "__main__":
    main()
