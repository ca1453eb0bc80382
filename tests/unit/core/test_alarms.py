"""Alarms: each is raised once, for its cause only, with a code that an alert can match."""

from __future__ import annotations

import logging

import pytest
from fake_sink import STREAM, Line

from kvevents_core.alarms import ENOUGH_REQUESTS, GRACE_S, Alarms
from kvevents_core.events import AllBlocksCleared, BlockStored, KVEventBatch
from kvevents_core.metrics import PublisherCollector
from kvevents_core.outbox import Waiting
from kvevents_core.stats import PublisherStats


def taken(*events: object) -> list[Waiting]:
    return [Waiting(0, KVEventBatch(0.0, list(events)))]


def stored(block_size: int = 16, medium: str | None = "GPU") -> BlockStored:
    return BlockStored([1], None, [1] * block_size, block_size, None, medium)


@pytest.fixture
def clock() -> list[float]:
    """A time that the test sets."""
    return [0.0]


@pytest.fixture
def alarms(clock: list[float]) -> Alarms:
    """Alarms at that time."""
    return Alarms(STREAM, lambda: clock[0])


def test_requests_without_blocks_raise_an_alarm_once(
    alarms: Alarms, clock: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Traffic, a publisher that is up, and no block: said with a code (ai-dynamo/dynamo#11984).

    The AllBlocksCleared that a new cache reports is no proof that it records.
    """
    alarms.note_requests(ENOUGH_REQUESTS)
    alarms.look(taken(AllBlocksCleared()))
    assert alarms.raised == ()
    clock[0] = GRACE_S
    with caplog.at_level(logging.WARNING, "kvevents"):
        alarms.look()
        alarms.look()
    assert alarms.raised == ("no_events",)
    assert [vars(r)["kvevents_code"] for r in caplog.records] == ["no_events"]
    assert "[no_events]" in caplog.text
    alarms.look(taken(stored()))
    assert alarms.raised == ()


def test_an_idle_engine_raises_no_alarm(alarms: Alarms, clock: list[float]) -> None:
    """No request for an hour, or a few short ones: all is well."""
    clock[0] = 3600.0
    alarms.look()
    alarms.note_requests(ENOUGH_REQUESTS - 1)
    clock[0] = 7200.0
    alarms.look()
    assert alarms.raised == ()


@pytest.mark.parametrize(("size", "raised"), [(16, ()), (32, ("block_size",))])
def test_a_block_size_that_readers_were_not_told_raises_an_alarm_once(
    alarms: Alarms, caplog: pytest.LogCaptureFixture, size: int, raised: tuple[str, ...]
) -> None:
    """Advertised 16: blocks of 16 are right, blocks of 32 hit nothing (sgl-project/sglang#35298)."""
    alarms.expect_block_size(16)
    with caplog.at_level(logging.WARNING, "kvevents"):
        # Other tiers may have blocks of another size, or none.
        alarms.look(taken(stored(0), stored(64, "CPU"), stored(size), stored(size)))
        alarms.look(taken(stored(size)))
    assert alarms.raised == raised
    assert len(caplog.records) == len(raised)


def test_the_sender_looks_at_what_it_takes() -> None:
    """The alarm comes from the sender's step, whatever the transport."""
    line = Line()
    line.sender._alarms.expect_block_size(8)
    line.outbox.put(KVEventBatch(0.0, [stored(16)]))
    line.step()
    assert line.sender._alarms.raised == ("block_size",)


def test_what_is_no_batch_is_passed_over(alarms: Alarms) -> None:
    """Looking never costs a batch."""
    alarms.look([Waiting(0, None), Waiting(0, KVEventBatch(0.0, 5)), *taken(None, stored())])
    assert alarms.raised == ()


def test_alarms_are_gauges() -> None:
    """1 while an alarm holds, 0 otherwise."""

    class Alarmed:
        stream = STREAM

        def stats(self) -> PublisherStats:
            return PublisherStats(alarms=("no_events",))

    values = {
        family.name: family.samples[0].value
        for family in PublisherCollector(Alarmed()).collect()
        if family.samples
    }
    assert values["kvevents_no_events"] == 1.0
    assert values["kvevents_block_size_mismatch"] == 0.0
