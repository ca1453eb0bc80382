"""Promises about sources: what they return, from where, and what they survive."""

from __future__ import annotations

import os

import pytest

from kvevents_core.backend import Arrival, Malformed, Record, Source, Trouble
from kvevents_core.testing.driver import SinkDriver
from kvevents_core.testing.rig import Rig, Watch, records_of


class ReadingPromises:
    """C13, C33, C34, C35, C36."""

    def test_source_returns_what_the_transport_holds(self, rig: Rig) -> None:
        """C33: a source returns each record as it stands: stream, epoch, seq, payload, in order."""
        driver = rig.open()
        source = rig.open_source(start="latest")
        _hear(rig, driver, source)
        watch = rig.watch(driver)
        sent = driver.send([b"record %d" % number for number in range(200)])
        held = [(o.epoch, o.seq, o.payload) for o in watch.until_all(sent)]
        got = [
            (record.epoch, record.seq, record.payload)
            for record in _through(rig, source, watch)
            if record.seq >= sent[0].seq
        ]
        assert got == held

    def test_source_names_the_stream(self, rig: Rig) -> None:
        """C33: a source returns each record under the stream it was sent to."""
        driver = rig.open()
        source = rig.open_source()
        arrivals = _hear(rig, driver, source)
        assert {record.stream for record in records_of(arrivals)} == {driver.stream}

    def test_replayed_records_equal_live_ones(self, rig: Rig) -> None:
        """C13: capability *replays*: replayed records equal live ones, and end after the last."""
        rig.need("replays")
        driver = rig.open()
        source = rig.open_source(start="latest")
        _hear(rig, driver, source)
        watch = rig.watch(driver)
        sent = driver.send([b"record %d" % number for number in range(700)])
        live = {o.seq: o.payload for o in watch.until_all(sent)}
        replayed = _history(source, driver, sent[100].seq)
        expected = [(r.stream, r.seq, live[r.seq]) for r in sent[100:]]
        assert [(r.stream, r.seq, r.payload) for r in replayed] == expected

    def test_long_history_is_read_to_its_end(self, rig: Rig) -> None:
        """C13: capability *replays*: more history than fits any buffer comes whole, in order."""
        rig.need("replays")
        driver = rig.open()
        source = rig.open_source(start="latest")
        _hear(rig, driver, source)
        sent = []
        for _ in range(40):  # 24 MB
            sent += driver.send([os.urandom(8_000)] * 75)
            source.receive(0.01)
        replayed = _history(source, driver, sent[0].seq)
        assert [(r.seq, r.payload) for r in replayed] == [(r.seq, r.payload) for r in sent]

    def test_head_tells_where_the_publisher_stands(self, rig: Rig) -> None:
        """C13: capability *replays*: ``head`` tells epoch, oldest and next seq."""
        rig.need("replays")
        driver = rig.open()
        source = rig.open_source(start="latest")
        _hear(rig, driver, source)
        driver.send([b"x"] * 10)
        head = source.head(next(iter(source.channels())), 2.0)
        assert head is not None
        assert (head.epoch, head.first_seq, head.next_seq) == (driver.epoch, 0, driver.next_seq)

    def test_durable_stream_is_read_from_the_beginning(self, rig: Rig) -> None:
        """C34: capability *durable*: a source opened later reads from the first record on."""
        rig.need("durable")
        driver = rig.open()
        sent = driver.send([b"x"] * 50)
        driver.settle()
        driver.sink.close(1.0)
        source = rig.open_source(start="earliest")
        _all_of(rig, source, {record.seq for record in sent})

    def test_latest_reads_only_what_comes(self, rig: Rig) -> None:
        """C34: capability *durable*: a source that starts at ``latest`` returns nothing older."""
        rig.need("durable")
        driver = rig.open()
        old = driver.send([b"old"] * 20)
        driver.settle()
        source = rig.open_source(start="latest")
        arrivals = _hear(rig, driver, source)
        assert min(record.seq for record in records_of(arrivals)) > old[-1].seq

    def test_position_resumes_exactly(self, rig: Rig) -> None:
        """C34: capability *durable*: reading resumes at ``position``: nothing twice or missing."""
        rig.need("durable")
        driver = rig.open()
        driver.send([b"x"] * 30)
        driver.settle()
        source = rig.open_source()
        first = _all_of(rig, source, set(range(30)))
        position = source.position()
        assert position is not None
        source.close()
        driver.send([b"y"] * 30)
        driver.settle()
        resumed = rig.open_source(start=position)
        second = _all_of(rig, resumed, set(range(30, 60)))
        assert {r.seq for r in first} | {r.seq for r in second} == set(range(60))
        assert {r.seq for r in first} & {r.seq for r in second} == set()

    def test_source_survives_a_restart_of_the_peer(self, rig: Rig) -> None:
        """C35: a source survives a peer that stops and starts; it raises nothing meanwhile."""
        peer = rig.need_peer()
        driver = rig.open()
        source = rig.open_source()
        _hear(rig, driver, source)
        peer.stop()
        for _ in range(5):
            source.receive(0.02)
        peer.start()
        last = driver.next_seq
        rig.receive_until(
            source,
            lambda found: any(record.seq >= last for record in records_of(found)),
            "a record sent after the restart",
            meanwhile=lambda: driver.send([b"again"]),
        )

    def test_source_survives_what_is_no_record(self, rig: Rig) -> None:
        """C36: what is no record becomes a notice; the records behind it are returned."""
        driver = rig.open()
        source = rig.open_source()
        _hear(rig, driver, source)
        if not rig.place.corrupt(driver.stream, driver.sink):
            pytest.skip("the place cannot put anything but records into a stream")
        last = driver.next_seq
        arrivals = rig.receive_until(
            source,
            lambda found: any(r.seq >= last for r in records_of(found)),
            "a record behind the garbage",
            meanwhile=lambda: driver.send([b"behind the garbage"]),
        )
        assert [a for a in arrivals if isinstance(a, Malformed | Trouble)], "no notice of it"


def _history(source: Source, driver: SinkDriver, first_seq: int) -> list[Record]:
    """Return what the source replays of the driver's stream from ``first_seq`` on."""
    channel, stream = next(iter(source.channels().items()))
    assert stream == driver.stream
    replayed: list[Record] = []
    while portion := source.recover(channel, stream, first_seq, 2.0):
        replayed += portion
        first_seq = portion[-1].seq + 1
    assert portion is not None, "history could not be read"
    return replayed


def _hear(rig: Rig, driver: SinkDriver, source: Source) -> list[Arrival]:
    """Send until ``source`` returns a record: a transport without memory loses the first ones."""
    return rig.receive_until(
        source,
        lambda found: bool(records_of(found)),
        "a first record",
        meanwhile=lambda: driver.send([b"warm-up"]),
    )


def _through(rig: Rig, source: Source, watch: Watch) -> list[Record]:
    """Return what ``source`` gives up to the last record that ``watch`` saw."""
    last = max(one.seq for one in watch.seen)
    return records_of(
        rig.receive_until(
            source,
            lambda found: any(r.seq == last for r in records_of(found)),
            f"record {last}",
        )
    )


def _all_of(rig: Rig, source: Source, seqs: set[int]) -> list[Record]:
    arrivals = rig.receive_until(
        source,
        lambda found: seqs <= {record.seq for record in records_of(found)},
        f"{len(seqs)} records",
    )
    return records_of(arrivals)
