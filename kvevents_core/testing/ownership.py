"""Promises about who owns a stream: the epoch rule, and exclusive addresses."""

from __future__ import annotations

import pytest

from kvevents_core.errors import AddressInUseError, TransportError
from kvevents_core.testing.resources import held, left_over
from kvevents_core.testing.rig import Rig

EARLIER = 1_700_000_000_000


class OwnershipPromises:
    """C19, C30."""

    def test_records_carry_their_epoch(self, rig: Rig) -> None:
        """C19: capability *carries_epoch*: each record carries the epoch it was given."""
        rig.need("carries_epoch")
        driver = rig.open(epoch=EARLIER)
        watch = rig.watch(driver)
        seen = watch.until_all(driver.send([b"one", b"two"]))
        assert {one.epoch for one in seen} == {driver.epoch}

    def test_last_epoch_is_known_before_the_first_record(self, rig: Rig) -> None:
        """C19: capabilities *carries_epoch*, *durable*: ready means that the last epoch is known."""
        rig.need("carries_epoch")
        rig.need("durable")
        fresh = rig.open(epoch=EARLIER)
        fresh.wait_ready()
        assert fresh.sink.status().last_epoch is None
        fresh.send([b"first life"])
        fresh.settle()
        fresh.sink.close(1.0)
        again = rig.open(epoch=EARLIER)
        again.wait_ready()
        assert again.sink.status().last_epoch == fresh.epoch
        other = rig.open(rank=1, epoch=EARLIER)
        other.wait_ready()
        assert other.sink.status().last_epoch is None, "the epoch of another rank's stream"

    def test_older_publisher_learns_that_it_is_superseded(self, rig: Rig) -> None:
        """C19: capability *carries_epoch*: the publisher of a lower epoch learns of the higher."""
        rig.need("carries_epoch")
        older = rig.open(epoch=EARLIER)
        older.send([b"mine"])
        older.settle()
        newer = rig.open(epoch=EARLIER + 1000)
        newer.send([b"now mine"])
        newer.settle()

        def is_told() -> bool:
            if older.sink.status().superseded_by is None:
                older.queue([b"mine, I believe"])
            return older.sink.status().superseded_by == newer.epoch

        older.run_until(is_told, f"the older publisher learns of epoch {newer.epoch}")
        newer.send([b"still mine"])
        newer.settle()
        newer.run_for(0.1)
        assert newer.sink.status().superseded_by is None, "the newer one gave way to the older"

    def test_second_publisher_fails_at_once(self, rig: Rig) -> None:
        """C30: capability *exclusive*: a second publisher of a stream fails in ``open_sink``."""
        rig.need("exclusive")
        driver = rig.open()
        driver.send([b"mine"])
        with pytest.raises(AddressInUseError) as refused:
            rig.open()
        assert refused.value.address
        driver.send([b"undisturbed"])
        driver.sink.close(1.0)
        rig.open().send([b"free again"])

    def test_address_that_cannot_be_had_fails_at_once(self, rig: Rig) -> None:
        """C30: an address that cannot be had is a ``TransportError`` that names it; nothing stays."""
        if not rig.place.unavailable:
            pytest.skip("the place knows no local address that cannot be had")
        for settings in rig.place.unavailable:
            before = held()
            with pytest.raises(TransportError) as refused:
                rig.open(**settings)
            assert refused.value.address
            assert left_over(before, 1.0) == []
