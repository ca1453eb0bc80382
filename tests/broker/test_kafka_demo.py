"""The command line on a real broker: demo, publish and tail."""

from __future__ import annotations

import json
import subprocess
import sys

from broker.kafka_fixtures import KAFKA_MARKS, kafka_garbage

__all__ = ["kafka_garbage"]

pytestmark = KAFKA_MARKS


def test_the_demo_finds_one_stream_per_rank(kafka_bootstrap: str, topic: str) -> None:
    """tp=8, cp=2, attn_dp=2, pp=2 on Kafka: streams exactly 2, mirrors equal, no duplicates."""
    more = {"bootstrap_servers": kafka_bootstrap, "topic": topic}
    command = [sys.executable, "-W", "ignore", "-m", "kvevents_core.cli", "demo", "--json"]
    command += ["--publisher", "kafka", "--layout", "tp=8,cp=2,attn_dp=2,pp=2"]
    command += ["--seconds", "2", "--config", json.dumps(more)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    verdict = json.loads(done.stdout.splitlines()[-1])
    assert verdict["ok"], verdict
    assert (verdict["streams"], verdict["duplicates"]) == (2, 0), verdict
