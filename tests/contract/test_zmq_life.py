"""Sockets, threads and processes of the ZMQ backend: exit, fork, nothing inherited."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import zmq
from waiting import wait_until
from zmq_raw import STREAM, frames_of, loopback, observing, publishing, receive, records

from kvevents_core.backend import ReaderOptions
from kvevents_core.errors import ClosedError
from kvevents_zmq import ZmqBackend

PUBLISH_AND_LEAVE = """
import sys
from zmq_raw import Publishing, loopback, records
from kvevents_core.backend import ReaderOptions
from kvevents_zmq import ZmqBackend
made = Publishing(loopback(replay_endpoint="tcp://127.0.0.1:0"))
made.publish(records(1000))
source = ZmqBackend().open_source(
    loopback(endpoint=made.endpoint, replay_endpoint=made.replay_endpoint),
    ReaderOptions("tenant", "model", "instance"),
)
source.recover(0, made.ring.read(0, 1)[0].stream, 0, 5.0)
print("published", flush=True)
{leave}
"""


@pytest.mark.parametrize("leave", ["", "sys.exit(0)", "del made, source"])
def test_a_process_that_closes_nothing_ends_promptly_and_well(leave: str) -> None:
    """Publisher and reader open, replay under way: the interpreter still goes, with code 0."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH_AND_LEAVE.format(leave=leave)],
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "published"), done.stderr
    assert "Traceback" not in done.stderr
    assert time.monotonic() - start < 5


def in_child(act: object) -> int:
    """Fork, run ``act`` in the child, and return its exit code; -1 if it hangs."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = act()  # type: ignore[operator]
        finally:
            os._exit(code)
    end_at = time.monotonic() + 5.0
    while time.monotonic() < end_at:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return -1


def test_a_forked_child_is_refused_and_its_parent_undisturbed() -> None:
    """Its copy of the sink sends nothing and closes quietly; one of its own works."""
    batch = records(3)
    with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:

        def act() -> int:
            try:
                published.sink.send(batch)
            except ClosedError as exc:
                if "forked" not in str(exc):
                    return 2
            else:
                return 3
            published.sink.close(1.0)
            try:
                source.receive(0.0)
            except ClosedError:
                source.close()
            else:
                return 4
            with publishing(loopback()) as own:
                own.publish(batch)
            return 0

        source = ZmqBackend().open_source(
            loopback(endpoint=published.endpoint), ReaderOptions("tenant", "model", "instance")
        )
        with observing(published) as sub:
            assert in_child(act) == 0
            published.publish(batch)
            assert [receive(sub) for _ in batch] == [frames_of(record) for record in batch]
        source.close()


def test_a_forked_child_may_forget_what_it_inherited() -> None:
    """Collecting the parent's sink and source in the child neither hangs nor warns."""
    published = publishing(loopback(replay_endpoint="tcp://127.0.0.1:0"))
    made = published.__enter__()
    source = ZmqBackend().open_source(
        loopback(endpoint=made.endpoint), ReaderOptions("tenant", "model", "instance")
    )
    holder = {"made": made, "source": source}

    def act() -> int:
        import gc

        holder["source"].close()
        holder.clear()
        gc.collect()
        return 0

    try:
        assert in_child(act) == 0
        made.publish(records(1))
    finally:
        source.close()
        published.__exit__(None, None, None)


def test_making_a_backend_opens_nothing() -> None:
    """No client import, no thread, no socket."""
    code = (
        "import sys, threading\n"
        "import kvevents_zmq\n"
        "backend = kvevents_zmq.kvevents_backend()\n"
        "backend.settings_model(endpoint='tcp://*:5557', replay_endpoint='tcp://*:6557')\n"
        "assert 'zmq' not in sys.modules\n"
        "assert threading.active_count() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


def test_nothing_is_left_behind() -> None:
    """Threads and file descriptors are as before, after many lives."""
    with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")):
        pass
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:
            source = ZmqBackend().open_source(
                loopback(endpoint=published.endpoint, replay_endpoint=published.replay_endpoint),
                ReaderOptions("tenant", "model", "instance"),
            )
            published.publish(records(10))
            assert source.recover(0, STREAM, 0, 5.0)
            source.close()
    assert threading.active_count() == threads
    assert len(list(Path("/proc/self/fd").iterdir())) <= files


@pytest.mark.parametrize("stepwise", [False, True])
def test_closing_while_connections_come_and_go_never_blocks(stepwise: bool) -> None:
    """Libzmq's I/O thread waits for ever if a monitor's reading end goes first; here it cannot."""
    for _ in range(30):
        with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:
            settings = loopback(
                endpoint=published.endpoint, replay_endpoint=published.replay_endpoint
            )
            source = ZmqBackend().open_source(
                settings, ReaderOptions("tenant", "model", "instance")
            )
            if stepwise:
                source.recover(0, STREAM, 0, 5.0)
            source.close()


def test_a_forgotten_source_frees_its_sockets() -> None:
    """As a file does when it is collected."""
    with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as published:
        files = len(list(Path("/proc/self/fd").iterdir()))
        source = ZmqBackend().open_source(
            loopback(endpoint=published.endpoint, replay_endpoint=published.replay_endpoint),
            ReaderOptions("tenant", "model", "instance"),
        )
        source.recover(0, STREAM, 0, 5.0)
        del source
        wait_until(lambda: len(list(Path("/proc/self/fd").iterdir())) <= files)


def test_each_sink_and_source_has_a_context_of_its_own() -> None:
    """Ending one, or the process's shared one, touches no other."""
    with publishing(loopback()) as one, publishing(loopback()) as two:
        zmq.Context.instance().term()
        one.sink.close(1.0)
        with observing(two) as sub:
            two.publish(records(1))
            receive(sub)
