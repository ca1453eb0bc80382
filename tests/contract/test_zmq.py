"""The ZMQ backend keeps every promise of the contract that it claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq
from contract.zmq_place import SECRET, ZmqDialledPlace, ZmqPlace

from kvevents_core.errors import AddressInUseError
from kvevents_core.testing import BackendConformance, Rig
from kvevents_core.testing.closing import ClosingPromises
from kvevents_core.testing.conformance import Adopted
from kvevents_core.testing.delivery import DeliveryPromises
from kvevents_core.testing.outage import OutagePromises
from kvevents_core.testing.resources import held, left_over
from kvevents_zmq import ZmqBackend

pytest_plugins = ["kvevents_core.testing.plugin"]


class TestZmqOnIpc(BackendConformance):
    """The publisher binds paths of a folder."""

    backend = ZmqBackend()

    @pytest.fixture
    def place(self) -> ZmqPlace:
        """Paths of the test's own."""
        return ZmqPlace.on_ipc()

    def test_close_keeps_its_deadline_with_a_reader_that_does_not_read(self, rig: Rig) -> None:
        """C6: flush and close keep their deadlines with a reader that does not read."""
        driver = rig.open(hwm=10)
        rig.watch(driver)  # reads nothing from here on
        driver.send([b"x" * 100_000] * 500)
        ClosingPromises()._must_end_in_time(driver.sink.flush, driver.sink.close)

    def test_what_cannot_be_sent_leaves_nothing_half_sent(self, rig: Rig) -> None:
        """C9: a record that cannot be framed fails before its first frame."""
        driver = rig.open()
        watch = rig.watch(driver)
        (good,) = driver.number([b"good"])
        with pytest.raises(OverflowError):
            driver.sink.send([good._replace(seq=2**64)])
        with pytest.raises(TypeError):
            driver.sink.send([good._replace(payload="text")])  # type: ignore[arg-type]
        assert driver.sink.send([good]) == 1
        assert [(one.seq, one.flaw) for one in watch.until_seq(good.seq)] == [(good.seq, None)]

    def test_a_failed_opening_frees_what_it_had_taken(self, rig: Rig) -> None:
        """C30: the event address of a publisher whose replay address was taken is free again."""
        rig.open()
        other = f"{rig.place.settings['endpoint']}-other"
        with pytest.raises(AddressInUseError):
            rig.open(endpoint=other)
        rig.open(endpoint=other, replay_endpoint=None).send([b"free"])

    def test_a_failed_opening_under_curve_leaves_nothing(self, rig: Rig, tmp_path: Path) -> None:
        """C30: the socket that admits readers goes with a publisher whose address was taken."""
        keys = tmp_path / "clients"
        keys.write_text(zmq.curve_keypair()[0].decode())
        curve = {"curve_secret_key": SECRET, "curve_client_keys_file": str(keys)}
        rig.open()
        before = held()
        with pytest.raises(AddressInUseError):
            rig.open(**curve)
        assert left_over(before, 1.0) == []


class TestZmqOnTcp(BackendConformance):
    """The publisher binds loopback ports."""

    backend = ZmqBackend()

    @pytest.fixture
    def place(self) -> ZmqPlace:
        """Ports of the test's own."""
        return ZmqPlace.on_tcp()


class TestZmqDialling(Adopted, DeliveryPromises, OutagePromises, ClosingPromises):
    """The publisher dials and readers bind, so that a peer can go and come back.

    Promises about sources are left to the classes above: where a reader binds, the kit's observer
    and our source cannot both have the address.
    """

    backend = ZmqBackend()

    @pytest.fixture
    def place(self, monkeypatch: pytest.MonkeyPatch) -> ZmqDialledPlace:
        """Paths of the test's own; without a reader the first records are held back briefly."""
        monkeypatch.setattr("kvevents_zmq.sink.FIRST_READER_S", 0.3)
        place = ZmqDialledPlace.on_ipc()
        assert isinstance(place, ZmqDialledPlace)
        return place

    def test_nothing_is_lost_before_the_first_reader(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C27: what is published before a reader binds is held back, not dropped by PUB."""
        monkeypatch.setattr("kvevents_zmq.sink.FIRST_READER_S", 60.0)
        driver = rig.open()
        early = driver.queue([b"early %d" % number for number in range(50)])
        driver.run_for(0.05)
        assert not driver.sink.status().connected
        observer = rig.place.observe(driver.sink, driver.stream)
        seen: list[int] = []

        def all_arrived() -> bool:
            seen.extend(one.seq for one in observer.poll(0.01))
            return seen == [record.seq for record in early]

        try:
            driver.run_until(all_arrived, "every record from before the reader")
            driver.run_until(lambda: driver.sink.status().connected, "connected")
        finally:
            observer.close()
