"""Runs a demo: starts the processes and the reader, lets them work, waits until all is quiet.

The reader is in this process, the engine's processes are not; each cache's own dump comes back
through a pipe, by another path than its events.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvevents_core import KVEventsConfig, Subscription, subscribe
from kvevents_core.cli.demo_plan import DemoPlan
from kvevents_core.cli.demo_watch import DemoWatch
from kvevents_core.simulation.fleet import Fleet

_START_S: Final = 90.0
_FINISH_S: Final = 90.0
"""Longest time a run may take beyond the seconds asked for."""
_QUIET_S: Final = 10.0
_POLL_S: Final = 0.1

Tick = Callable[[DemoWatch], None]


def run_demo(plan: DemoPlan, config: KVEventsConfig, seconds: float, tick: Tick) -> DemoWatch:
    """Run ``plan`` and return what was seen. Nothing it started is left when it returns or raises.

    Args:
        plan: What to run.
        config: The plan's configuration as the reader takes it.
        seconds: How long the traffic is meant to last.
        tick: Called about ten times a second with what has been seen so far.

    Raises:
        TransportError: The reader cannot have its local address.
    """
    watch = DemoWatch(plan)
    with subscribe(config, dp_size=plan.layout.stream_ranks) as reader, Fleet(plan.jobs) as fleet:
        for process, pid in zip(watch.processes, fleet.pids, strict=True):
            process.pid = pid
        _Demo(reader, fleet, watch, tick).run(seconds)
    return watch


@dataclass(frozen=True, slots=True)
class _Demo:
    """A run whose processes and reader exist."""

    reader: Subscription
    fleet: Fleet
    watch: DemoWatch
    tick: Tick

    def run(self, seconds: float) -> None:
        processes = self.watch.processes
        self._look_until(lambda: all(process.is_settled for process in processes), _START_S)
        self._look_until(self._sees_every_opening, _QUIET_S)
        self.fleet.go()
        self._look_until(
            lambda: all(process.is_finished for process in processes), seconds + _FINISH_S
        )
        self._look_until(self.watch.has_read_everything, _QUIET_S)

    def _sees_every_opening(self) -> bool:
        """Whether the reader heard of each stream that has a publisher: it opens with a batch."""
        started = [p for p in self.watch.processes if p.ready and p.wants_to_publish]
        return {process.stream_rank for process in started} <= set(self.watch.streams)

    def _look_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Take what comes until ``condition`` holds or the time is up; the verdict tells which."""
        deadline_s = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline_s:
            for item in self.reader.receive(_POLL_S):
                self.watch.take_item(item)
            for index, message in self.fleet.messages():
                self.watch.take_message(index, message)
            self.tick(self.watch)
