"""What kafka-python says about our own clients: kept as a cause in one line, and kept quiet.

The client hides why it cannot connect in its log, at several lines a second. A filter on its
loggers reads those lines, for threads of our clients only, and lets each kind through once a minute;
the sink says the cause itself. Other users of kafka-python in the process are left alone.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter, deque
from typing import Final, NamedTuple

REMEMBER_S: Final = 8.0
"""How long a cause counts: longer than the client's longest pause between two attempts."""
REPEAT_S: Final = 60.0
MOST_KINDS: Final = 1_000
"""Some lines come formatted already, each a kind of its own."""

_KINDS: Final = (
    # (rank, what the client says, what we say); the higher rank wins, because a refused login shows
    # as "socket disconnected" too: kafka-python 3.0.12 drops what came together with the end.
    (9, re.compile(r"SaslAuthenticationFailedError: (?!Sasl)(.*?)(?: \(backoff .*|\))?$"), "login refused: {0}"),
    (9, re.compile(r"UnsupportedSaslMechanismError:? ?(.*)"), "the broker does not offer this sasl_mechanism {0}"),
    (8, re.compile(r"(CERTIFICATE_VERIFY_FAILED.*?)(?: \(_ssl|$)"), "TLS: {0} (see ssl_cafile)"),
    (8, re.compile(r"\[SSL[^\]]*\] (.*?)(?: \(_ssl|$)"), "TLS handshake failed: {0}"),
    (7, re.compile(r"DNS lookup failed for (\S+?),"), "the host name of {0} cannot be resolved"),
    (6, re.compile(r"(ClusterAuthorizationFailedError)"), "not authorized to write ({0})"),
    (5, re.compile(r"(ECONNREFUSED)"), "connection refused"),
    (5, re.compile(r"Request timed out"), "no answer from the broker"),
    (5, re.compile(r"ETIMEDOUT|timed out|EHOSTUNREACH|ENETUNREACH"), "the broker cannot be reached"),
    (4, re.compile(r"Got error produce response .*?: (\w+Error)"), "the broker asks to wait: {0}"),
    (
        2,
        re.compile(r"socket disconnected|ECONNRESET|Connection lost"),
        "the broker closed the connection (login refused, or security_protocol does not fit the listener?)",
    ),
)  # fmt: skip


class _Cause(NamedTuple):
    rank: int
    text: str
    at: float


class ClientLog(logging.Filter):
    """The filter, one for the process; clients are known by their ``client_id``."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._causes: dict[str, dict[int, _Cause]] = {}
        self._users: Counter[str] = Counter()
        self._former: deque[str] = deque(maxlen=256)
        """Clients that ended; their threads may still have something to say."""
        self._let_through: dict[tuple[str, str], float] = {}

    def watch(self, client_id: str) -> None:
        """Begin to read what the client ``client_id`` says."""
        with self._lock:
            self._causes.setdefault(client_id, {})
            self._users[client_id] += 1

    def attach(self) -> None:
        """Put the filter on kafka-python's loggers, those that exist by now."""
        for name in list(logging.root.manager.loggerDict):
            if name.startswith("kafka."):
                logging.getLogger(name).addFilter(self)  # adding it twice does nothing

    def forget(self, client_id: str) -> None:
        """End it."""
        with self._lock:
            self._users[client_id] -= 1
            if self._users[client_id] <= 0:
                del self._users[client_id]
                self._causes.pop(client_id, None)
                self._former.append(client_id)

    def cause(self, client_id: str) -> str | None:
        """Return the most telling of the client's recent complaints, in one line."""
        now = time.monotonic()
        with self._lock:
            recent = [
                c for c in self._causes.get(client_id, {}).values() if c.at > now - REMEMBER_S
            ]
        return max(recent).text if recent else None

    def clear(self, client_id: str) -> None:
        """Forget the complaints so far: the trouble is over."""
        with self._lock:
            if client_id in self._causes:
                self._causes[client_id] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Read a line of a client of ours; True if it may go on to the log."""
        client_id = self._client_of(record.threadName or "")
        if client_id is None:
            return True
        if record.levelno < logging.WARNING:
            return True
        kind = (record.name, str(record.msg))
        # Whoever keeps the line would keep the exception in it, and so the client's open socket.
        record.msg, record.args = record.getMessage(), ()
        found = explain(record.msg)
        now = time.monotonic()
        with self._lock:
            if found is not None and client_id in self._causes:
                self._causes[client_id][found[0]] = _Cause(*found, now)
            if now - self._let_through.get(kind, -REPEAT_S) < REPEAT_S:
                return False
            if len(self._let_through) >= MOST_KINDS:
                self._let_through.clear()
            self._let_through[kind] = now
        return True

    def _client_of(self, thread: str) -> str | None:
        # kafka-python 3.0: "<client_id>-network-thread" of producers, "kafka-io-<client_id>".
        name = thread.removeprefix("kafka-io-").removesuffix("-network-thread")
        return name if name in self._causes or name in self._former else None


def explain(message: str) -> tuple[int, str] | None:
    """Return (rank, cause in one line) of a line of the client's log, or None if it names none."""
    for rank, pattern, text in _KINDS:
        found = pattern.search(message)
        if found:
            said = " ".join((found[1] if found.groups() else "").split())[:200]
            return rank, text.format(said).rstrip()
    return None


client_log: Final = ClientLog()
