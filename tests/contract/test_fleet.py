"""The processes of a simulated engine, as their parent sees them."""

import os
import signal
import time

import pytest

from kvevents_core.cli.demo_plan import Workload, make_plan, parse_layout
from kvevents_core.simulation import fleet as fleet_module
from kvevents_core.simulation.fleet import Fleet


def _jobs(layout, seconds=0.2):
    return make_plan(parse_layout(layout), "zmq", {}, Workload(seconds=seconds)).jobs


def _collect(fleet, kind, count, timeout_s=30.0):
    """Take messages until ``count`` processes reported ``kind``; return all of them."""
    deadline_s = time.monotonic() + timeout_s
    taken = []
    while sum(message["kind"] == kind for _, message in taken) < count:
        assert time.monotonic() < deadline_s, taken
        taken += fleet.messages()
        time.sleep(0.01)
    return taken


def test_processes_report_wait_for_the_word_and_end_when_told():
    """Ready, then nothing until ``go``, then done with a dump, and exit code 0 at the end."""
    with Fleet(_jobs("tp=2")) as fleet:
        started = _collect(fleet, "ready", 2)
        assert {message["kind"] for _, message in started} == {"ready"}
        assert {message["pid"] for _, message in started} == set(fleet.pids)
        fleet.go()
        done = {i: m for i, m in _collect(fleet, "done", 2) if m["kind"] == "done"}
        assert done[0]["dump"] == done[1]["dump"] != []
        assert (done[0]["publishes"], done[1]["publishes"]) == (True, False)
    assert [m["code"] for _, m in fleet.messages() if m["kind"] == "exited"] == [0, 0]
    fleet.close()


def test_leaving_early_ends_processes_that_are_still_starting():
    """No process is left when the parent changes its mind at once."""
    with Fleet(_jobs("tp=2")) as fleet:
        pids = fleet.pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_that_does_not_obey_is_killed(monkeypatch):
    """Stopped by a signal it cannot read orders; closing still keeps its deadline."""
    monkeypatch.setattr(fleet_module, "_STOP_S", 0.5)
    with Fleet(_jobs("tp=1")) as fleet:
        _collect(fleet, "ready", 1)
        os.kill(fleet.pids[0], signal.SIGSTOP)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < 3
    assert fleet.messages()[-1][1] == {"kind": "exited", "code": -signal.SIGKILL}
