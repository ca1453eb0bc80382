"""The sink's own rules, with a producer that does what the test says. No broker, no thread."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import (
    InvalidRecordError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
)
from kafka.future import Future

from kvevents_core import Receipt, Record, SinkHost, StreamId
from kvevents_core.errors import ClosedError
from kvevents_kafka import sink as module
from kvevents_kafka.link import Offer
from kvevents_kafka.settings import KafkaSettings
from kvevents_kafka.sink import KafkaSink

STREAM = StreamId("t", "m", "i", 0)
LIMIT = 100_000


class FakeApi:
    """A producer whose futures the test completes."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes, bytes, list[tuple[str, bytes]], int]] = []
        self.futures: list[Future] = []
        self.refuse: Exception | None = None
        self.ended = False
        self._sender = SimpleNamespace(
            force_close=self._end, join=lambda _: None, is_alive=lambda: False
        )

    def _end(self) -> None:
        self.ended = True

    def send(self, topic: str, value: bytes, key: bytes, headers: Any, partition: int) -> Future:
        if self.refuse is not None:
            raise self.refuse
        self.sent.append((topic, value, key, headers, partition))
        self.futures.append(Future())
        return self.futures[-1]

    def confirm(self, *numbers: int) -> None:
        for number in numbers:
            self.futures[number].success(SimpleNamespace(offset=number))

    def fail(self, number: int, error: Exception) -> None:
        self.futures[number].failure(error)

    def flush(self, timeout: float) -> None:
        raise KafkaTimeoutError("still waiting")

    def close(self, timeout: float) -> None:
        """Nothing to free."""


class FakeLink:
    """A link that is ready; the test makes the offers."""

    made: FakeLink

    def __init__(self, *_: Any) -> None:
        FakeLink.made = self
        self.ready = self.connected = True
        self.forgotten_after: int | None = None
        self.last_epoch = self.superseded_by = self.trouble = None
        self.broker_limit: int | None = LIMIT
        self.partition, self.partitions, self.superseder = 0, 1, ""
        self.client_id = "fake"
        self.offers: list[Offer] = []
        self.replaced: list[dict[str, Any]] = []

    def start(self) -> None:
        """Nothing to start."""

    def offer(self, *, alone: bool = False) -> FakeApi:
        api = FakeApi()
        client: Any = SimpleNamespace(api=api, loop=SimpleNamespace(one_wakeup=nullcontext))
        self.offers.append(Offer(client, 3, alone))
        return api

    def take_offer(self) -> Offer | None:
        return self.offers.pop(0) if self.offers else None

    def replace(self, old: Any, **why: Any) -> None:
        old.api._sender.force_close()
        self.replaced.append(why)

    def confirmed(self) -> None:
        self.trouble = None

    def stop(self) -> None:
        """Nothing to stop."""

    def join(self, timeout_s: float) -> bool:
        return True


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> KafkaSink:
    """A started sink on a fake link."""
    monkeypatch.setattr(module, "Link", FakeLink)
    sink = KafkaSink(KafkaSettings(), STREAM)
    history: Any = SimpleNamespace()
    sink.start(SinkHost(lambda: None, lambda: 7, history, "host:1", "sglang"))
    return sink


@pytest.fixture
def link(sink: KafkaSink) -> FakeLink:
    """Its link."""
    return FakeLink.made


def records(*seqs: int) -> list[Record]:
    return [Record(STREAM, 7, seq, b"payload %d" % seq) for seq in seqs]


def test_nothing_is_taken_before_a_producer_is_there(sink: KafkaSink, link: FakeLink) -> None:
    """Without a producer ``send`` takes 0; the first one raises no generation."""
    assert sink.send(records(0)) == 0
    link.offer()
    assert sink.send(records(0)) == 1
    assert sink.status().generation == 0


def test_a_record_goes_out_whole(sink: KafkaSink, link: FakeLink) -> None:
    """Topic, key, partition, headers and the payload itself, untouched."""
    api = link.offer()
    (record,) = records(5)
    sink.send([record])
    topic, value, key, headers, partition = api.sent[0]
    assert (topic, key, partition) == ("kv-events", b"t/m/i/0", 3)
    assert value is record.payload
    assert dict(headers)["kvevents-seq"] == b"5"
    assert dict(headers)["kvevents-epoch"] == b"7"
    assert dict(headers)["kvevents-engine"] == b"sglang"


def test_the_limit_is_the_smaller_one_less_the_overhead(sink: KafkaSink, link: FakeLink) -> None:
    """What core splits for leaves room for key and headers."""
    limit = sink.status().max_message_bytes
    assert limit is not None
    assert LIMIT - 1000 < limit < LIMIT
    link.broker_limit = None
    assert (sink.status().max_message_bytes or 0) > 1_000_000


def test_a_record_above_the_clients_limit_is_rejected_and_holds_up_nothing(
    sink: KafkaSink, link: FakeLink
) -> None:
    """The client refuses it before it is sent: taken, and told as too large."""
    api = link.offer()
    api.refuse = MessageSizeTooLargeError("large")
    assert sink.send(records(0)) == 1
    api.refuse = None
    assert sink.send(records(1)) == 1
    api.confirm(0)
    assert list(sink.take_receipts()) == [Receipt(0, 0, "too_large"), Receipt(1, 1)]
    assert link.replaced == []


def test_the_first_failure_ends_the_producer_at_once(sink: KafkaSink, link: FakeLink) -> None:
    """On the client's own thread, before anything behind the failed record can be sent."""
    api = link.offer()
    sink.send(records(0, 1, 2))
    api.confirm(0)
    api.fail(1, KafkaTimeoutError("gone"))
    assert api.ended


def test_after_a_failure_nothing_is_taken_out_of_order(sink: KafkaSink, link: FakeLink) -> None:
    """The new producer takes nothing before the first unconfirmed record is offered again."""
    api = link.offer()
    sink.send(records(0, 1, 2))
    api.confirm(0)
    api.fail(1, KafkaTimeoutError("gone"))
    assert list(sink.take_receipts()) == [Receipt(0, 0)]
    assert sink.send(records(3)) == 0  # no producer
    newer = link.offer()
    assert list(sink.take_receipts()) == []
    assert sink.status().generation == 1
    assert sink.send(records(3)) == 0  # core has not seen the generation yet
    assert newer.sent == []
    assert sink.send(records(1, 2, 3)) == 3
    newer.confirm(0, 1, 2)
    assert list(sink.take_receipts()) == [Receipt(1, 3)]


def test_late_failures_of_an_old_producer_leave_the_new_one_alone(
    sink: KafkaSink, link: FakeLink
) -> None:
    """What was aborted with the old producer fails later: the new one goes on."""
    old = link.offer()
    sink.send(records(0, 1))
    old.fail(0, KafkaTimeoutError("gone"))
    sink.take_receipts()
    newer = link.offer()
    sink.take_receipts()
    old.fail(1, KafkaTimeoutError("aborted"))
    assert not newer.ended
    assert sink.send(records(0, 1)) == 2


def test_a_record_refused_for_its_size_is_lost_alone(sink: KafkaSink, link: FakeLink) -> None:
    """It is told as rejected; what failed behind it, because the producer died, is sent again."""
    api = link.offer()
    sink.send(records(0, 1))
    api.fail(0, MessageSizeTooLargeError("no"))
    api.fail(1, MessageSizeTooLargeError("no"))
    assert list(sink.take_receipts()) == [Receipt(0, 0, "too_large")]
    newer = link.offer()
    sink.take_receipts()
    assert sink.send(records(1)) == 1
    newer.confirm(0)
    assert list(sink.take_receipts()) == [Receipt(1, 1)]


def test_a_limit_nobody_told_is_learnt(sink: KafkaSink, link: FakeLink) -> None:
    """After a refusal core is told to split below what was refused."""
    link.broker_limit = None
    api = link.offer()
    sink.send([Record(STREAM, 7, 0, b"x" * 500_000)])
    api.fail(0, MessageSizeTooLargeError("no"))
    sink.take_receipts()
    assert (sink.status().max_message_bytes or 0) < 450_000


def test_a_record_at_fault_is_looked_for_one_by_one(sink: KafkaSink, link: FakeLink) -> None:
    """A group refused for one of its records: the next producer sends them singly."""
    api = link.offer()
    sink.send(records(0, 1))
    for number in (0, 1):
        api.fail(number, InvalidRecordError("one of you"))
    assert list(sink.take_receipts()) == []
    assert link.replaced[-1]["alone"]
    single = link.offer(alone=True)
    sink.take_receipts()
    sink.send(records(0, 1))
    single.confirm(0)
    single.fail(1, InvalidRecordError("you"))
    assert list(sink.take_receipts()) == [Receipt(0, 0), Receipt(1, 1, "invalid_record")]
    assert not link.replaced[-1]["alone"]


def test_a_missing_permission_rejects_nothing(sink: KafkaSink, link: FakeLink) -> None:
    """Permissions are an outage: wait, say why, send again."""
    api = link.offer()
    sink.send(records(0))
    api.fail(0, TopicAuthorizationFailedError("kv-events"))
    assert list(sink.take_receipts()) == []
    why = link.replaced[-1]
    assert why["lasting"]
    assert "not authorized to write to topic 'kv-events'" in why["trouble"]


def test_a_client_that_takes_nothing_is_not_asked_again_at_once(
    sink: KafkaSink, link: FakeLink
) -> None:
    """The client cannot find the topic: what it took counts, the rest waits."""
    api = link.offer()
    sink.send(records(0))
    api.refuse = KafkaTimeoutError("no metadata")
    assert sink.send(records(1, 2)) == 0
    api.refuse = None
    assert sink.send(records(1, 2)) == 2


def test_flush_keeps_its_word(sink: KafkaSink, link: FakeLink) -> None:
    """True only if everything taken was answered for; never an exception."""
    assert sink.flush(0.1)
    api = link.offer()
    sink.send(records(0))
    assert not sink.flush(0.1)
    api.confirm(0)
    sink.take_receipts()
    assert sink.flush(0.1)


@pytest.mark.parametrize(
    "end",
    [lambda sink: sink.close(1.0), lambda sink: setattr(sink, "_pid", -1)],
    ids=["close", "fork"],
)
def test_a_closed_or_inherited_sink_refuses(
    sink: KafkaSink, link: FakeLink, end: Callable[[KafkaSink], None]
) -> None:
    """After ``close``, and in a forked child, nothing is taken and nobody waits."""
    link.offer()
    sink.send(records(0))
    end(sink)
    with pytest.raises(ClosedError):
        sink.send(records(1))
    sink.close(1.0)
    sink.close(1.0)


def test_forgotten_records_are_offered_again(sink: KafkaSink, link: FakeLink) -> None:
    """C18: a client that sends nothing is replaced; core offers all it held, in order."""
    api = link.offer()
    sink.send(records(0, 1, 2))
    api.confirm(0)
    sink.take_receipts()
    link.forgotten_after = 1
    assert list(sink.take_receipts()) == []
    assert api.ended
    (why,) = link.replaced
    assert "sends none" in why["trouble"]
    link.forgotten_after = None
    link.offer()
    sink.take_receipts()
    assert sink.status().generation == 1
    assert sink.send(records(2)) == 0
    assert sink.send(records(1, 2)) == 2


@pytest.mark.parametrize("sent", [1, 2])
def test_a_client_that_moved_meanwhile_is_kept(sink: KafkaSink, link: FakeLink, sent: int) -> None:
    """What was confirmed just before the link complained needs no new client, then or later."""
    api = link.offer()
    sink.send(records(*range(sent)))
    link.forgotten_after = 0
    api.confirm(0)
    sink.take_receipts()
    sink.send(records(sent))
    sink.take_receipts()
    assert not api.ended
