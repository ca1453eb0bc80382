"""Settings of the ZMQ backend: the keys people already type for SGLang and vLLM, and CURVE's.

Checks all that can be checked without opening anything, so that every rank sees the same error.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from kvevents_core import BackendSettings, StreamId
from kvevents_core.errors import ConfigError
from kvevents_zmq import endpoints
from kvevents_zmq.endpoints import Endpoint


class ZmqSettings(BackendSettings):
    """Where a publisher's streams are found over ZMQ; readers take the same settings."""

    endpoint: str = "tcp://*:5557"
    """Event socket of stream rank 0; see ``endpoints`` for the other ranks."""
    bind: bool | None = None
    """Whether the publisher binds; None: a wildcard host, ipc and inproc bind, a host is dialled."""
    replay_endpoint: str | None = None
    """Replay socket of stream rank 0, always bound by the publisher; None: no replay."""
    topic: str = ""
    """First frame of every message, taken as it is."""
    hwm: int = Field(default=100_000, ge=1)
    """Messages the publisher keeps for each slow reader; beyond it ZMQ drops them."""
    rcvhwm: int = Field(default=100_000, ge=1)
    """Messages a reader keeps per stream while it does not read."""
    ipv6: bool | None = None
    """IPV6 option of the sockets; None: on for IPv6 addresses and ``*``, off for host names."""
    curve_secret_key: SecretStr | None = None
    """Secret key, Z85: the publisher's (the CURVE server) or, beside ``curve_server_key``, the reader's."""
    curve_secret_key_file: str | None = None
    """File with that key: a certificate as ``zmq.auth`` writes it, or the key alone."""
    curve_public_key: str | None = None
    """Public key that belongs to the secret key; may be left out, it is derived."""
    curve_server_key: str | None = None
    """Reader: the publisher's public key, Z85."""
    curve_server_key_file: str | None = None
    """File with that key."""
    curve_client_keys_file: str | None = None
    """Publisher: file with the public keys of the readers to admit, one a line; None: all that know
    the publisher's."""

    @field_validator("endpoint", "replay_endpoint")
    @classmethod
    def _parse(cls, value: str | None, info: object) -> str | None:
        if value is not None:
            endpoints.parse_endpoint(value, str(getattr(info, "field_name", "endpoint")))
        return value

    @field_validator("curve_public_key", "curve_server_key", "curve_secret_key")
    @classmethod
    def _check_key(cls, value: str | SecretStr | None) -> str | SecretStr | None:
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if text is not None and (len(text) != 40 or not text.isascii() or not text.isprintable()):
            raise ValueError("must be 40 characters of Z85, as curve_keypair() gives them")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        for name in ("curve_secret_key", "curve_server_key"):
            if getattr(self, name) is not None and getattr(self, f"{name}_file") is not None:
                raise ValueError(f"{name} and {name}_file exclude each other")
        where = self.events
        if not endpoints.binds(where, self.bind) and where.scheme == "tcp":
            if where.is_wildcard:
                raise ValueError(
                    f"endpoint {self.endpoint!r} with bind false names no host to dial"
                )
            if where.port == 0:
                raise ValueError(f"endpoint {self.endpoint!r} is dialled and needs its real port")
        if self.curve_client_keys_file is not None:
            self._check_admission()
        self.check_ranks(1)
        return self

    def _check_admission(self) -> None:
        if self.curve_secret_key is None and self.curve_secret_key_file is None:
            raise ValueError("curve_client_keys_file needs CURVE: give curve_secret_key_file, too")
        if any(at is not None and at.scheme == "inproc" for at in (self.events, self.replay)):
            raise ValueError("curve_client_keys_file does not go with inproc, which has no CURVE")

    @property
    def events(self) -> Endpoint:
        """The event endpoint of rank 0, parsed."""
        return endpoints.parse_endpoint(self.endpoint)

    @property
    def replay(self) -> Endpoint | None:
        """The replay endpoint of rank 0, parsed."""
        if self.replay_endpoint is None:
            return None
        return endpoints.parse_endpoint(self.replay_endpoint, "replay_endpoint")

    @property
    def publisher_binds(self) -> bool:
        """Whether the publisher binds its event socket and readers dial it."""
        return endpoints.binds(self.events, self.bind)

    @property
    def has_curve(self) -> bool:
        """Whether any CURVE key is given."""
        keys = (self.curve_secret_key, self.curve_secret_key_file, self.curve_public_key)
        return any((*keys, self.curve_server_key, self.curve_server_key_file))

    def check_ranks(self, stream_ranks: int) -> None:
        """Raise ``ConfigError`` if ``stream_ranks`` streams cannot have an address each."""
        if stream_ranks < 1:
            raise ConfigError(f"{stream_ranks} stream ranks are none", key="dp_size")
        endpoints.check_ranks(self.events, stream_ranks)
        replay = self.replay
        if replay is not None:
            endpoints.check_ranks(replay, stream_ranks, "replay_endpoint")
            if self.publisher_binds:
                endpoints.check_apart(self.events, replay, stream_ranks)

    def leaves_process(self) -> bool:
        """Return whether the events go further than inproc does."""
        return self.events.scheme != "inproc"

    def address_of(self, stream: StreamId) -> str:
        """Return the event endpoint of the stream's rank."""
        return str(self.events.for_rank(stream.rank))

    def ipv6_for(self, endpoint: Endpoint) -> bool:
        """Return whether a socket at ``endpoint`` is to have the IPV6 option."""
        if self.ipv6 is not None:
            return self.ipv6 and endpoint.scheme == "tcp"
        return endpoints.wants_ipv6(endpoint)
