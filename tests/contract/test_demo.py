"""``kvevents demo`` with real processes: one stream per rank, and every broken rule is caught."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "kvevents_core.cli", "demo"]
LINUX = sys.platform.startswith("linux")


def _run(*arguments):
    """Run a demo to its end; return its exit code and the verdict on its last line."""
    done = subprocess.run(
        [*DEMO, "--json", *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 1, done.stdout + done.stderr
    return done.returncode, json.loads(lines[0])


def _children(pid):
    """Return the living children of ``pid`` that are engine processes."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            command = status.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"kvevents_core.simulation.process" in command:
            found.add(int(status.parent.name))
    return found


def _is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _wait(condition, timeout_s=20.0):
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "condition did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def long_demo():
    """A demo of two processes that runs for a minute unless the test ends it."""
    with subprocess.Popen(
        [*DEMO, "--json", "--layout", "tp=2", "--seconds", "60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            _wait(lambda: len(_children(demo.pid)) == 2 or demo.poll() is not None)
            yield demo
        finally:
            demo.kill()


def test_tp_cp_and_pp_replicas_are_silent_and_the_mirror_equals_the_cache():
    """TP2 x CP2 x PP2: one stream, one publisher, whole; the others hold and record nothing."""
    code, verdict = _run("--layout", "tp=2,cp=2,pp=2", "--seconds", "1")
    assert code == 0, verdict["problems"]
    assert (verdict["streams"], verdict["expected_streams"]) == (1, 1)
    assert (verdict["duplicates"], verdict["gaps"], verdict["mirror_equal"]) == (0, 0, True)
    assert verdict["events"] > 50
    assert verdict["mirrored_blocks"] > 50
    publishers = [each for each in verdict["processes"] if each["publishes"]]
    silent = [each for each in verdict["processes"] if not each["publishes"]]
    assert [each["process"] for each in publishers] == ["pp0.tp0"]
    assert len(silent) == 3
    assert len({each["pid"] for each in verdict["processes"]}) == 4
    for each in silent:
        held = (each["recorded_events"], each["event_metrics"], each["published_batches"])
        assert held == (0, 0, 0)
        assert each["cached_blocks"] == publishers[0]["cached_blocks"]


@pytest.mark.skipif(not LINUX, reason="/proc tells which process holds what on Linux only")
def test_only_publishers_hold_sockets_threads_and_listening_addresses():
    """By the operating system's own account, not by kvevents': each stream's process listens."""
    code, verdict = _run("--layout", "tp=4,attn_dp=2", "--seconds", "0.5")
    assert code == 0, verdict["problems"]
    for each in verdict["processes"]:
        assert (each["sockets"] > 0) == each["publishes"]
        assert (each["publisher_threads"] > 0) == each["publishes"]
    listening = [verdict["publishers"][rank][0]["listening"] for rank in ("0", "1")]
    assert all(listening)
    assert not set(listening[0]) & set(listening[1])


@pytest.mark.parametrize("layout", ["dp=2", "tp=2,attn_dp=2"])
def test_where_the_reader_binds_there_are_as_many_streams_as_ranks(layout):
    """Connect mode: both kinds of data parallelism give distinct streams, none is missing."""
    code, verdict = _run("--layout", layout, "--connect", "--seconds", "0.5")
    assert code == 0, verdict["problems"]
    assert (verdict["streams"], verdict["duplicates"]) == (2, 0)
    pids = [verdict["publishers"][rank][0]["pid"] for rank in ("0", "1")]
    assert pids[0] != pids[1]


@pytest.mark.parametrize(
    ("layout", "broken", "culprits"),
    [
        ("tp=2,cp=2", "cp", {"tp0", "tp1"}),
        ("tp=2,pp=2", "pp", {"pp0.tp0", "pp1.tp0"}),
        ("tp=2", "tp", {"tp0", "tp1"}),
        ("dp=2", "dp", {"dp0", "dp1"}),
    ],
)
def test_a_broken_rule_is_caught_by_the_second_bind(layout, broken, culprits):
    """Bind mode: one of the two is refused, and the verdict names both processes.

    Or both: two sockets bound in the same instant keep each other from listening (Linux, tcp(7)'s
    SO_REUSEADDR, seen once in some hundred runs).
    """
    code, verdict = _run("--layout", layout, "--break", broken, "--seconds", "0.3")
    assert code == 1
    assert verdict["duplicates"] == 1
    twice = verdict["publishers"]["0"]
    assert {each["process"] for each in twice} == culprits
    assert sum(each["refused"] is not None for each in twice) in (1, 2)
    (said,) = [problem for problem in verdict["problems"] if "was published by 2" in problem]
    assert all(f"{each['process']} (pid {each['pid']}" in said for each in twice)


@pytest.mark.parametrize(("layout", "broken"), [("tp=2,cp=2", "cp"), ("dp=2", "dp")])
def test_a_broken_rule_is_caught_by_identity_where_nobody_is_refused(layout, broken):
    """Connect mode: both publish; the reader sees one seq with two contents and says so."""
    code, verdict = _run("--layout", layout, "--break", broken, "--connect", "--seconds", "0.3")
    assert code == 1
    assert verdict["duplicates"] == 1
    assert verdict["conflicts"] >= 1
    assert [each["refused"] for each in verdict["publishers"]["0"]] == [None, None]
    assert any("second publisher of stream 0" in problem for problem in verdict["problems"])


@pytest.mark.skipif(not LINUX, reason="children are found in /proc")
def test_an_engine_process_that_dies_is_named(long_demo):
    """A killed process fails the run with its name and exit code."""
    victim, *others = sorted(_children(long_demo.pid))
    os.kill(victim, signal.SIGKILL)
    for other in others:  # else the run would go on for its minute
        os.kill(other, signal.SIGKILL)
    out, _ = long_demo.communicate(timeout=40)
    verdict = json.loads(out.splitlines()[-1])
    assert long_demo.returncode == 1
    assert any(
        f"(pid {victim})" in problem and "exit code -9" in problem
        for problem in verdict["problems"]
    )


@pytest.mark.skipif(not LINUX, reason="children are found in /proc")
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_engine_process_outlives_its_parent(long_demo, sign):
    """Interrupted, ended or killed: the processes of the demo end with it, within seconds."""
    children = _children(long_demo.pid)
    long_demo.send_signal(sign)
    long_demo.wait(20)
    _wait(lambda: not any(map(_is_running, children)))
    assert long_demo.returncode == (130 if sign is signal.SIGINT else -sign)
