"""CURVE: the publisher is the server of both its sockets, readers are clients, whoever binds.

A server accepts every client that knows its public key, or only those whose keys are listed
(``admission``); a plain client gets no byte. Never
logs, shows or keeps a secret key outside the socket options and the settings' ``SecretStr``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils import z85

from kvevents_core.errors import ConfigError

if TYPE_CHECKING:
    from kvevents_zmq.settings import ZmqSettings

_KEY_CHARS = 40


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """One side's keys, ready to be put on a socket."""

    public: bytes
    secret: bytes = field(repr=False)
    server: bytes | None = None
    """The publisher's public key: set on readers only."""

    def apply(self, socket: zmq.Socket[Any]) -> None:
        """Set the options of ``socket``; before it binds or connects."""
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret
        if self.server is None:
            socket.curve_server = True
        else:
            socket.curve_serverkey = self.server


def publisher_keys(settings: ZmqSettings) -> CurveKeys | None:
    """Return the publisher's keys, None without CURVE.

    Raises:
        ConfigError: A key is missing, unreadable or does not fit.
    """
    if not settings.has_curve:
        return None
    secret = _secret(settings)
    if secret is None:
        raise ConfigError(
            "a publisher with CURVE needs curve_secret_key_file or curve_secret_key; "
            "curve_server_key alone is what readers have",
            key="curve_secret_key",
        )
    return CurveKeys(_public(settings, secret), secret)


def reader_keys(settings: ZmqSettings) -> CurveKeys | None:
    """Return a reader's keys, None without CURVE.

    With ``curve_server_key`` the secret key, if any, is the reader's own. Without it the settings
    are the publisher's, and its public key follows from its secret one. A reader without a key of
    its own makes one for this connection.

    Raises:
        ConfigError: A key is missing, unreadable or does not fit.
    """
    if not settings.has_curve:
        return None
    secret, server = _secret(settings), _server(settings)
    if server is not None and secret is not None:
        return CurveKeys(_public(settings, secret), secret, server)
    if server is None:
        if secret is None:
            raise ConfigError(
                "a reader with CURVE needs curve_server_key (the publisher's public key)",
                key="curve_server_key",
            )
        server = _public(settings, secret)
    public, own_secret = zmq.curve_keypair()
    return CurveKeys(public, own_secret, server)


def admitted_keys(settings: ZmqSettings) -> frozenset[bytes] | None:
    """Return the public keys of the readers to admit, None if all are.

    Raises:
        ConfigError: The file is unreadable, or a line is no key.
    """
    path = settings.curve_client_keys_file
    if path is None:
        return None
    key = "curve_client_keys_file"
    lines = [line.strip() for line in _text_of(path, key).splitlines()]
    keys = [line.encode() for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(keys, 1):
        if not _is_key(line):
            raise ConfigError(f"{key} {path!r}: entry {number} is not a Z85 key", key=key)
    return frozenset(keys)


def _is_key(text: bytes) -> bool:
    try:
        return len(text) == _KEY_CHARS and len(z85.decode(text)) == 32
    except (ValueError, KeyError, struct.error):
        return False


def _secret(settings: ZmqSettings) -> bytes | None:
    if settings.curve_secret_key_file is not None:
        return _read(settings.curve_secret_key_file, "curve_secret_key_file", "secret-key")
    key = settings.curve_secret_key
    return None if key is None else key.get_secret_value().encode()


def _server(settings: ZmqSettings) -> bytes | None:
    if settings.curve_server_key_file is not None:
        return _read(settings.curve_server_key_file, "curve_server_key_file", "public-key")
    key = settings.curve_server_key
    return None if key is None else key.encode()


def _public(settings: ZmqSettings, secret: bytes) -> bytes:
    """Return the public key of ``secret``, checked against the one that was given."""
    try:
        public: bytes = zmq.curve_public(secret)
    except (ValueError, zmq.ZMQError):
        public = b""
    if len(public) != _KEY_CHARS:
        raise ConfigError("curve_secret_key is not a Z85 key", key="curve_secret_key") from None
    given = settings.curve_public_key
    if given is not None and given.encode() != public:
        raise ConfigError(
            "curve_public_key does not belong to the secret key; leave it out or give its pair",
            key="curve_public_key",
        )
    return public


def _read(path: str, key: str, entry: str) -> bytes:
    """Return the key in the file at ``path``: its ``entry`` line, or its only content."""
    text = _text_of(path, key)
    value = text.strip()
    for line in text.splitlines():
        name, equals, quoted = line.partition("=")
        if equals and name.strip() == entry:
            value = quoted.strip().strip('"')
            break
    if len(value) != _KEY_CHARS:
        raise ConfigError(f"{key} {path!r} holds no {entry} of 40 Z85 characters", key=key)
    return value.encode()


def _text_of(path: str, key: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not text"
        raise ConfigError(f"{key} {path!r} cannot be read: {reason}", key=key) from None
