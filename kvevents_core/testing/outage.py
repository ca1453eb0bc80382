"""Promises about trouble: a peer that stops, restarts or stalls."""

from __future__ import annotations

import statistics
import threading
import time
from typing import Final

import pytest

from kvevents_core.testing.driver import SinkDriver
from kvevents_core.testing.rig import Rig

BLOCKED_S: Final = 0.05
"""A send that takes longer than this, at the median, waits for something."""


class OutagePromises:
    """C12, C26, C18."""

    def test_sending_resumes_after_the_peer_restarts(self, rig: Rig) -> None:
        """C12: after the peer restarts, sending resumes by itself."""
        peer = rig.need_peer()
        driver = rig.open()
        watch = rig.watch(driver)
        for _ in range(2):
            peer.stop()
            driver.run_for(0.05)
            peer.start()
            last = driver.next_seq
            watch.until(
                lambda seen, last=last: bool(  # type: ignore[misc]
                    driver.send([b"again"]) and [o for o in seen if o.seq >= last]
                ),
                "records sent after the restart",
            )

    def test_nothing_taken_is_lost_in_an_outage(self, rig: Rig) -> None:
        """C12: capability *confirms*: what an outage interrupts arrives after it, all of it."""
        rig.need("confirms")
        peer = rig.need_peer()
        driver = rig.open()
        watch = rig.watch(driver)
        sent = driver.queue([b"before, perhaps not confirmed %d" % n for n in range(300)])
        driver.step()
        peer.stop()
        sent += driver.queue([b"meanwhile %d" % n for n in range(300)])
        driver.run_for(0.1)
        peer.start()
        sent += driver.send([b"after %d" % n for n in range(10)])
        driver.settle()
        watch.until_all(sent)

    def test_order_survives_a_rebuilt_client(self, rig: Rig) -> None:
        """C18: capability *confirms*: after an outage the log is in order; repeats only repeat."""
        rig.need("confirms")
        peer = rig.need_peer()
        driver = rig.open()
        watch = rig.watch(driver)
        first = driver.next_seq
        driver.queue([b"x" * 200] * 400)
        driver.step()
        peer.stop()
        driver.queue([b"y" * 200] * 100)
        driver.run_for(0.05)
        peer.start()
        driver.send([b"after"] * 5)
        driver.settle()
        watch.until_seq(driver.next_seq - 1)
        highest = first - 1
        for one in watch.seen:
            assert one.seq <= highest + 1, f"seq {one.seq} came before {highest + 1}"
            highest = max(highest, one.seq)

    def test_no_call_blocks_without_a_peer(self, rig: Rig) -> None:
        """C26: ``status`` and ``send`` return at once, also when the peer is gone."""
        peer = rig.need_peer()
        driver = rig.open()
        driver.send([b"while all was well"])
        peer.stop()
        self._must_not_block(driver)

    def test_no_call_blocks_with_a_slow_peer(self, rig: Rig) -> None:
        """C26: nor do they wait for a peer that answers late; what was sent arrives in the end."""
        peer = rig.need_peer()
        if not peer.can_stall:
            pytest.skip("this peer cannot be slowed down")
        driver = rig.open()
        watch = rig.watch(driver)
        peer.slow_down(0.1)
        self._must_not_block(driver)
        peer.start()
        driver.settle()
        watch.until_seq(driver.next_seq - 1)

    def _must_not_block(self, driver: SinkDriver) -> None:
        spent: list[float] = []
        for number in range(40):
            driver.queue([b"%d" % number])
            started = time.monotonic()
            driver.step()
            spent.append(time.monotonic() - started)
        assert statistics.median(spent) < BLOCKED_S, f"the slowest took {max(spent):.3f} s"

    def test_status_can_be_asked_by_any_thread(self, rig: Rig) -> None:
        """C26: ``status`` and ``describe`` may be asked by any thread while another sends."""
        driver = rig.open()
        driver.wait_ready()
        wrong: list[BaseException] = []
        enough = threading.Event()

        def ask() -> None:
            try:
                while not enough.is_set():
                    driver.sink.status()
                    driver.sink.describe()
                    enough.wait(0.001)
            except Exception as error:
                wrong.append(error)

        askers = [threading.Thread(target=ask) for _ in range(2)]
        for asker in askers:
            asker.start()
        try:
            for _ in range(20):
                driver.send([b"x"] * 20)
        finally:
            enough.set()
            for asker in askers:
                asker.join()
        assert wrong == []
