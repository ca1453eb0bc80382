"""The plain consumer of the how-to reads what kvevents publishes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from broker.cache_and_reader import Cache, open_publisher
from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import configure

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS
PAGE = (Path(__file__).parents[2] / "docs/how-to/kafka.md").read_text("utf-8")


def test_the_plain_consumer_of_the_page_works(kafka_bootstrap: str, topic: str) -> None:
    """The code as it stands, with this cluster's address: every batch once, in order."""
    cache = Cache(open_publisher(configure(kafka_bootstrap, topic)))
    for _ in range(100):
        cache.step()
    cache.wait_delivered()
    epoch = cache.publisher.stats().epoch
    assert cache.publisher.shutdown() == 0
    (code,) = re.findall(r"```python\n(import msgspec\n.*?)```", PAGE, re.DOTALL)
    code = code.replace("localhost:9092", kafka_bootstrap).replace('"kv-events"', f'"{topic}"')
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    rows = [line.split(" ", 3) for line in done.stdout.splitlines()]
    assert [(row[0], int(row[1]), int(row[2])) for row in rows] == [
        ("t0/org_2Fmodel/i0/0", epoch, seq) for seq in range(101)
    ]
    assert rows[0][3] == "['AllBlocksCleared']"
    assert rows[1][3] == "['BlockStored']"
