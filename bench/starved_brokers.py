"""A main thread that never lets go of the GIL, over brokers: ``python -m bench.starved_brokers``.

The same computing thread as in ``starved``, publishing 1,000 batches (a) a second over JetStream and
Kafka: through kvevents, and through the plain client as a program would use it (nats-py's
``publish_async`` on a loop thread, ``KafkaProducer.send``), each encoding with msgspec. One reader with
the plain client, in a process of its own, decodes what arrives; it is the same for both.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from bench.callers import transports
from bench.contenders import OURS, PROCESS, batch_maker
from bench.measure import Line, main, run_trial, spread
from bench.reading import summary
from bench.starved import ours_waits
from bench.work import slowdown

TITLE = "Beside a main thread that computes without pause, over brokers, 1,000/s (a)"
PLAIN = "plain client"
RATE, BLOCK_S, BLOCKS = 1000, 0.5, 4
STREAM = "bench/m/i/0"

Publish = Callable[[Any], object]


def trial(contender: str, transport: str, config: dict[str, Any]) -> dict[str, Any]:
    """Compute with and without publishing in turns; report ratios and the reader's latencies."""
    make = batch_maker(OURS, "a")
    if contender == PLAIN:
        publish, waits = PLAIN_CLIENTS[transport](config)
    else:
        sender = "process" if contender == PROCESS else "thread"
        publish, waits = _ours({**config, "sender": sender})
    where = config["servers"] if transport == "nats" else config["bootstrap_servers"]
    command = [sys.executable, "-m", "bench.starved_brokers", "--read", transport, where]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "listening\n"
    publish(make(0.0))
    assert reader.stdout.readline() == "ready\n"
    ratio = slowdown(publish, waits, make, rate=RATE, block_s=BLOCK_S, blocks=BLOCKS)
    publish(make(-1.0))
    found: dict[str, Any] = json.loads(reader.stdout.readline())
    return {"slowdown": ratio, **found}


def _ours(config: dict[str, Any]) -> tuple[Publish, Callable[[], bool]]:
    from kvevents_core import EventPublisherFactory, KVEventsConfig

    publisher: Any = EventPublisherFactory.create(KVEventsConfig.from_mapping(config, environ={}))
    while not publisher.stats().published_batches:
        time.sleep(0.01)

    return publisher.publish, lambda: ours_waits(publisher)


def _plain_nats(config: dict[str, Any]) -> tuple[Publish, Callable[[], bool]]:
    import nats

    encode = msgspec.msgpack.Encoder().encode
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def connected() -> Any:
        client = await nats.connect(config["servers"])
        return client.jetstream(publish_async_max_pending=4096)

    stream = asyncio.run_coroutine_threadsafe(connected(), loop).result()
    subject = "kv-events." + STREAM.replace("/", ".")
    waiting: list[Any] = []

    async def send(payload: bytes) -> None:
        await stream.publish_async(subject, payload)

    def publish(batch: Any) -> None:
        waiting[:] = [asyncio.run_coroutine_threadsafe(send(encode(batch)), loop)]

    def waits() -> bool:
        return bool(waiting) and (not waiting[0].done() or stream.publish_async_pending() > 0)

    return publish, waits


def _plain_kafka(config: dict[str, Any]) -> tuple[Publish, Callable[[], bool]]:
    from kafka import KafkaProducer

    encode = msgspec.msgpack.Encoder().encode
    producer = KafkaProducer(
        bootstrap_servers=config["bootstrap_servers"],
        acks="all",
        enable_idempotence=True,
        compression_type="lz4",
    )
    waiting: list[Any] = []

    def publish(batch: Any) -> None:
        waiting[:] = [producer.send("kv-events", encode(batch), STREAM.encode())]

    publish(batch_maker(OURS, "a")(0.0))
    producer.flush(10)
    return publish, lambda: bool(waiting) and not waiting[0].is_done


PLAIN_CLIENTS = {"nats": _plain_nats, "kafka": _plain_kafka}


# The reader -------------------------------------------------------------------------------------


def read(transport: str, where: str) -> dict[str, Any]:
    """Read until a batch of negative time; latencies are this clock minus the batches' times."""
    from kvevents_core.events import KVEventBatch

    decode = msgspec.msgpack.Decoder(KVEventBatch).decode
    latencies: list[float] = []
    began = False
    for payload in READERS[transport](where):
        ts = decode(payload).ts
        if not began and ts == 0.0:
            began = True
            print("ready", flush=True)
        elif ts < 0:
            break
        elif began and ts > 0:
            latencies.append(time.time() - ts)
    return {"batches": len(latencies), **summary(latencies)}


def _read_kafka(where: str) -> Iterator[bytes]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=where, fetch_max_wait_ms=100)
    partitions = [
        TopicPartition("kv-events", n) for n in consumer.partitions_for_topic("kv-events")
    ]
    consumer.assign(partitions)
    consumer.seek_to_end(*partitions)
    for partition in partitions:
        consumer.position(partition)
    print("listening", flush=True)
    for record in consumer:
        yield record.value


def _read_nats(where: str) -> Iterator[bytes]:
    import queue

    import nats

    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    async def listen() -> None:
        client = await nats.connect(where)

        async def take(message: Any) -> None:
            arrived.put(message.data)

        await client.subscribe("kv-events.>", cb=take)
        await client.flush()
        print("listening", flush=True)
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(listen()), daemon=True).start()
    while True:
        yield arrived.get(timeout=60)


READERS = {"nats": _read_nats, "kafka": _read_kafka}


def run(rounds: int) -> Sequence[Line]:
    """Measure the brokers that can be started and return the lines."""
    lines: list[Line] = []
    with transports() as configs:
        for transport in sorted(configs.keys() & PLAIN_CLIENTS.keys()):
            found: dict[str, list[dict[str, Any]]] = {OURS: [], PROCESS: [], PLAIN: []}
            for number in range(rounds):
                names = list(found)[:: -1 if number % 2 else 1]  # ours first: it makes the stream
                for name in names:
                    settings = {"transport": transport, "config": configs[transport]}
                    found[name].append(run_trial("starved_brokers", name, **settings))
            lines += _lines(transport, found)
    return lines


def _lines(transport: str, found: dict[str, list[dict[str, Any]]]) -> list[Line]:
    lines = []
    for what, key, unit, scale in (
        ("reader latency p50", "p50_us", " ms", 1000),
        ("reader latency p99", "p99_us", " ms", 1000),
        ("slowdown of that thread, drain included", "slowdown", " x", 1),
    ):
        plain = [trial[key] / scale for trial in found[PLAIN]]
        theirs = {PLAIN: spread(plain, unit)}
        for name, whose in ((OURS, ""), (PROCESS, ", sender process")):
            ours = [trial[key] / scale for trial in found[name]]
            ratio = statistics.median(a / b for a, b in zip(ours, plain, strict=True))
            row = f"{what}, {transport}{whose}"
            lines.append(Line(row, spread(ours, unit), theirs, f"{ratio:.3g}"))
    return lines


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        with suppress(KeyboardInterrupt):
            print(json.dumps(read(sys.argv[2], sys.argv[3])), flush=True)
    else:
        main(TITLE, run, rounds=3)
