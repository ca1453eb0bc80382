"""Rounds of publishing against a scripted client: what is in doubt is sent again, nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvevents_core import Receipt, Record, StreamId
from kvevents_nats import NatsSettings
from kvevents_nats.connection import Connection
from kvevents_nats.publishing import AckTimeoutError, NotStoredError, Publishing
from kvevents_nats.subjects import HeaderEncoder
from kvevents_nats.window import Window

STREAM = StreamId("t", "m", "i", 0)
SUBJECT = "kv-events.t.m.i.0"
OK = b'{"stream":"kv-events","seq":1}'
REPEATED = b'{"stream":"kv-events","seq":1,"duplicate": true}'
FULL = b'{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"}}'
TOO_LARGE = b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds"}}'


class Message:
    """What the client hands to a subscription."""

    def __init__(self, subject: str, data: bytes) -> None:
        self.subject = subject
        self.data = data


class Client:
    """Plays the server: answers each publish by ``script``; None is silence.

    It offers only the public calls of nats-py, so ``publish`` is what gets used.
    """

    def __init__(self, script: Callable[[int], bytes | None]) -> None:
        self.script = script
        self.sent: list[int] = []
        self.headers: list[dict[str, str]] = []
        self._answer: Callable[[Message], Awaitable[None]] | None = None

    def new_inbox(self) -> str:
        return "_INBOX.x"

    async def subscribe(self, subject: str, cb: Any) -> None:
        self._answer = cb

    async def flush(self, timeout_s: float) -> None:
        return

    async def publish(
        self, subject: str, payload: bytes, reply: str, headers: dict[str, str]
    ) -> None:
        seq = int(headers["Nats-Msg-Id"].rsplit(":", 1)[1])
        self.sent.append(seq)
        self.headers.append(headers)
        data = self.script(len(self.sent))
        if data is not None and self._answer is not None:
            asyncio.get_running_loop().create_task(self._deliver(Message(reply, data)))

    async def _deliver(self, message: Message) -> None:
        assert self._answer is not None
        await self._answer(message)


class Bench:
    """A window with ``count`` records, a publishing, and no connection."""

    def __init__(self, count: int, **settings: Any) -> None:
        given = NatsSettings(**{"ack_timeout_s": 0.2, **settings})
        self.link = Connection(given, "test", self._never, lambda: None)
        self.window = Window(lambda: None)
        self.publishing = Publishing(
            given,
            SUBJECT,
            headers=HeaderEncoder(STREAM, "e", "p"),
            window=self.window,
            link=self.link,
        )
        self.window.open(100)
        self.records = [Record(STREAM, 1, seq, b"x") for seq in range(count)]
        self.window.put(self.records, None)

    async def _never(self, _: Any) -> None:
        raise AssertionError

    def run(self, client: Client) -> BaseException | None:
        """Run one round until everything is settled or it fails; return the failure."""

        async def play() -> BaseException | None:
            await self.publishing.attach(client)
            round_ = asyncio.ensure_future(self.publishing.run())
            while not round_.done() and self.window.size():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            if not round_.done():
                round_.cancel()
            failure = (await asyncio.gather(round_, return_exceptions=True))[0]
            return None if isinstance(failure, asyncio.CancelledError) else failure

        return asyncio.run(play())

    def receipts(self) -> list[Receipt]:
        return self.window.take_receipts()


def test_acknowledged_records_are_confirmed() -> None:
    """Acknowledged records are confirmed."""
    bench = Bench(5)
    client = Client(lambda _: OK)
    assert bench.run(client) is None
    assert client.sent == [0, 1, 2, 3, 4]
    assert bench.receipts() == [Receipt(0, 4)]


def test_a_refusal_that_may_pass_ends_the_round_and_confirms_the_others() -> None:
    """A refusal that may pass ends the round and confirms the others."""
    bench = Bench(4)
    failure = bench.run(Client(lambda nth: FULL if nth == 3 else OK))
    assert isinstance(failure, NotStoredError)
    assert "maximum bytes exceeded" in str(failure)
    assert bench.receipts() == [Receipt(0, 1), Receipt(3, 3)]
    assert bench.window.generation == 1


def test_a_refusal_that_is_final_rejects_that_record_alone() -> None:
    """A refusal that is final rejects that record alone."""
    bench = Bench(3)
    assert bench.run(Client(lambda nth: TOO_LARGE if nth == 2 else OK)) is None
    assert sorted(bench.receipts()) == [
        Receipt(0, 0),
        Receipt(1, 1, "too_large"),
        Receipt(2, 2),
    ]


def test_no_stream_on_the_subject_is_named() -> None:
    """No stream on the subject is named."""
    failure = Bench(1).run(Client(lambda _: b""))
    assert isinstance(failure, NotStoredError)
    assert SUBJECT in str(failure)


def test_silence_ends_the_round_after_the_deadline() -> None:
    """Silence ends the round after the deadline."""
    bench = Bench(3)
    failure = bench.run(Client(lambda nth: OK if nth == 1 else None))
    assert isinstance(failure, AckTimeoutError)
    assert bench.receipts() == [Receipt(0, 0)]
    assert bench.publishing.is_shaky


def test_after_trouble_one_record_goes_ahead_alone() -> None:
    """After trouble one record goes ahead alone."""
    bench = Bench(3)
    bench.publishing.is_shaky = True
    bench.window.give_up()
    client = Client(lambda _: OK)

    async def play() -> None:
        await bench.publishing.attach(client)
        round_ = asyncio.ensure_future(bench.publishing.run())
        await asyncio.sleep(0)
        bench.window.tell_generation()
        assert bench.window.put(bench.records, None) == 1
        while bench.window.size():
            bench.publishing._wake.set()
            await asyncio.sleep(0.001)
        assert not bench.publishing.is_shaky
        assert bench.window.put(bench.records[1:], None) == 2
        round_.cancel()
        await asyncio.gather(round_, return_exceptions=True)

    asyncio.run(play())
    assert client.sent == [0]


def test_a_repeat_of_what_was_sent_before_is_confirmed() -> None:
    """A repeat of what was sent before is confirmed."""
    bench = Bench(2)
    assert isinstance(bench.run(Client(lambda _: None)), AckTimeoutError)
    bench.window.tell_generation()
    bench.window.open(100)
    bench.window.put(bench.records, None)
    assert bench.run(Client(lambda _: REPEATED)) is None
    assert bench.receipts() == [Receipt(0, 1)]
    assert bench.publishing.duplicates == 2


def test_a_repeat_of_what_was_never_sent_is_somebody_elses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Confirming it would lose a record in silence."""
    bench = Bench(1)
    assert bench.run(Client(lambda _: REPEATED)) is None
    assert bench.receipts() == [Receipt(0, 0, "stored_by_another")]
    assert "somebody else" in caplog.text


def test_a_refused_permission_is_named() -> None:
    """A refused permission is named."""
    bench = Bench(1)

    def script(_: int) -> None:
        denial = f'nats: permissions violation for publish to "{SUBJECT}"'
        bench.link._take_error(RuntimeError(denial))

    failure = bench.run(Client(script))
    assert isinstance(failure, NotStoredError)
    assert SUBJECT in str(failure)
    assert "permission" in str(failure)


def test_core_mode_confirms_behind_a_round_trip() -> None:
    """Core mode confirms behind a round trip."""
    bench = Bench(3, mode="core")
    client = Client(lambda _: None)
    assert bench.run(client) is None
    assert bench.receipts() == [Receipt(0, 2)]
