"""Promises about the end: refusing, quiet, in time, nothing left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest

from kvevents_core.errors import ClosedError
from kvevents_core.testing.resources import held, left_over
from kvevents_core.testing.rig import Rig

SLACK_S: Final = 0.75
"""What a busy machine may add to a deadline."""


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


class ClosingPromises:
    """C4, C5, C6, C23."""

    def test_closed_sink_refuses(self, rig: Rig) -> None:
        """C4: a closed sink raises ``ClosedError``; it never swallows a record."""
        driver = rig.open()
        driver.send([b"before"])
        driver.sink.close(1.0)
        records = driver.number([b"after"])
        with pytest.raises(ClosedError):
            driver.sink.send(records)

    def test_closed_source_refuses(self, rig: Rig) -> None:
        """C4: a closed source raises ``ClosedError``; it never looks like a quiet stream."""
        source = rig.open_source()
        source.close()
        with pytest.raises(ClosedError):
            source.receive(0.01)

    def test_closing_twice_is_quiet_and_quick(self, rig: Rig) -> None:
        """C5: closing a sink again is quiet and quick; so is flushing a closed one."""
        driver = rig.open()
        driver.send([b"one"])
        driver.sink.close(1.0)
        closed = driver.sink.status()
        assert _seconds(lambda: driver.sink.close(1.0)) < SLACK_S
        assert _seconds(lambda: driver.sink.flush(0.2)) < 0.2 + SLACK_S
        assert driver.sink.status().error == closed.error, "closing again went wrong"
        driver.sink.describe()

    def test_closing_a_source_twice_is_quiet_and_quick(self, rig: Rig) -> None:
        """C5: closing a source again is quiet and quick."""
        source = rig.open_source()
        source.receive(0.01)
        source.close()
        assert _seconds(source.close) < SLACK_S

    def test_close_keeps_its_deadline_when_the_peer_was_never_there(self, rig: Rig) -> None:
        """C6: flush and close keep their deadlines with a peer that was never reachable."""
        rig.need_peer().stop()
        driver = rig.open()
        driver.run_for(0.1)
        self._must_end_in_time(driver.sink.flush, driver.sink.close)

    def test_close_keeps_its_deadline_when_the_peer_died(self, rig: Rig) -> None:
        """C6: flush and close keep their deadlines with a peer that died under load."""
        peer = rig.need_peer()
        driver = rig.open()
        driver.send([b"while all was well"])
        peer.stop()
        driver.queue([b"x" * 1000] * 2000)
        driver.run_for(0.1)
        self._must_end_in_time(driver.sink.flush, driver.sink.close)

    def test_close_keeps_its_deadline_when_the_peer_stalls(self, rig: Rig) -> None:
        """C6: flush and close keep their deadlines with a peer that answers nothing."""
        peer = rig.need_peer()
        if not peer.can_stall:
            pytest.skip("this peer cannot stall")
        driver = rig.open()
        driver.send([b"while all was well"])
        peer.stall()
        driver.queue([b"x" * 1000] * 2000)
        driver.run_for(0.1)
        self._must_end_in_time(driver.sink.flush, driver.sink.close)

    def test_flush_says_when_nothing_waits(self, rig: Rig) -> None:
        """C6: ``flush`` is True once nothing waits any more, and does not wait then."""
        driver = rig.open()
        driver.send([b"one", b"two"])
        driver.run_until(driver.is_settled, "every record is settled")
        assert driver.sink.flush(rig.place.patience_s) is True
        assert _seconds(lambda: driver.sink.flush(5.0)) < SLACK_S

    def test_source_closes_promptly_without_a_peer(self, rig: Rig) -> None:
        """C6: a source whose peer is not reachable closes promptly."""
        rig.need_peer().stop()
        source = rig.open_source()
        source.receive(0.1)
        assert _seconds(source.close) < 1.0 + SLACK_S

    def _must_end_in_time(
        self, flush: Callable[[float], bool], close: Callable[[float], None]
    ) -> None:
        assert _seconds(lambda: flush(0.3)) < 0.3 + SLACK_S, "flush overran its 0.3 s"
        assert _seconds(lambda: close(0.5)) < 0.5 + SLACK_S, "close overran its 0.5 s"

    def test_closing_leaves_no_thread_and_no_descriptor(self, rig: Rig) -> None:
        """C23: when ``close`` returned, no thread and no descriptor of the sink is left."""

        def live() -> None:
            driver = rig.open()
            driver.send([b"one"])
            driver.sink.flush(1.0)
            driver.sink.close(2.0)

        live()  # what a client keeps once for the process is not a leak
        before = held()
        live()
        assert left_over(before, 1.0) == []

    def test_closing_a_source_leaves_no_thread_and_no_descriptor(self, rig: Rig) -> None:
        """C23: when ``close`` returned, no thread and no descriptor of the source is left."""

        def live() -> None:
            source = rig.open_source()
            source.receive(0.05)
            source.close()

        live()
        before = held()
        live()
        assert left_over(before, 1.0) == []

    def test_closing_without_a_peer_leaves_nothing(self, rig: Rig) -> None:
        """C23: nor is anything left when the peer was not reachable at the end."""
        peer = rig.need_peer()

        def live() -> None:
            driver = rig.open()
            driver.run_for(0.05)
            driver.sink.close(1.0)

        live()
        before = held()
        peer.stop()
        live()
        assert left_over(before, 2.0) == []
