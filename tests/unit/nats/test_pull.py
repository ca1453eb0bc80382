"""Where a delivered message stands, from the subject it is to be acknowledged on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvevents_nats import NatsSettings
from kvevents_nats.connection import Connection
from kvevents_nats.jetstream import JetStreamApi
from kvevents_nats.pull import Puller, _delivery


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.kv-events.kvevents-ab.1.901.17.1796129581892000000.3",
        "$JS.ACK.hub.ACCHASH.kv-events.kvevents-ab.1.901.17.1796129581892000000.3.rnd",
        "$JS.ACK._.ACCHASH.kv-events.kvevents-ab.1.901.17.1796129581892000000.3",
    ],
)
def test_both_forms_of_the_acknowledgement_subject_are_read(reply: str) -> None:
    """With and without domain and account (nats-server ADR-15)."""
    assert _delivery(reply) == ("kvevents-ab", 901, 17)


class Message:
    """What the client hands to the subscription."""

    def __init__(
        self, subject: str, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        self.subject = subject
        self.reply = reply
        self.headers = headers
        self.data = b""


class Client:
    """A client that is connected to nothing."""

    def new_inbox(self) -> str:
        return "_INBOX.x"


def puller(taken: list[int]) -> Puller:
    """Return a puller with one open request for three messages."""
    settings = NatsSettings()

    async def never(_: Any) -> None:
        raise AssertionError

    link = Connection(settings, "test", never, lambda: None)
    made = Puller(
        link,
        Client(),
        JetStreamApi(link, Client(), ""),
        stream="kv-events",
        subject="kv-events.>",
        take=lambda _, log_seq: taken.append(log_seq),
        room=lambda: 100,
        tick=lambda: None,
    )
    made._consumer = "c"
    made._requests = {1: 3}
    return made


def delivered(consumer: str, log_seq: int, consumer_seq: int) -> Message:
    """Return a message as the server delivers it."""
    return Message("kv-events.t.m.i.0", f"$JS.ACK.s.{consumer}.1.{log_seq}.{consumer_seq}.0.0")


def after(*messages: Message) -> tuple[Puller, list[int]]:
    """Return the puller and what it passed on, after ``messages``."""
    taken: list[int] = []
    made = puller(taken)

    async def play() -> None:
        for message in messages:
            await made._on_message(message)

    asyncio.run(play())
    return made, taken


def test_messages_pass_in_the_consumers_order() -> None:
    """Messages pass in the consumers order."""
    made, taken = after(delivered("c", 7, 1), delivered("c", 9, 2), delivered("c", 10, 3))
    assert taken == [7, 9, 10]
    assert made._lost is None
    assert made._requests == {}


def test_a_message_that_did_not_arrive_ends_the_consumer_before_anything_is_skipped() -> None:
    """A message that did not arrive ends the consumer before anything is skipped."""
    made, taken = after(delivered("c", 7, 1), delivered("c", 9, 3), delivered("c", 8, 2))
    assert taken == [7]
    assert "message 2 of the consumer" in (made._lost or "")


def test_what_an_earlier_consumer_still_delivers_is_ignored() -> None:
    """What an earlier consumer still delivers is ignored."""
    made, taken = after(delivered("earlier", 7, 1), delivered("c", 7, 1))
    assert taken == [7]
    assert made._lost is None


@pytest.mark.parametrize(
    ("status", "description", "lost", "open_requests"),
    [
        ("100", "Idle Heartbeat", False, 1),
        ("404", "No Messages", False, 0),
        ("408", "Request Timeout", False, 0),
        ("409", "Batch Completed", False, 0),
        ("409", "Consumer Deleted", True, 0),
        ("409", "Leadership Change", True, 0),
        ("503", "", True, 0),
    ],
)
def test_what_the_server_says_of_a_request(
    status: str, description: str, lost: bool, open_requests: int
) -> None:
    """Some statuses end a request, some the consumer."""
    headers = {"Status": status, "Description": description}
    made, taken = after(Message("_INBOX.x.0.1", headers=headers))
    assert (made._lost is not None) is lost
    assert len(made._requests) == open_requests
    assert taken == []


def test_what_is_said_of_an_earlier_round_is_ignored() -> None:
    """What is said of an earlier round is ignored."""
    made, _ = after(Message("_INBOX.x.9.1", headers={"Status": "503"}))
    assert made._lost is None
