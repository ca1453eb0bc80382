"""The parts of a sender process, one by one: inbox, messages, writing."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from kvevents_core import BlockRemoved, BlockStored, ConfigError, KVEventBatch, KVEventsConfig
from kvevents_core.errors import AddressInUseError, BackendError
from kvevents_core.naming import StreamId
from kvevents_core.sender_process import held_write
from kvevents_core.sender_process.child import MOST_LOG_LINES, EncodedAlready, LogToEngine
from kvevents_core.sender_process.frames import Encoded, batch_frame, end_frame, loss_frame
from kvevents_core.sender_process.inbox import Inbox
from kvevents_core.sender_process.messages import (
    Job,
    LogLine,
    Report,
    pack_failure,
    pack_job,
    pack_report,
    unpack_failure,
    unpack_job,
    unpack_report,
)
from kvevents_core.sending import SendingFacts
from kvevents_core.wire import BatchDecoder, BatchEncoder

STREAM = StreamId("tenant", "model", "instance", 3)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Inbox]]:
    """Give the engine's end and an inbox at the other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = Inbox(theirs)
        yield ours, inbox
        os.close(inbox._woken)
        os.close(inbox._waker)


def batch(payload: bytes, lost_before: int = 0) -> bytes:
    """Return the frame of a batch of two events."""
    return b"".join(batch_frame(lost_before, 2, payload))


def test_batches_arrive_in_order_with_the_losses_before_them(pair) -> None:
    """A loss told of alone belongs to the next batch, if one comes before somebody asks."""
    ours, inbox = pair
    ours.sendall(batch(b"one") + loss_frame(3) + batch(b"two", lost_before=4))
    first, second = inbox.take(64, 1000)
    assert (first.lost_before, first.batch.payload, len(first.batch.events)) == (0, b"one", 2)
    assert (second.lost_before, second.batch.payload) == (7, b"two")
    assert inbox.take_tail_loss() == 0


def test_a_loss_behind_everything_is_told_once(pair) -> None:
    """And only when nothing waits behind it."""
    ours, inbox = pair
    ours.sendall(loss_frame(3))
    assert inbox.take(64, 1000) == []
    assert inbox.has_tail_loss()
    ours.sendall(batch(b"one"))
    assert not inbox.has_tail_loss()
    assert inbox.take_tail_loss() == 0
    [item] = inbox.take(64, 1000)
    assert item.lost_before == 3
    ours.sendall(loss_frame(2))
    inbox.take(64, 1000)
    assert [inbox.take_tail_loss(), inbox.take_tail_loss()] == [2, 0]


def test_no_more_is_taken_than_asked_for(pair) -> None:
    """Both bounds; what is left waits."""
    ours, inbox = pair
    ours.sendall(b"".join(batch(b"x" * 100) for _ in range(10)))
    assert len(inbox.take(4, 10_000)) == 4
    assert len(inbox.take(64, 250)) == 3
    assert inbox.size()[0] == 1
    assert len(inbox.take(64, 10_000)) == 3
    assert inbox.size() == (0, 0)


def test_what_is_taken_counts_as_numbered_at_the_next_turn(pair) -> None:
    """In between the sender has it in hand, and nobody else would count it."""
    ours, inbox = pair
    ours.sendall(batch(b"one"))
    inbox.take(64, 1000)
    assert inbox.numbered_batches == 0
    inbox.doze(0.0, 0.0)
    assert inbox.numbered_batches == 1


def test_while_closing_something_waits_until_the_end_is_seen(pair) -> None:
    """Or the sender would stop before what the engine's process is still handing over."""
    ours, inbox = pair
    assert inbox.size()[0] == 0
    inbox.close()
    assert inbox.size()[0] == 1
    ours.sendall(batch(b"last") + end_frame())
    assert len(inbox.take(64, 1000)) == 1
    inbox.take(64, 1000)
    assert inbox.size()[0] == 0


@pytest.mark.parametrize("begun", [b"", batch(b"never whole")[:-2]])
def test_an_engine_that_is_gone_is_an_end_too(pair, begun: bytes) -> None:
    """What it had begun to write is dropped."""
    ours, inbox = pair
    ours.sendall(batch(b"whole") + begun)
    ours.close()
    inbox.close()
    assert [item.batch.payload for item in inbox.take(64, 1000)] == [b"whole"]
    assert inbox.take(64, 1000) == []
    assert inbox.size() == (0, 0)
    inbox.wait(0.0)  # takes the nudge of closing
    began = time.monotonic()
    inbox.wait(0.2)  # and does not spin on a socket that is readable for ever
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("how", ["nudge", "arrival"])
def test_a_sleeping_inbox_is_woken(pair, how: str) -> None:
    """By a client's thread, or by what arrives."""
    ours, inbox = pair
    woken = threading.Event()

    def sleep() -> None:
        inbox.wait(30.0)
        woken.set()

    thread = threading.Thread(target=sleep)
    thread.start()
    inbox.nudge() if how == "nudge" else ours.sendall(batch(b"one"))
    assert woken.wait(10.0)
    thread.join()


def test_half_a_batch_does_not_keep_the_sender_awake(pair) -> None:
    """An engine may be frozen, or computing, half-way through a long one."""
    ours, inbox = pair
    ours.sendall(batch(b"not yet whole")[:-2])
    assert inbox.take(64, 1000) == []
    began = time.monotonic()
    inbox.wait(0.2)
    assert time.monotonic() - began >= 0.2


def test_descriptors_may_have_high_numbers() -> None:
    """They have the numbers that they had in the engine, which may have thousands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 2000))
    theirs.close()
    with ours, high:
        inbox = Inbox(high)
        ours.sendall(batch(b"one"))
        inbox.wait(10.0)
        assert len(inbox.take(64, 1000)) == 1
        os.close(inbox._woken)
        os.close(inbox._waker)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nudges_nobody_listens_to_never_block(pair) -> None:
    """A receipt nudges, thousands a second."""
    _, inbox = pair
    for _ in range(100_000):
        inbox._nudged = False
        inbox.nudge()
    inbox.wait(30.0)


def test_payloads_pass_the_encoder_untouched_and_a_late_limit_is_told() -> None:
    """What was encoded stays; openings and heartbeats are made here."""
    encoder = EncodedAlready(3)
    assert encoder.encode(Encoded(b"as it is", range(1))) == b"as it is"
    assert encoder.opening(1.0)


def test_a_limit_that_came_late_costs_only_what_cannot_be_cut() -> None:
    """C38: the payload is opened again; the small event beside the large one is kept."""
    encoder = EncodedAlready(3)
    events = [BlockStored(["x" * 500], None, [1], 1), BlockRemoved([7])]
    payload = BatchEncoder(3).encode(KVEventBatch(1.0, events))
    cut = encoder.split(Encoded(payload, range(2)), 300)
    assert (cut.too_large_events, cut.unencodable_events) == (1, 0)
    assert [BatchDecoder().decode(each).batch.events for each in cut.payloads] == [events[1:]]
    assert encoder.split(Encoded(b"no batch", range(5)), 3).too_large_events == 5


def test_an_error_travels_with_its_class_and_its_facts() -> None:
    """Required keyword arguments included, which pickle alone cannot give."""
    error = unpack_failure(pack_failure(AddressInUseError("taken", address="tcp://*:5557")))
    assert type(error) is AddressInUseError
    assert (str(error), error.address) == ("taken", "tcp://*:5557")
    unknown = unpack_failure(pack_failure(BackendError("no such", name="kafak", known=("kafka",))))
    assert type(unknown) is BackendError
    assert (str(unknown), unknown.name, unknown.known) == ("no such", "kafak", ("kafka",))
    missing = unpack_failure(pack_failure(FileNotFoundError(2, "No such file", "/key")))
    assert (missing.errno, missing.filename) == (2, "/key")


def test_an_error_that_cannot_travel_does_so_as_text() -> None:
    """A third party's, with a socket inside for instance."""

    class LocalError(Exception):
        pass

    told = unpack_failure(pack_failure(LocalError("why")))
    assert type(told) is RuntimeError
    assert str(told) == "LocalError: why"


def test_a_job_travels_with_its_secrets_and_settings() -> None:
    """Over the connection, never on a command line."""
    config = KVEventsConfig.from_mapping(
        {"publisher": "nats", "servers": "nats://h:1", "password": "secret", "user": "me"}
    )
    job = unpack_job(pack_job(Job(config, STREAM, 42, logging.INFO)))
    assert job.config == config
    assert (job.stream, job.parent, job.log_level) == (STREAM, 42, logging.INFO)


def test_settings_that_do_not_pickle_are_refused_with_advice() -> None:
    """A third party's settings may hold anything."""
    config = KVEventsConfig.from_mapping({"publisher": "zmq"})
    config._backend_settings = lambda: None  # type: ignore[assignment]
    with pytest.raises(ConfigError, match='leave "sender" at "thread"') as caught:
        pack_job(Job(config, STREAM, 42, logging.INFO))
    assert caught.value.key == "sender"


def test_a_report_travels_whatever_the_sink_tells() -> None:
    """What is no JSON becomes its text."""
    odd = object()
    facts = SendingFacts(published_batches=3, lost={"rejected": 1}, epoch=5, error="why")
    report = unpack_report(pack_report(Report(facts, 7, None, {"odd": odd, "peers": 2})))
    assert (report.facts, report.numbered_batches) == (facts, 7)
    assert report.sink == {"odd": repr(odd), "peers": 2}


def test_what_a_sink_tells_of_itself_cannot_end_the_reports() -> None:
    """A third party's status may hold anything."""
    facts = SendingFacts(published_batches=3, connected=1, superseded_by="me", error=object())  # type: ignore[arg-type]
    report = Report(facts, 7, None, {"name": "caf\udce9"}).without_what_a_sink_said("why")
    told = unpack_report(pack_report(report))
    assert (told.facts.published_batches, told.facts.connected) == (3, True)
    assert (told.facts.superseded_by, told.facts.error, told.sink) == (
        None,
        "why",
        {"fault": "why"},
    )


def test_log_lines_are_kept_up_to_a_bound_and_the_rest_is_told() -> None:
    """A client may log faster than anybody reads."""
    log = LogToEngine()
    record = logging.LogRecord("client", logging.INFO, "file", 1, "line %d", (7,), None)
    for _ in range(MOST_LOG_LINES + 5):
        log.emit(record)
    lines = list(log.take())
    assert lines[0] == LogLine("client", logging.INFO, "line 7")
    assert len(lines) == MOST_LOG_LINES + 1
    assert "5 more lines" in lines[-1].text
    assert list(log.take()) == []


def test_a_log_call_with_a_wrong_format_is_not_the_clients_trouble(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As with every handler of logging: said on standard error."""
    LogToEngine().emit(logging.LogRecord("client", logging.INFO, "file", 1, "%d", ("x",), None))
    assert "Logging error" in capsys.readouterr().err


@pytest.mark.parametrize("plain", [False, True], ids=["held", "plain"])
def test_writing_takes_what_fits_and_never_waits(plain: bool) -> None:
    """A full socket takes 0; one without a reader raises."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        write = held_write._plain_writer(ours) if plain else held_write.writer(ours)
        data = bytes(range(256)) * 40_000
        begin = time.monotonic()
        sent = write(data, 0)
        assert 0 < sent < len(data)
        while more := write(data, sent):
            sent += more
        assert time.monotonic() - begin < 5
        theirs.setblocking(False)
        received = bytearray()
        with pytest.raises(BlockingIOError):
            while True:
                received += theirs.recv(1 << 20)
        assert received == data[:sent]
        theirs.close()
        with pytest.raises(OSError) as caught:
            write(b"more", 0)
        assert caught.value.errno in (errno.EPIPE, errno.ECONNRESET)
