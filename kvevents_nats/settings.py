"""Settings of the ``nats`` backend, and the connection options they amount to.

Never connects; imports no client library. Whatever is wrong for certain (a missing file, a missing
package, a template that merges streams) is refused here, so that the engine does not start with it.
"""

from __future__ import annotations

import ssl
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from kvevents_core import BackendSettings, StreamId
from kvevents_core.naming import STREAM_FIELDS, template_fields
from kvevents_nats.subjects import subject_of

_SCHEMES = ("nats", "tls", "ws", "wss")


class NatsSettings(BackendSettings):
    """What ``{"publisher": "nats"}`` may say beside core's own keys."""

    servers: Annotated[tuple[str, ...], NoDecode] = ("nats://localhost:4222",)
    """Seed servers: a list or comma-separated; further ones are learnt from them."""
    subject: str = "kv-events.{tenant}.{model}.{instance}.{rank}"
    """Subject of a stream; names are escaped by ``kvevents_core.naming``."""
    mode: Literal["jetstream", "core"] = "jetstream"
    """``jetstream``: stored and confirmed. ``core``: at most once, nothing is stored."""
    stream: str = "kv-events"
    """Name of the JetStream stream; may hold ``{tenant}`` and ``{model}``."""
    create_stream: bool = True
    """Create the stream where it does not exist. An existing one is never changed."""
    domain: str = ""
    """JetStream domain, for a stream behind a leaf node."""
    stream_max_age_s: float = Field(default=3600.0, gt=0)
    stream_max_bytes: int = Field(default=1024**3, gt=0)
    stream_storage: Literal["file", "memory"] = "file"
    stream_replicas: int = Field(default=1, ge=1, le=5)
    duplicate_window_s: float = Field(default=120.0, gt=0)
    """How long the server recognises a record that is sent again."""

    creds: str = ""
    """Path of a ``.creds`` file (decentralised JWT)."""
    nkey: str = ""
    """Path of a file that holds an nkey seed."""
    nkey_seed: SecretStr | None = None
    user: str = ""
    password: SecretStr | None = None
    token: SecretStr | None = None
    tls_ca: str = ""
    """Path of the CA certificates to trust instead of the system's."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_hostname: str = ""
    """Name the server's certificate must carry, where it is not the host of ``servers``."""
    tls_first: bool = False
    """Start with the TLS handshake, as servers with ``handshake_first`` demand."""
    inbox_prefix: str = "_INBOX"
    """First tokens of the reply subjects, where permissions confine them."""

    ack_window: int = Field(default=4096, ge=1)
    """Most records published and not yet acknowledged."""
    ack_timeout_s: float = Field(default=5.0, gt=0)
    """After this long without an acknowledgement the connection is made anew."""
    connect_timeout_s: float = Field(default=5.0, gt=0)
    reconnect_wait_s: float = Field(default=2.0, gt=0)
    """Longest pause between two attempts to connect."""
    ping_interval_s: float = Field(default=10.0, gt=0)
    """A server that answers two pings in a row with silence is given up."""

    @field_validator("servers", mode="before")
    @classmethod
    def _split_servers(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("needs at least one address such as nats://host:4222")
        schemes = {_check_server(server) for server in value}
        if len({scheme in ("ws", "wss") for scheme in schemes}) > 1:
            raise ValueError("must not mix websocket and other addresses")
        return value

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, value: str) -> str:
        fields = template_fields(value)
        missing = [name for name in STREAM_FIELDS if name not in fields]
        if missing:
            named = ", ".join("{" + name + "}" for name in missing)
            raise ValueError(f"must name {named}, or streams would share a subject")
        for token in value.split("."):
            _check_token(token, value)
        return value

    @field_validator("stream")
    @classmethod
    def _check_stream(cls, value: str) -> str:
        if not set(template_fields(value)) <= {"tenant", "model"}:
            raise ValueError("may name {tenant} and {model} only")
        if not value or any(c in value for c in " .*>/\\\t\r\n"):
            raise ValueError("must be a stream name: no space, dot, slash, * or >")
        return value

    @field_validator("inbox_prefix")
    @classmethod
    def _check_inbox(cls, value: str) -> str:
        for token in value.split("."):
            _check_token(token, value)
        return value

    @field_validator("domain")
    @classmethod
    def _check_domain(cls, value: str) -> str:
        if value and (not value.isascii() or any(c in value for c in ".*> \t\r\n")):
            raise ValueError("must be one word, without blanks, dots, * or >")
        return value

    @field_validator("creds", "nkey", "tls_ca", "tls_cert", "tls_key")
    @classmethod
    def _check_file(cls, value: str) -> str:
        if value and not Path(value).is_file():
            raise ValueError(f"names a file that does not exist: {value!r}")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> NatsSettings:
        ways = [
            name for name in ("creds", "nkey", "nkey_seed", "user", "token") if self._has(name)
        ]
        if len(ways) > 1:
            raise ValueError(f"give one way to log in, not {' and '.join(ways)}")
        if bool(self.user) != self._has("password"):
            raise ValueError("user and password belong together")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key belong together")
        if {"creds", "nkey", "nkey_seed"} & set(ways):
            _need_package("nkeys", f"the setting {ways[0]}")
        if self.servers[0].startswith("ws"):
            _need_package("aiohttp", f"the address {self.servers[0]}")
        _need_package("nats", 'publisher "nats"')
        return self

    def address_of(self, stream: StreamId) -> str:
        """Return the subject of ``stream``."""
        return subject_of(self.subject, stream)

    def _has(self, name: str) -> bool:
        value = getattr(self, name)
        return bool(value.get_secret_value() if isinstance(value, SecretStr) else value)

    @property
    def wants_tls(self) -> bool:
        """Return whether an unencrypted connection must be refused."""
        secure = any(server.startswith(("tls://", "wss://")) for server in self.servers)
        return secure or self.tls_first or bool(self.tls_ca or self.tls_cert or self.tls_hostname)

    def login(self) -> dict[str, Any]:
        """Return the client's login options; they hold secrets in the clear."""
        options: dict[str, Any] = {}
        if self.creds:
            options["user_credentials"] = self.creds
        if self.nkey:
            options["nkeys_seed"] = self.nkey
        if self.nkey_seed is not None:
            options["nkeys_seed_str"] = self.nkey_seed.get_secret_value()
        if self.user:
            options["user"] = self.user
        if self.password is not None:
            options["password"] = self.password.get_secret_value()
        if self.token is not None:
            options["token"] = self.token.get_secret_value()
        return options

    def tls_context(self) -> ssl.SSLContext:
        """Return the context for TLS connections.

        Raises:
            OSError: A certificate or key file cannot be read or used.
        """
        context = ssl.create_default_context(cafile=self.tls_ca or None)
        if self.tls_cert:
            context.load_cert_chain(self.tls_cert, self.tls_key)
        return context


def _check_server(server: str) -> str:
    """Return the scheme of ``server``; ValueError without quoting what may be a password."""
    parts = urlsplit(server if "://" in server else f"nats://{server}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(
            "must not hold a user, password or token; set KVEVENTS_NATS_USER and "
            "KVEVENTS_NATS_PASSWORD, or KVEVENTS_NATS_TOKEN"
        )
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{server!r} must begin with one of {', '.join(_SCHEMES)}")
    try:
        _ = parts.port
    except ValueError as exc:
        raise ValueError(f"{server!r} has no valid port: {exc}") from None
    if not parts.hostname:
        raise ValueError(f"{server!r} names no host")
    return parts.scheme


def _check_token(token: str, template: str) -> None:
    if not token or any(c in token for c in "*> \t\r\n"):
        raise ValueError(f"{template!r} must be dot-separated tokens without blanks, * or >")
    if "{" in token and not (
        token.startswith("{") and token.endswith("}") and token.count("{") == 1
    ):
        # A wildcard stands for a whole token, so readers could not ask for every value.
        raise ValueError(f"in {template!r} a field must fill its token: not {token!r}")
    if token.startswith("$"):
        raise ValueError(f"{template!r} must not use tokens beginning with $: the server's own")


def _need_package(module: str, wanted_by: str) -> None:
    if find_spec(module) is None:
        package = {"nats": "nats-py"}.get(module, module)
        extra = "" if module == "aiohttp" else " (or kvevents[nats])"
        raise ValueError(f"{wanted_by} needs the package {package}: pip install {package}{extra}")
