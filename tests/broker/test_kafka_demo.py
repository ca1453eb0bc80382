"""The command line on a real broker: demo, publish and tail."""

from __future__ import annotations

import json
import subprocess
import sys

from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage
from broker.kafka_streams import mapping_of

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS


def run(*arguments: str) -> str:
    """Run a command of kvevents; return what it printed."""
    command = [sys.executable, "-W", "ignore", "-m", "kvevents_core.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_demo_finds_one_stream_per_rank(kafka_bootstrap: str, topic: str) -> None:
    """tp=8, cp=2, attn_dp=2, pp=2 on Kafka: streams exactly 2, mirrors equal, no duplicates."""
    more = json.dumps({"bootstrap_servers": kafka_bootstrap, "topic": topic})
    layout = "tp=8,cp=2,attn_dp=2,pp=2"
    shown = run(
        *("demo", "--json", "--publisher", "kafka", "--layout", layout),
        *("--seconds", "2", "--config", more),
    )
    verdict = json.loads(shown.splitlines()[-1])
    assert verdict["ok"], verdict
    assert (verdict["streams"], verdict["duplicates"]) == (2, 0), verdict


def test_what_publish_sends_tail_shows(kafka_bootstrap: str, topic: str) -> None:
    """The log outlives the publisher: tail shows its batches afterwards, from the beginning."""
    config = json.dumps(mapping_of(kafka_bootstrap, topic))
    run("publish", config, "--count", "20", "--rate", "0")
    shown = run("tail", config, "--json", "--count", "5", "--seconds", "30")
    lines = [json.loads(line) for line in shown.splitlines()]
    assert len(lines) == 5
    assert [line["seq"] for line in lines] == [0, 1, 2, 3, 4]
