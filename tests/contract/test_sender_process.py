"""A sender in a process of its own keeps the promises, and what only it can get wrong."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket as system
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from waiting import wait_until

from kvevents_core import (
    Batch,
    BlockStored,
    ConfigError,
    EventPublisher,
    EventPublisherFactory,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    Restarted,
    subscribe,
)
from kvevents_core.errors import AddressInUseError
from kvevents_core.items import Item
from kvevents_core.sender_process.child_handle import ChildHandle
from kvevents_core.stats import PublisherStats


def place() -> dict[str, Any]:
    """Free loopback endpoints to bind."""
    endpoints = []
    for _ in range(2):
        with system.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoints.append(f"tcp://127.0.0.1:{probe.getsockname()[1]}")
    addresses = {"endpoint": endpoints[0], "replay_endpoint": endpoints[1]}
    return {"publisher": "zmq", "bind": True, **addresses}


@contextmanager
def publishing(config: dict[str, Any], **keys: Any) -> Iterator[EventPublisher]:
    """Open a publisher whose sender is a process; end it afterwards."""
    mapping = {**config, "sender": "process", **keys}
    made = EventPublisherFactory.create(KVEventsConfig.from_mapping(mapping))
    assert isinstance(made, EventPublisher)
    try:
        yield made
    finally:
        made.shutdown(5.0)


def child_of(publisher: EventPublisher) -> int:
    """Return the process id of the sender."""
    return int(publisher.describe()["sender_pid"])


def stored(number: int, tokens: int = 4) -> KVEventBatch:
    """Return a batch that stores one block, named by ``number``."""
    return KVEventBatch(time.time(), [BlockStored([number], None, [7] * tokens, tokens)])


def read(config: dict[str, Any], count: int, **keys: Any) -> list[Item]:
    """Return the items of a reader until it got ``count`` batches."""
    items: list[Item] = []
    mapping = {**config, **keys}
    with subscribe(KVEventsConfig.from_mapping(mapping)) as reader:

        def enough() -> bool:
            items.extend(reader.receive(0.1))
            return sum(isinstance(item, Batch) for item in items) >= count

        wait_until(enough, timeout_s=30.0)
    return items


def hashes_of(items: list[Item]) -> list[Any]:
    """Return the block hashes of ``items``, in order."""
    events = [event for item in items if isinstance(item, Batch) for event in item.events]
    return [key for event in events for key in getattr(event, "block_hashes", [])]


def settled(publisher: EventPublisher) -> PublisherStats | None:
    """Return the counters if nothing waits any more."""
    now = publisher.stats()
    return None if now.queued_batches or now.in_flight_batches else now


def is_gone(pid: int) -> bool:
    """Return whether the process has ended (a zombie has)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state in "ZX"


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's own")


def test_one_ordered_numbered_stream_and_counters_that_agree() -> None:
    """C41: what a thread publishes a process publishes: opening, order, numbers, history, counts."""
    config = place()
    with publishing(config) as publisher:
        for number in range(1000):
            publisher.publish(stored(number))
        items = read(config, 1001)
        assert hashes_of(items) == list(range(1000))
        assert [item.seq for item in items if isinstance(item, Batch)] == list(range(1001))
        now = wait_until(lambda: settled(publisher))
        assert (now.published_batches, now.published_events, now.next_seq) == (1001, 1001, 1001)
        assert now.connected
        assert publisher.describe()["endpoint"] == config["endpoint"]
    assert publisher.stats().next_seq == 1001
    assert publisher.stats().lost == {}


def test_a_batch_larger_than_the_socket_between_goes_whole() -> None:
    """A long prefill does not fit the kernel's buffer; it arrives in pieces and leaves as one."""
    config = place()
    with publishing(config) as publisher:
        publisher.publish(stored(1, tokens=2_000_000))
        publisher.publish(stored(2))
        items = read(config, 3)
    assert hashes_of(items) == [1, 2]


def test_a_frozen_process_costs_the_engine_drops_that_are_counted_and_shown() -> None:
    """C16, C39: the outbox keeps its bounds; every drop is a number that is missing in its place."""
    config = place()
    with publishing(config, max_queue_size=50) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        os.kill(child_of(publisher), signal.SIGSTOP)
        slowest_s, number = 0.0, 0

        def overflows() -> bool:
            nonlocal slowest_s, number
            for _ in range(100):
                begin = time.perf_counter()
                publisher.publish(stored(number, tokens=2000))
                slowest_s = max(slowest_s, time.perf_counter() - begin)
                number += 1
            return publisher.stats().lost.get("overflow", 0) > 100

        wait_until(overflows)
        os.kill(child_of(publisher), signal.SIGCONT)
        now = wait_until(lambda: settled(publisher))
        lost = now.lost["overflow"]
        assert now.published_batches + lost >= number + 1
        publisher.publish(stored(-1))
        items = read(config, number - lost + 2)
    gaps = sum(item.last_seq - item.first_seq + 1 for item in items if isinstance(item, Gap))
    assert gaps == lost
    assert hashes_of(items)[-1] == -1
    assert slowest_s < 0.5, "it must not wait for the process"


def test_a_process_that_dies_is_replaced_and_readers_begin_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C41: said, counted, healed: a new epoch opens, and what is published from then on arrives."""
    config = place()
    with publishing(config) as publisher:
        publisher.publish(stored(1))
        first = wait_until(lambda: settled(publisher))
        with subscribe(KVEventsConfig.from_mapping(config)) as reader:
            items: list[Item] = []

            def has(number: int) -> bool:
                items.extend(reader.receive(0.05))
                return number in hashes_of(items)

            wait_until(lambda: has(1))
            pid = child_of(publisher)
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: child_of(publisher) != pid)
            wait_until(lambda: publisher.stats().connected)
            publisher.publish(stored(2))
            wait_until(lambda: has(2))
        assert any(isinstance(item, Restarted) for item in items)
        now = wait_until(lambda: settled(publisher))
        assert now.error is None
        assert now.epoch is not None
        assert first.epoch is not None
        assert now.epoch > first.epoch
        # Two openings; nothing of the first life is forgotten.
        assert now.published_batches == 4
        assert now.sender_alive
    assert "killed by SIGKILL" in caplog.text


def test_what_dies_with_the_process_is_counted() -> None:
    """C41: handed over and never sent: delivered or not nobody can say, so it is lost by ``sender_died``."""
    config = place()
    with publishing(config) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        pid = child_of(publisher)
        os.kill(pid, signal.SIGSTOP)
        for number in range(10):
            publisher.publish(stored(number))
        wait_until(lambda: publisher.stats().in_flight_batches == 10)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: publisher.stats().lost)
        now = publisher.stats()
        assert now.lost == {"sender_died": 10}
        assert now.lost_events == {"sender_died": 10}


def test_one_that_cannot_be_replaced_is_tried_again_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C41: meanwhile batches wait, within the bounds, and the publisher says it is not connected."""
    monkeypatch.setattr("kvevents_core.sender_process.feeder.FIRST_RETRY_S", 0.1)
    config = place()
    with publishing(config) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        with monkeypatch.context() as broken:
            broken.setattr("kvevents_core.sender_process.child_handle.START_S", 0.0)
            os.kill(child_of(publisher), signal.SIGKILL)
            wait_until(lambda: "opened no sink" in str(publisher.stats().error))
            publisher.publish(stored(1))
            assert not publisher.stats().connected
            assert publisher.stats().queued_batches == 1
        wait_until(lambda: publisher.stats().connected)
        wait_until(lambda: settled(publisher))
        assert hashes_of(read(config, 2)) == [1]


def test_an_address_in_use_is_said_at_construction_with_its_facts() -> None:
    """C30: the error of the sink, with its class and attributes, as if it had opened here."""
    config = place()
    with (
        publishing(config),
        pytest.raises(AddressInUseError) as caught,
        publishing(config),
    ):
        pass
    assert caught.value.address == config["endpoint"]
    assert "stream rank 0" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"publisher": "memory"},
        {"publisher": "zmq", "endpoint": "inproc://events"},
    ],
    ids=["memory", "inproc"],
)
def test_what_reaches_this_process_only_is_refused(config: dict[str, Any]) -> None:
    """Nobody would be there to read, and nobody would say so."""
    with (
        pytest.raises(ConfigError, match="readers of this process only") as caught,
        publishing(config),
    ):
        pass
    assert caught.value.key == "sender"


def test_what_cannot_be_encoded_is_counted_and_shown() -> None:
    """C38: encoding happens in the engine's process, the hole is made in the other."""
    config = place()
    with publishing(config) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        for hopeless in (KVEventBatch(1.0, [object()]), KVEventBatch("no time", [stored(1)])):
            publisher.publish(hopeless)
        wait_until(lambda: publisher.stats().lost.get("encode") == 2)
        publisher.publish(stored(5))
        items = read(config, 2)
    assert hashes_of(items) == [5]
    assert publisher.stats().lost_events == {"encode": 2}


def test_a_hole_at_the_end_is_shown_without_another_batch() -> None:
    """C16: an empty batch comes behind it."""
    config = place()
    with publishing(config) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        publisher.publish(KVEventBatch("no time", [stored(1)]))
        wait_until(lambda: publisher.stats().published_batches >= 2)
        assert publisher.stats().lost == {"encode": 1}


@linux_only
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_engine_that_is_killed_leaves_no_process_and_what_it_handed_over_arrives(
    how: signal.Signals,
) -> None:
    """C41: the sender notices, sends what it has, and goes."""
    config = place()
    script = Path(__file__).parent.parent / "publisher_process.py"
    flag = json.dumps({**config, "sender": "process"})
    engine = subprocess.Popen(
        [sys.executable, str(script), flag, "1", "300", "0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert engine.stdout is not None
    with engine:
        assert [engine.stdout.readline() for _ in range(4)][-1] == "published 300\n"
        children = Path(f"/proc/{engine.pid}/task/{engine.pid}/children")
        [pid] = [int(child) for child in children.read_text().split()]
        assert len(hashes_of(read(config, 301))) == 300
        engine.send_signal(how)
        wait_until(lambda: is_gone(pid), timeout_s=20.0)


@linux_only
def test_shutdown_keeps_its_deadline_with_a_process_that_hangs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C6: killed, and what it had is counted."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        pid = child_of(publisher)
        os.kill(pid, signal.SIGSTOP)
        for number in range(10):
            publisher.publish(stored(number))
        begin = time.monotonic()
        assert publisher.shutdown(0.5) == 10
        assert time.monotonic() - begin < 5
        assert is_gone(pid)
    assert "is killed" in caplog.text
    assert publisher.stats().in_flight_batches == 0


@linux_only
def test_shutdown_leaves_nothing_behind() -> None:
    """C23: no process, no descriptor."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        pid = child_of(publisher)
    assert is_gone(pid)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@linux_only
def test_a_forked_child_does_not_keep_the_process_alive() -> None:
    """C24: an engine forks workers; when it dies, its sender must notice although they live on."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        end_read, end_write = os.pipe()
        worker = os.fork()
        if worker == 0:
            os.close(end_write)
            publisher.publish(stored(1))
            lost = publisher.stats().lost.get("forked")
            os.read(end_read, 1)
            os._exit(0 if lost == 1 else 1)
        os.close(end_read)
        pid = child_of(publisher)
        publisher.shutdown(5.0)
        assert is_gone(pid)
        os.close(end_write)
        assert os.waitpid(worker, 0)[1] == 0


def test_what_the_process_logs_appears_in_the_engines_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under the same logger and level; an operator reads one log."""
    with caplog.at_level(logging.INFO, logger="kvevents.zmq"), publishing(place()):
        wait_until(lambda: "is bound at" in caplog.text)
    record = next(each for each in caplog.records if "is bound at" in each.message)
    assert (record.name, record.levelno) == ("kvevents.zmq", logging.INFO)


def test_ctrl_c_is_for_the_engine() -> None:
    """The process has no terminal to be interrupted from, and ignores the signal."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        pid = child_of(publisher)
        assert os.getpgid(pid) != os.getpgid(0)
        os.kill(pid, signal.SIGINT)
        publisher.publish(stored(1))
        wait_until(lambda: publisher.stats().published_batches == 2)
        assert child_of(publisher) == pid


def test_a_process_that_cannot_start_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a traceback about a broken pipe."""
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: b"/bin/false")
    with (
        pytest.raises(OSError, match="ended at its start, with code 1"),
        publishing(place()),
    ):
        pass


def test_a_publisher_whose_metrics_have_no_port_leaves_no_process() -> None:
    """C30: construction failed after the process was there."""
    started: list[int] = []
    real = ChildHandle._greet

    def noting(self: ChildHandle, job: bytes, gives_up: Callable[[], bool]) -> None:
        started.append(self.pid)
        real(self, job, gives_up)

    with pytest.MonkeyPatch.context() as patched, system.create_server(("127.0.0.1", 0)) as taken:
        patched.setattr(ChildHandle, "_greet", noting)
        begin = time.monotonic()
        port = taken.getsockname()[1]
        with (
            pytest.raises(OSError, match=str(port)),
            publishing(place(), metrics_endpoint=f"127.0.0.1:{port}", shutdown_timeout_s=20),
        ):
            pass
    assert time.monotonic() - begin < 5
    assert is_gone(started[0])


def test_it_is_well_from_the_first_moment() -> None:
    """The process has told of itself before the engine has the publisher."""
    config = place()
    with publishing(config) as publisher:
        now, told = publisher.stats(), publisher.describe()
    assert (now.sender_alive, now.error) == (True, None)
    assert told["endpoint"] == config["endpoint"]
    assert told["pid"] == os.getpid()


def test_what_overflows_last_has_numbers_too() -> None:
    """C16: at shutdown every number was spent on a batch published or lost."""
    with publishing(place(), max_queue_size=20) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        for number in range(300):
            publisher.publish(stored(number))
    now = publisher.stats()
    assert now.lost["overflow"] > 100
    assert now.next_seq == now.published_batches + now.lost["overflow"]


def test_a_message_that_cannot_be_taken_costs_only_itself(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A filter of the engine's logging may raise; reports still come, and the end is still noticed."""
    real = ChildHandle._take
    failed: list[bytes] = []

    def failing(self: ChildHandle, message: bytes) -> None:
        if not failed:
            failed.append(message)
            raise RuntimeError("planted")
        real(self, message)

    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        monkeypatch.setattr(ChildHandle, "_take", failing)
        publisher.publish(stored(1))
        wait_until(lambda: failed)
        publisher.publish(stored(2))
        wait_until(lambda: publisher.stats().published_batches == 3)
        pid = child_of(publisher)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: child_of(publisher) != pid)
    assert "a message of sender process" in caplog.text


def test_a_superseded_publisher_does_not_come_back() -> None:
    """C19: its process dies; another one would open a higher epoch and throw out the owner."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        child = publisher._sending._feeder.child  # type: ignore[union-attr]
        facts = msgspec.structs.replace(child.report.facts, superseded_by=2**50)
        child.report = msgspec.structs.replace(child.report, facts=facts)
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: "ended" in str(publisher.stats().error))
        for number in range(10):
            publisher.publish(stored(number))
        wait_until(lambda: publisher.stats().lost.get("superseded") == 10)
        now = publisher.stats()
        assert (now.superseded_by, now.connected) == (2**50, False)
        assert child_of(publisher) == child.pid


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="CPU clocks of threads")
def test_while_no_process_can_be_started_the_engine_pays_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches wait, and the feeder sleeps."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        monkeypatch.setattr("kvevents_core.sender_process.child_handle.START_S", 0.0)
        os.kill(child_of(publisher), signal.SIGKILL)
        wait_until(lambda: "no sender process" in str(publisher.stats().error))
        publisher.publish(stored(1))
        feeder = publisher._sending._feeder  # type: ignore[union-attr]
        clock = time.pthread_getcpuclockid(feeder._thread.ident or 0)
        before, end_at = time.clock_gettime(clock), time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > end_at)
        assert time.clock_gettime(clock) - before < 0.25


def test_shutdown_does_not_wait_for_a_process_that_has_just_died() -> None:
    """C6: there is nobody to send anything any more."""
    with publishing(place()) as publisher:
        wait_until(lambda: publisher.stats().published_batches == 1)
        os.kill(child_of(publisher), signal.SIGKILL)
        begin = time.monotonic()
        publisher.shutdown(20.0)
        assert time.monotonic() - begin < 10


@linux_only
def test_signals_for_the_engine_are_not_for_the_process() -> None:
    """Of the first as of one that replaces it: SIGTERM to all is a graceful end of the engine."""
    with publishing(place()) as publisher:
        masks = []
        for _ in range(2):
            wait_until(lambda: publisher.stats().connected)
            pid = child_of(publisher)
            status = Path(f"/proc/{pid}/status").read_text()
            masks.append(dict(line.split(":\t") for line in status.splitlines())["SigBlk"])
            os.kill(pid, signal.SIGTERM)
            publisher.publish(stored(1))
            wait_until(lambda: settled(publisher))
            assert child_of(publisher) == pid
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda gone=pid: child_of(publisher) != gone)
    assert [int(mask, 16) for mask in masks] == [0, 0]
