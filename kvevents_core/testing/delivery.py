"""Promises about what arrives: order, frames, payloads, streams, and nothing half sent."""

from __future__ import annotations

from itertools import count
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvevents_core.naming import StreamId
from kvevents_core.testing import strategies
from kvevents_core.testing.rig import Rig, records_of

GROUPS: Final = (1, 2, 7, 64, 512, 3)
AWKWARD: Final = (
    b"\x00",
    b"\x00" * 9,
    bytes(range(256)),
    b"\r\n.\r\nPUB x 0\r\n\r\n",
    b"\xff" * 8,
    b"\x93\xcb\x41\xd9\x00\x00\x00\x00\x00\x00\x90\x00",
    b'{"json": "\xc3\xa9"}',
    bytes(100_000),
    bytes(range(256)) * 400,
)
LOOK_ALIKES: Final = ("a.b", "a_b", "a b", "a/b", "a-b", "A.B", "a.*", "a.>", "a_2Eb", "ä", "")


class DeliveryPromises:
    """C1, C2, C3, C8, C9."""

    def test_records_arrive_whole_and_in_order(self, rig: Rig) -> None:
        """C1: records arrive whole and in seq order, whatever the size of the groups."""
        driver = rig.open()
        watch = rig.watch(driver)
        sent = []
        for size in GROUPS:
            sent += driver.send([b"payload %d" % number for number in range(size)])
        seen = watch.until_all(sent)
        assert [one.flaw for one in seen] == [None] * len(seen)
        assert [one.seq for one in seen] == [record.seq for record in sent]

    def test_empty_topic_keeps_its_frame(self, rig: Rig) -> None:
        """C2: an empty topic is sent as an empty frame, not left out."""
        if rig.place.empty_topic is None:
            pytest.skip("records of this transport carry no topic")
        driver = rig.open(**rig.place.empty_topic)
        watch = rig.watch(driver)
        sent = driver.send([b"one", b"two"])
        seen = watch.until_all(sent)
        assert [(one.topic, one.flaw) for one in seen] == [(b"", None)] * 2

    def test_awkward_payloads_are_untouched(self, rig: Rig) -> None:
        """C3: payload bytes are untouched, also those that mean something to a protocol."""
        driver = rig.open()
        watch = rig.watch(driver)
        sent = driver.send(AWKWARD)
        seen = watch.until_all(sent)
        got = {one.seq: one.payload for one in seen}
        for record in sent:
            assert got[record.seq] == record.payload, f"payload {record.payload[:40]!r} changed"

    def test_any_payloads_are_untouched(self, rig: Rig) -> None:
        """C3: payload bytes are untouched: batches as core encodes them, and any other bytes."""
        driver = rig.open()
        watch = rig.watch(driver)

        @settings(
            max_examples=15,
            deadline=None,
            database=None,
            phases=[Phase.generate],  # a lost record costs the whole patience each time
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(strategies.payloads(), min_size=1, max_size=8))
        def untouched(payloads: list[bytes]) -> None:
            sent = driver.send(payloads)
            got = {one.seq: one.payload for one in watch.until_all(sent)}
            assert [got[record.seq] for record in sent] == payloads

        untouched()

    def test_ranks_are_distinct_streams(self, rig: Rig) -> None:
        """C8: N ranks give N distinct streams: no batch is seen in another rank's stream."""
        drivers = [rig.open(rank) for rank in range(4)]
        watches = [rig.watch(driver) for driver in drivers]
        numbers = count()
        for _ in range(3):
            for driver in drivers:
                driver.send([b"rank %d, %d" % (driver.stream.rank, next(numbers))])
        ends = [driver.send([b"rank %d, end" % driver.stream.rank]) for driver in drivers]
        for rank, (watch, end) in enumerate(zip(watches, ends, strict=True)):
            seen = watch.until_seq(end[-1].seq)
            strangers = [o.payload for o in seen if not o.payload.startswith(b"rank %d," % rank)]
            assert strangers == [], f"the stream of rank {rank} holds batches of other ranks"

    def test_one_source_tells_ranks_apart(self, rig: Rig) -> None:
        """C8: one source that reads several ranks says of each record whose it is."""
        drivers = [rig.open(rank) for rank in range(3)]
        for driver in drivers:
            driver.wait_ready()
        source = rig.open_source(ranks=(0, 1, 2))
        heard: set[int] = set()

        def speak() -> None:
            for driver in drivers:
                if driver.stream.rank not in heard:
                    driver.send([b"rank %d" % driver.stream.rank])

        while len(heard) < len(drivers):
            before = set(heard)
            arrivals = rig.receive_until(
                source,
                lambda found, before=before: bool(  # type: ignore[misc]
                    {r.stream.rank for r in records_of(found)} - before
                ),
                "a record of every rank",
                meanwhile=speak,
            )
            for record in records_of(arrivals):
                assert record.stream == rig.place.stream(record.stream.rank)
                assert record.payload == b"rank %d" % record.stream.rank
                heard.add(record.stream.rank)

    def test_look_alike_names_are_distinct_streams(self, rig: Rig) -> None:
        """C8: streams whose names differ in one odd character never mix."""
        if not rig.place.distinct_names:
            pytest.skip("streams of this transport are told apart by address, not by name")
        place = rig.place
        streams = [
            StreamId(place.tenant, place.model, f"{place.instance}{name}", 0)
            for name in LOOK_ALIKES
        ]
        drivers = [rig.open_stream(stream) for stream in streams]
        watches = [rig.watch(driver) for driver in drivers]
        for number, driver in enumerate(drivers):
            driver.send([b"stream %d" % number])
        for number, (watch, driver) in enumerate(zip(watches, drivers, strict=True)):
            seen = watch.until_seq(driver.next_seq - 1)
            assert {one.payload for one in seen} == {b"stream %d" % number}, streams[number]

    def test_what_was_not_taken_was_not_sent(self, rig: Rig) -> None:
        """C9: a send that fails or takes a prefix leaves nothing of the rest, whole or in part."""
        peer = rig.need_peer()
        driver = rig.open()
        watch = rig.watch(driver)
        peer.stop()
        taken: list[int] = []
        not_taken: set[int] = set()
        while not not_taken and len(taken) < 20_000:
            records = driver.number([b"offered once %d" % n for n in range(100)])
            count_taken = driver.sink.send(records)
            assert 0 <= count_taken <= len(records)
            taken += [record.seq for record in records[:count_taken]]
            not_taken = {record.seq for record in records[count_taken:]}
        peer.start()
        after = driver.send([b"after the failed send"])
        seen = watch.until_seq(after[0].seq)
        assert [one.flaw for one in seen if one.flaw] == []
        assert {one.seq for one in seen} & not_taken == set()
