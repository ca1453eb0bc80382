"""The conformance kit's view of NATS: a real server behind a relay, read over a plain socket."""

from __future__ import annotations

import json
import socket
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from kvevents_core.backend import Sink
from kvevents_core.naming import StreamId
from kvevents_core.testing import Observed, Observer, Place, TcpRelay


class PlainClient:
    """A NATS connection without a client library: the protocol is lines of text.

    Args:
        url: Address of the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), 5)
        self._buffer = b""
        self._read_line(time.monotonic() + 5)
        options = json.dumps({"verbose": False, "headers": True, "no_responders": True})
        self.send(f"CONNECT {options}")

    def send(self, line: str, payload: bytes | None = None) -> None:
        """Write one protocol line, with a payload if there is one."""
        body = b"" if payload is None else payload + b"\r\n"
        self._socket.sendall(line.encode() + b"\r\n" + body)

    def publish(self, subject: str, payload: bytes, header: str = "", reply: str = "") -> None:
        """Publish one message; ``header`` holds the lines of its headers."""
        if not header:
            self.send(f"PUB {subject} {reply} {len(payload)}", payload)
            return
        block = f"NATS/1.0\r\n{header}\r\n\r\n".encode()
        sizes = f"{len(block)} {len(block) + len(payload)}"
        self.send(f"HPUB {subject} {reply} {sizes}", block + payload)

    def next_message(self, timeout_s: float) -> tuple[str, bytes, bytes] | None:
        """Return (subject, header block, payload), or None if nothing came in time."""
        deadline = time.monotonic() + timeout_s
        while (line := self._read_line(deadline)) is not None:
            words = line.decode().split(" ")
            if words[0] == "PING":
                self.send("PONG")
            elif words[0] in ("MSG", "HMSG"):
                header_size = int(words[-2]) if words[0] == "HMSG" else 0
                # What has begun to come comes whole.
                body = self._read(int(words[-1]) + 2, time.monotonic() + 5)
                assert body is not None
                return words[1], body[:header_size], body[header_size:-2]
        return None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _read_line(self, deadline: float) -> bytes | None:
        while b"\r\n" not in self._buffer:
            if not self._receive(deadline):
                return None
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line

    def _read(self, size: int, deadline: float) -> bytes | None:
        while len(self._buffer) < size:
            if not self._receive(deadline):
                return None
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _receive(self, deadline: float) -> bool:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            more = self._socket.recv(65536)
        except TimeoutError:
            return False
        self._buffer += more
        return bool(more)


class NatsObserver(Observer):
    """Reads one subject: from the stream's beginning where there is one, else from now on."""

    def __init__(self, url: str, subject: str, stream: str | None) -> None:
        self._client = PlainClient(url)
        if stream is None:
            self._client.send(f"SUB {subject} 1")
        else:
            inbox = f"_INBOX.{uuid.uuid4().hex}"
            self._client.send(f"SUB {inbox} 1")
            config = {
                "deliver_subject": inbox,
                "deliver_policy": "all",
                "ack_policy": "none",
                "filter_subject": subject,
            }
            request = json.dumps({"stream_name": stream, "config": config}).encode()
            self._client.publish(f"$JS.API.CONSUMER.CREATE.{stream}", request)

    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return what came."""
        seen: list[Observed] = []
        while (message := self._client.next_message(0.0 if seen else timeout_s)) is not None:
            seen.append(_observed(*message))
        return seen

    def close(self) -> None:
        """Close the connection; the server removes the consumer."""
        self._client.close()


def _observed(subject: str, header: bytes, payload: bytes) -> Observed:
    lines = header.decode().split("\r\n")
    values = dict(line.split(": ", 1) for line in lines if ": " in line)
    try:
        _, epoch, seq = values["Nats-Msg-Id"].rsplit(":", 2)
        version = values["Kvevents"].split(" ")[0]
        return Observed(
            int(seq), payload, int(epoch), flaw=None if version == "1" else f"version {version}"
        )
    except (KeyError, ValueError):
        return Observed(-1, payload, flaw=f"headers {header!r} on {subject}")


class NatsPlace(Place):
    """A JetStream stream, or in core mode a subject, of the test's own.

    Args:
        url: The server.
        relay: A relay to it, through which the backend comes.
        mode: The backend's ``mode``.
    """

    client_modules = ("nats", "nkeys")
    secrets: Mapping[str, str] = {"token": "token-of-nobody"}
    bad_settings = (
        {"servers": "http://host:1"},
        {"servers": []},
        {"servers": "nats://host:99999"},
        {"servers": "nats://user:secret@host:4222"},
        {"subject": "kv.{tenant}"},
        {"subject": "kv events.{tenant}.{model}.{instance}.{rank}"},
        {"stream": "a.b"},
        {"mode": "pigeon"},
        {"creds": "absent.creds"},
        {"user": "somebody"},
        {"tls_cert": "absent.pem"},
        {"ack_window": 0},
        {"stream_max_bytes": -1},
    )

    def __init__(self, url: str, relay: TcpRelay, mode: str = "jetstream") -> None:
        super().__init__()
        self.peer = relay
        self._url = url
        token = uuid.uuid4().hex[:12]
        self.settings: dict[str, Any] = {
            "servers": f"nats://127.0.0.1:{relay.port}",
            "subject": f"kv-{token}.{{tenant}}.{{model}}.{{instance}}.{{rank}}",
            "stream": f"kv-{token}",
            "mode": mode,
            "ack_timeout_s": 1.0,
            "connect_timeout_s": 1.0,
            "reconnect_wait_s": 0.2,
        }

    def observe(self, sink: Sink, stream: StreamId) -> NatsObserver:
        """Read the subject that the sink says it writes to."""
        facts = sink.describe()
        return NatsObserver(self._url, facts["subject"], facts["jetstream_stream"])

    def corrupt(self, stream: StreamId, sink: Sink) -> bool:
        """Publish messages without headers, with wrong ones, and with another stream's."""
        subject = sink.describe()["subject"]
        client = PlainClient(self._url)
        client.publish(subject, b"no headers")
        client.publish(subject, b"x", "Nats-Msg-Id: nonsense")
        client.publish(subject, b"x", f"Nats-Msg-Id: {stream}:1:-1")
        client.publish(subject, b"x", "Nats-Msg-Id: other/m/i/0:1:1\r\nKvevents: 1 e p")
        client.publish(subject, b"", "Kvevents: 1 \x7f")
        client.send("PING")
        client.next_message(0.1)
        client.close()
        return True
