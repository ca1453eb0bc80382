"""Promises about receipts: only what is true, for each record once."""

from __future__ import annotations

from collections import Counter

import pytest

from kvevents_core.testing.rig import Rig


class ConfirmationPromises:
    """C14, C28, C29."""

    def test_confirmed_records_are_there(self, rig: Rig) -> None:
        """C14: capability *confirms*: what is confirmed, the transport really holds."""
        rig.need("confirms")
        driver = rig.open()
        watch = rig.watch(driver)
        for size in (1, 10, 100):
            sent = driver.send([b"confirm me"] * size)
            driver.settle()
            watch.until_all([record for record in sent if record.seq in driver.delivered])

    def test_nothing_is_confirmed_while_the_peer_is_away(self, rig: Rig) -> None:
        """C14: capability *confirms*: nothing is confirmed that the peer has not said yes to."""
        rig.need("confirms")
        peer = rig.need_peer()
        driver = rig.open()
        driver.send([b"while all was well"])
        driver.settle()
        peer.stop()
        first = driver.next_seq
        driver.queue([b"nobody can say yes to this"] * 50)
        driver.run_for(0.2)
        queued = range(first, driver.next_seq)
        yes = [r for r in driver.receipts if r.last_seq in queued and r.rejected is None]
        assert yes == []

    def test_every_record_gets_one_receipt(self, rig: Rig) -> None:
        """C28: capability *confirms*: each record taken gets one receipt, no other record any."""
        rig.need("confirms")
        driver = rig.open()
        for size in (1, 30, 300):
            driver.send([b"x"] * size)
        driver.settle()
        driver.run_for(0.05)
        receipts: Counter[int] = Counter()
        for receipt in driver.receipts:
            receipts.update(range(receipt.first_seq, receipt.last_seq + 1))
        assert receipts == Counter(range(driver.next_seq))

    def test_largest_payload_passes(self, rig: Rig) -> None:
        """C29: a payload of exactly ``max_message_bytes`` passes."""
        driver = rig.open()
        watch = rig.watch(driver)
        limit = driver.sink.status().max_message_bytes
        if limit is None:
            pytest.skip("the transport states no limit")
        sent = driver.send([b"m" * limit, b"the next one"])
        driver.settle()
        watch.until_all(sent)
        assert driver.rejected == {}

    def test_refused_record_is_told_and_holds_up_nothing(self, rig: Rig) -> None:
        """C29: a record the transport refuses is told as rejected; those behind it arrive."""
        rig.need("confirms")
        refused = rig.place.refused_payload
        if refused is None:
            pytest.skip("the place knows no payload that its transport refuses")
        driver = rig.open()
        watch = rig.watch(driver)
        before, bad, after = driver.send([b"before", refused, b"after"])
        driver.settle()
        watch.until_all([before, after])
        assert list(driver.rejected) == [bad.seq]
        assert bad.seq not in {one.seq for one in watch.seen}
