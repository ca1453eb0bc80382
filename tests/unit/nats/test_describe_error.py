"""What went wrong, in words an operator can act on."""

from __future__ import annotations

import errno
import socket
import ssl

import pytest
from nats.errors import AuthorizationError

from kvevents_nats.client import describe_error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (None, ""),
        (
            OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"),
            "connection refused",
        ),
        (ConnectionResetError(errno.ECONNRESET, "whatever"), "connection reset by peer"),
        (socket.gaierror(-2, "Name or service not known"), "the host name cannot be resolved"),
        (OSError(-2, "a resolver's number"), "[Errno -2] a resolver's number"),
        (FileNotFoundError(2, "No such file", "a.creds"), "[Errno 2] No such file: 'a.creds'"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (AuthorizationError(), "authorization failed"),
        (ConnectionError("the server offers no TLS"), "the server offers no TLS"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_is_told_in_plain_words(error: BaseException | None, text: str) -> None:
    """The system's words for the network's troubles, the library's for its own."""
    assert describe_error(error) == text
