"""publish() by transport, beside real brokers: ``python -m bench.callers``.

The caller's side is the same code on every transport; what differs is what the sender thread and the
client's threads do to the interpreter lock meanwhile. A broker that cannot be started here is left out.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.contenders import OURS, batch_maker, sleep_until
from bench.measure import ROOT, Line, main, run_trial, spread
from bench.reading import summary
from bench.work import calibrate, compute

TITLE = "publish() by transport, paced as above (a)"
COUNT = 500


def trial(_contender: str, config: dict[str, Any]) -> dict[str, Any]:
    """Publish paced batches over the transport of ``config`` and time each call."""
    from kvevents_core import EventPublisherFactory, KVEventsConfig

    publisher: Any = EventPublisherFactory.create(KVEventsConfig.from_mapping(config, environ={}))
    make, planning, calls_s = batch_maker(OURS, "a"), calibrate(0.0002), []
    while not publisher.stats().published_batches:
        time.sleep(0.01)
    random.seed(7)
    due = time.perf_counter()
    for _ in range(COUNT):
        due += 0.002 * random.uniform(0.5, 1.5)
        sleep_until(due)
        compute(planning)
        batch = make(time.time())
        began = time.perf_counter()
        publisher.publish(batch)
        calls_s.append(time.perf_counter() - began)
    unsent = publisher.shutdown(5.0)
    return {**summary(calls_s), "unsent": unsent}


@contextmanager
def transports() -> Iterator[dict[str, dict[str, Any]]]:
    """Start what brokers can be started; yields a configuration by transport."""
    sys.path.insert(0, str(ROOT / "tests"))
    named = {"tenant": "bench", "model": "m", "instance": "i"}
    found: dict[str, dict[str, Any]] = {
        "zmq": {"publisher": "zmq", "endpoint": "tcp://127.0.0.1:0", "bind": True}
    }
    with ExitStack() as stack:
        for name, start in (("nats", _nats), ("kafka", _kafka)):
            try:
                found[name] = {"publisher": name, **named, **start(stack)}
            except Exception as exc:
                print(f"{name} is not measured: {exc}", file=sys.stderr)
        yield found


def _nats(stack: ExitStack) -> dict[str, Any]:
    from broker.nats_server import NatsServer

    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvevents-bench-"))
    server = NatsServer(Path(folder)).start()
    stack.callback(server.stop)
    return {"servers": server.url, "create_stream": True}


def _kafka(stack: ExitStack) -> dict[str, Any]:
    from broker.kafka_artifacts import find_java, kafka_jars
    from broker.kafka_broker import KafkaBroker

    broker = KafkaBroker(find_java(), stack.enter_context(kafka_jars()))
    stack.callback(broker.close)
    broker.start()
    return {"bootstrap_servers": broker.bootstrap()}


def run(rounds: int) -> Sequence[Line]:
    """Measure the transports in turns and return the lines."""
    with transports() as configs:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in configs}
        for _ in range(rounds):
            for name, config in configs.items():
                found[name].append(run_trial("callers", name, config=config))
    lines = []
    zmq = [trial["p50_us"] for trial in found["zmq"]]
    for name, trials in found.items():
        p50 = [trial["p50_us"] for trial in trials]
        ratio = statistics.median(a / b for a, b in zip(p50, zmq, strict=True))
        met = None if name == "zmq" else ratio <= 1.25
        what = f"publish() p50, {name}"
        lines.append(
            Line(what, spread(p50, " us"), {}, f"{ratio:.2f} x zmq", "<= 1.25 x zmq", met)
        )
        p99 = [trial["p99_us"] for trial in trials]
        lines.append(Line(f"publish() p99, {name}", spread(p99, " us")))
    return lines


if __name__ == "__main__":
    main(TITLE, run, rounds=3)
