"""A NATS operator, an account and its users: the JWTs that ``nsc`` would make.

Format: NATS JWT v2 (ADR-14), ``ed25519-nkey`` signatures; a user's file is what servers call
``.creds``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import time
from typing import Any

import nkeys

_UNLIMITED = {
    **dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1),
    "wildcards": True,
}
_JETSTREAM = ("streams", "consumer", "mem_storage", "disk_storage")


def _pair(prefix: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def _part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _sign(issuer: Any, subject: str, name: str, claims: dict[str, Any]) -> str:
    body = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    digest = hashlib.sha256(json.dumps(body).encode()).digest()
    body["jti"] = base64.b32encode(digest).rstrip(b"=").decode()
    signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
    return f"{signed}.{_part(bytes(issuer.sign(signed.encode())))}"


class Operator:
    """One operator with one JetStream account."""

    def __init__(self) -> None:
        self._operator = _pair(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = _pair(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = _pair(nkeys.PREFIX_BYTE_ACCOUNT)
        self._revoked: dict[str, int] = {}
        self.revoked_at = 0

    def server_config(self) -> str:
        """Return the server's configuration lines."""
        operator = _sign(
            self._operator, self._operator.public_key.decode(), "op", {"type": "operator"}
        )
        system = {"type": "account", "limits": {**_UNLIMITED, "conn": -1}}
        claims = {
            "type": "account",
            "limits": {**_UNLIMITED, **dict.fromkeys(_JETSTREAM, -1)},
            "revocations": self._revoked,
        }
        preload = "\n".join(
            f"{pair.public_key.decode()}: {_sign(self._operator, pair.public_key.decode(), name, of)}"
            for pair, name, of in (
                (self._system, "system", system),
                (self._account, "engines", claims),
            )
        )
        return (
            f"operator: {operator}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
            f"system_account: {self._system.public_key.decode()}\n"
        )

    def credentials(self) -> str:
        """Return a new user's ``.creds`` file."""
        user = _pair(nkeys.PREFIX_BYTE_USER)
        unlimited = {"subs": -1, "data": -1, "payload": -1}
        token = _sign(
            self._account, user.public_key.decode(), "user", {"type": "user", **unlimited}
        )
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )

    def revoke(self) -> None:
        """Revoke every user so far: publish ``server_config`` again to make it count."""
        self.revoked_at = int(time.time())
        self._revoked["*"] = self.revoked_at
