"""The command line on a real nats-server: demo, publish, tail and check."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(120)]


def kvevents(url: str, *arguments: str) -> tuple[int, list[Any]]:
    """Run one command; return its exit code and its lines of JSON."""
    done = subprocess.run(
        [sys.executable, "-m", "kvevents_core.cli", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={"KVEVENTS_NATS_SERVERS": url, "PATH": "", "HOME": ""},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_the_demo_on_tp_cp_pp_dp_has_exactly_one_whole_stream_per_rank(nats_url: str) -> None:
    """Sixteen processes, two streams, the mirror equal to the caches, nothing twice."""
    code, (verdict,) = kvevents(
        nats_url,
        "demo",
        "--publisher",
        "nats",
        "--layout",
        "tp=4,cp=2,pp=2,attn_dp=2",
        "--seconds",
        "2",
    )
    assert code == 0, verdict
    assert verdict["ok"], verdict


def test_a_demo_that_forgets_a_dimension_is_caught_on_nats_too(nats_url: str) -> None:
    """Two publishers of one stream: the epoch rule leaves one of them."""
    code, (verdict,) = kvevents(
        nats_url,
        "demo",
        "--publisher",
        "nats",
        "--layout",
        "pp=2",
        "--break",
        "pp",
        "--seconds",
        "2",
    )
    assert code == 1, verdict
    assert not verdict["ok"]


def test_publish_and_tail_meet_on_the_server(nats_url: str, tenant: str) -> None:
    """Publish and tail meet on the server."""
    config = json.dumps({"publisher": "nats", "tenant": tenant, "instance": "cli"})
    code, _ = kvevents(nats_url, "publish", config, "--seconds", "1")
    assert code == 0
    code, lines = kvevents(nats_url, "tail", config, "--count", "5")
    assert code == 0
    assert [line["seq"] for line in lines] == list(range(5))
    assert lines[0]["stream"] == f"{tenant}/default/cli/0"


@pytest.mark.parametrize("there", [True, False])
def test_check_connect_tells_whether_a_server_answers(nats_url: str, there: bool) -> None:
    """Check connect tells whether a server answers."""
    url = nats_url if there else "nats://127.0.0.1:1"
    code, _ = kvevents(url, "check", "--connect", '{"publisher": "nats"}', "--timeout", "3")
    assert code == (0 if there else 1)
