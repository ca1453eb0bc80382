"""The client's own log: the cause is kept, the noise is not, others are left alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from kvevents_kafka import client_log as module
from kvevents_kafka.client_log import ClientLog, explain


def line(message: str, *args: Any, thread: str = "me-network-thread", level: int = 40) -> Any:
    record = logging.LogRecord("kafka.net.manager", level, "", 0, message, args, None)
    record.threadName = thread
    return record


@pytest.fixture
def log() -> ClientLog:
    """A filter that reads the client ``me``."""
    log = ClientLog()
    log.watch("me")
    return log


# Lines of kafka-python 3.0.12 against Apache Kafka 4.3.1.
@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (
            (
                "Bootstrap connection to bootstrap-0 failed: [Error 58] SaslAuthenticationFailedError:"
                " SaslAuthenticationFailedError: Authentication failed: Invalid username or password"
                " (backoff 0.12 secs)"
            ),
            "login refused: Authentication failed: Invalid username or password",
        ),
        ("Connection lost: [Error 33] UnsupportedSaslMechanismError", "sasl_mechanism"),
        (
            (
                "Handshake failed: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable"
                " to get local issuer certificate (_ssl.c:1006)"
            ),
            "certificate verify failed: unable to get local issuer certificate",
        ),
        (
            "Handshake failed: [SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred (_ssl.c:1006)",
            "TLS handshake failed: EOF occurred",
        ),
        (
            "DNS lookup failed for no-such-host.invalid:9092, gaierror(-2, 'unknown')",
            "host name of no-such-host.invalid:9092 cannot be resolved",
        ),
        ("Connection failed: KafkaConnectionError: 111 ECONNREFUSED", "connection refused"),
        ("Request timed out after 10000 ms. Closing connection.", "no answer from the broker"),
        ("Connection lost: KafkaConnectionError: socket disconnected", "closed the connection"),
    ],
)
def test_the_cause_of_each_line(message: str, cause: str) -> None:
    """Each line the client writes in trouble becomes a cause that a person understands."""
    found = explain(message)
    assert found is not None
    assert cause in found[1]
    assert "backoff" not in found[1]


def test_lines_that_name_no_cause() -> None:
    """Other lines are no causes."""
    assert explain("Bootstrap bootstrap-0 not ready; waiting 0.48 secs") is None


def test_the_most_telling_cause_wins(log: ClientLog) -> None:
    """A refused login is the cause, although a lost connection was told after it."""
    log.filter(line("SaslAuthenticationFailedError: Authentication failed"))
    log.filter(line("socket disconnected"))
    assert log.cause("me") == "login refused: Authentication failed"
    log.clear("me")
    assert log.cause("me") is None


def test_an_old_cause_is_forgotten(log: ClientLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cause counts for some seconds only."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    log.filter(line("111 ECONNREFUSED"))
    now[0] += module.REMEMBER_S - 1
    assert log.cause("me") == "connection refused"
    now[0] += 2
    assert log.cause("me") is None


def test_each_kind_of_line_passes_once_a_minute(
    log: ClientLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An outage does not fill the engine's log; the first line of each kind still appears."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    assert log.filter(line("Connection failed: %s", "ECONNREFUSED"))
    assert not log.filter(line("Connection failed: %s", "ECONNREFUSED"))
    assert log.filter(line("something else"))
    now[0] += module.REPEAT_S
    assert log.filter(line("Connection failed: %s", "ECONNREFUSED"))


def test_other_clients_of_the_process_are_left_alone(log: ClientLog) -> None:
    """Lines of clients that are not ours pass unread and unchanged, as often as they come."""
    for _ in range(3):
        record = line("111 %s", "ECONNREFUSED", thread="theirs-network-thread")
        assert log.filter(record)
        assert record.args == ("ECONNREFUSED",)
    assert log.cause("me") is None
    assert log.cause("theirs") is None


def test_a_line_keeps_no_exception_alive(log: ClientLog) -> None:
    """Whoever keeps log records keeps text, not the client's errors with their sockets."""
    record = line("Connection failed: %s", ValueError("x"))
    log.filter(record)
    assert record.getMessage() == "Connection failed: x"
    assert record.args == ()


def test_two_users_of_one_client_id(log: ClientLog) -> None:
    """The client is forgotten with its last user."""
    log.watch("me")
    log.forget("me")
    log.filter(line("111 ECONNREFUSED"))
    assert log.cause("me") == "connection refused"
    log.forget("me")
    assert log.cause("me") is None


def test_the_last_words_of_a_client_are_ours_too(log: ClientLog) -> None:
    """A client that ended slowly neither fills the log nor leaves its exceptions in it."""
    log.forget("me")
    record = line("Bootstrap failed: %s", ValueError("x"))
    assert log.filter(record)
    assert record.args == ()
    assert not log.filter(line("Bootstrap failed: %s", ValueError("x")))
    assert log.cause("me") is None


def test_lines_without_a_pattern_do_not_pile_up(log: ClientLog) -> None:
    """However many different lines there are, a bounded number is remembered."""
    for number in range(3 * module.MOST_KINDS):
        log.filter(line(f"line {number}"))
    assert len(log._let_through) <= module.MOST_KINDS
