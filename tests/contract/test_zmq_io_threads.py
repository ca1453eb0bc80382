"""libzmq's threads preempt nobody when they wake up, where the system allows that."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from zmq_raw import frames_of, loopback, observing, publishing, receive, records

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="SCHED_BATCH and /proc are Linux's own"
)


def libzmq_threads() -> dict[int, int]:
    """Return the scheduling policy of each thread of libzmq in this process, by thread id."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith("ZMQbg"):
            found[int(task.name)] = os.sched_getscheduler(int(task.name))
    return found


def policies_of_a_publisher() -> set[int]:
    """Return the policies of the threads that opening a publisher adds; a record passes through."""
    before = libzmq_threads()
    with publishing(loopback(replay_endpoint="tcp://127.0.0.1:0")) as made:
        added = libzmq_threads().keys() - before.keys()
        policies = {os.sched_getscheduler(thread) for thread in added}
        assert len(added) == 3  # two for the sockets, one to free them
        with observing(made) as sub:
            made.publish(records(1))
            assert receive(sub) == frames_of(records(1)[0])
    return policies


def test_a_publishers_io_threads_preempt_nobody() -> None:
    """A thread that a send wakes would run instead of the sender, which holds the interpreter lock."""
    assert policies_of_a_publisher() == {os.SCHED_BATCH}


def refuse(_pid: int, _policy: int, _parameter: os.sched_param) -> None:
    """Refuse as a sandbox does."""
    raise PermissionError(1, "Operation not permitted")


def unknown(_pid: int, _policy: int, _parameter: os.sched_param) -> None:
    """Refuse as musl does, which has the function and no system call behind it."""
    raise OSError(38, "Function not implemented")


@pytest.mark.parametrize("answer", [refuse, unknown])
def test_where_it_is_refused_they_run_as_all_threads_do(
    answer: Callable[[int, int, os.sched_param], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for, libzmq would abort the engine; so it is tried before."""
    monkeypatch.setattr(os, "sched_setscheduler", answer)
    assert policies_of_a_publisher() == {os.SCHED_OTHER}


def test_where_there_is_no_such_policy_they_run_as_all_threads_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr(os, "SCHED_BATCH")
    assert policies_of_a_publisher() == {os.SCHED_OTHER}


def test_a_policy_that_the_operator_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine started under ``chrt`` has its reasons."""
    monkeypatch.setattr(os, "sched_getscheduler", lambda _pid: os.SCHED_RR)
    asked: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda _pid, policy, _: asked.append(policy))
    with publishing(loopback()):
        pass
    assert not asked
