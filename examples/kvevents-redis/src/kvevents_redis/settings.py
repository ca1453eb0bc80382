"""Settings of the Redis backend. Checks what can be checked without a server."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from kvevents_core import BackendSettings, StreamId
from kvevents_redis.keys import key_of


class RedisSettings(BackendSettings):
    """Keys beside core's own; ``KVEVENTS_REDIS_URL`` and so on in the environment."""

    url: str = "redis://127.0.0.1:6379/0"
    password: SecretStr | None = None
    max_length: int = Field(default=100_000, ge=1)
    """Batches the server keeps of each stream, roughly."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.port == 0:
            raise ValueError("must look like redis://HOST:PORT/DB or rediss://HOST:PORT/DB")
        if parts.password is not None:
            raise ValueError("holds a password; give it as `password` or KVEVENTS_REDIS_PASSWORD")
        return url

    def address_of(self, stream: StreamId) -> str:
        """Return the server and the key, for people."""
        return f"{self.url} {key_of(stream)}"

    def client_options(self) -> dict[str, Any]:
        """Return what every client is made with: short timeouts, and no retries of its own."""
        return {
            "password": self.password and self.password.get_secret_value(),
            "socket_connect_timeout": 1.0,
            "socket_timeout": 2.0,
            "retry": None,
        }
