"""Promises about the whole process: exit without shutdown, and fork."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Final

import pytest

from kvevents_core.testing.rig import Rig, records_of

EXIT_S: Final = 5.0
"""Longest that a process may take from its last line to its end."""
BATCHES: Final = 20
_EXITS: Final = """
import json, sys
from kvevents_core import AllBlocksCleared, EventPublisher, KVEventBatch, KVEventsConfig
publisher = EventPublisher(KVEventsConfig.from_mapping(json.loads(sys.argv[1])), 0)
for number in range(int(sys.argv[2])):
    publisher.publish(KVEventBatch(ts=1.0 + number, events=[AllBlocksCleared()]))
print("last line", flush=True)
"""
_FORKS: Final = """
import json, os, sys, time
from kvevents_core import AllBlocksCleared, EventPublisher, KVEventBatch, KVEventsConfig
publisher = EventPublisher(KVEventsConfig.from_mapping(json.loads(sys.argv[1])), 0)
def publish(first):
    for number in range(first, first + 10):
        publisher.publish(KVEventBatch(ts=1.0 + number, events=[AllBlocksCleared()]))
publish(0)
child = os.fork()
if child == 0:
    publish(100)
    publisher.shutdown(1.0)
    sys.exit(7)
deadline = time.monotonic() + 10
while True:
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid or time.monotonic() > deadline:
        break
    time.sleep(0.01)
if not pid:
    os.kill(child, 9)
    os.waitpid(child, 0)
    sys.exit("the forked child hung")
publish(10)
unsent = publisher.shutdown(5.0)
print(json.dumps({"child": os.waitstatus_to_exitcode(status), "unsent": unsent}))
"""


class ProcessPromises:
    """C21, C24."""

    def test_process_exits_without_shutdown(self, rig: Rig) -> None:
        """C21: a process that never calls ``shutdown`` exits in time; what it published arrives."""
        config = self._config(rig)
        elapsed_s = self._run_exit(config)
        assert elapsed_s < EXIT_S
        if rig.can.durable and rig.place.crosses_processes:
            source = rig.open_source()
            wanted = set(range(BATCHES + 1))  # the opening batch is one more
            rig.receive_until(
                source,
                lambda found: wanted <= {record.seq for record in records_of(found)},
                "all that the process published",
            )

    def test_process_exits_with_an_unreachable_peer(self, rig: Rig) -> None:
        """C21: nor does an unreachable peer keep a process from exiting."""
        peer = rig.need_peer()
        config = self._config(rig)
        peer.stop()
        assert self._run_exit(config) < EXIT_S

    def test_forked_child_neither_hangs_nor_disturbs(self, rig: Rig) -> None:
        """C24: a forked child that uses the publisher ends; the parent's stream goes on."""
        if not hasattr(os, "fork"):
            pytest.skip("this system does not fork")
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-W", "ignore", "-c", _FORKS, json.dumps(self._config(rig))],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"child": 7, "unsent": 0}
        if rig.can.durable and rig.place.crosses_processes:
            source = rig.open_source()
            arrivals = rig.receive_until(
                source,
                lambda found: 20 in {record.seq for record in records_of(found)},
                "the batches of the parent",
            )
            assert {record.seq for record in records_of(arrivals)} == set(range(21))

    def _config(self, rig: Rig) -> dict[str, object]:
        rig.need_installed()
        place = rig.place
        return {
            "publisher": rig.backend.name,
            "enable_kv_cache_events": True,
            "tenant": place.tenant,
            "model": place.model,
            "instance": place.instance,
            **place.settings,
        }

    def _run_exit(self, config: dict[str, object]) -> float:
        """Return the seconds between the last line of the process and its end."""
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", _EXITS, json.dumps(config), str(BATCHES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            ended = time.monotonic()
            _, errors = process.communicate(timeout=EXIT_S)
            elapsed_s = time.monotonic() - ended
        except subprocess.TimeoutExpired:
            pytest.fail(f"the process had not ended {EXIT_S} s after its last line")
        finally:
            process.kill()
            process.communicate()
        assert first == "last line\n", errors
        assert process.returncode == 0, errors
        return elapsed_s
