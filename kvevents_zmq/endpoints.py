"""Parse ZMQ endpoints and give each stream rank its own: pure, and the same on every rank.

    tcp://HOST:PORT     rank r: PORT + r; port 0 is left to the system on every rank
    ipc://PATH          rank 0: PATH, rank r: PATH_dp{r}
    inproc://NAME       rank 0: NAME, rank r: NAME_dp{r}

The tcp and inproc rules are those of vLLM 0.33 (``distributed/kv_events.py``) and SGLang 0.5.23
(``disaggregation/kv_events.py``), rank 0 unchanged included; ipc, which both refuse above rank 0,
follows inproc. Both find the scheme and the wildcard by substring; here the parsed parts decide.
Never opens a socket and never resolves a name.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from dataclasses import dataclass, replace
from typing import Final

from kvevents_core.errors import ConfigError

MAX_PORT: Final = 65535
MAX_IPC_PATH_BYTES: Final = 107
"""``sun_path`` of a Unix socket on Linux is 108 bytes with its final NUL."""
SCHEMES: Final = ("tcp", "ipc", "inproc")
WILDCARDS: Final = ("*", "0.0.0.0", "::")  # noqa: S104 - names them, binds nothing

_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?\.?")
_NUMERIC: Final = re.compile(r"[0-9.]+")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A parsed endpoint. ``str()`` gives what libzmq takes."""

    scheme: str
    """``tcp``, ``ipc`` or ``inproc``."""
    host: str
    """tcp: host name, address without brackets, or ``*``. ipc: path. inproc: name."""
    port: int | None = None
    """tcp only; 0 = the system chooses."""

    def __str__(self) -> str:
        if self.scheme != "tcp":
            return f"{self.scheme}://{self.host}"
        host = f"[{self.host}]" if self.is_ipv6 else self.host
        return f"tcp://{host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether a tcp host means every interface."""
        return self.scheme == "tcp" and self.host in WILDCARDS

    @property
    def is_ipv6(self) -> bool:
        """Whether a tcp host is an IPv6 address."""
        return self.scheme == "tcp" and ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """Whether a tcp host is ``localhost`` or a loopback address."""
        if self.scheme != "tcp":
            return False
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def for_rank(self, rank: int) -> Endpoint:
        """Return the endpoint of stream rank ``rank``; ``check_ranks`` keeps it in range."""
        if rank == 0 or self.port == 0:
            return self
        if self.port is not None:
            return replace(self, port=self.port + rank)
        return replace(self, host=f"{self.host}_dp{rank}")


def parse_endpoint(text: str, key: str = "endpoint") -> Endpoint:
    """Return the parts of ``text``, the value of setting ``key``.

    Raises:
        ConfigError: ``text`` is not an endpoint of a scheme we speak.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        raise _wrong(
            text, key, "has no scheme; write tcp://HOST:PORT, ipc://PATH or inproc://NAME"
        )
    if scheme not in SCHEMES:
        nearest = difflib.get_close_matches(scheme, SCHEMES, n=1)
        advice = f"unknown scheme {scheme!r}; ZMQ takes {', '.join(SCHEMES)}"
        raise _wrong(text, key, advice, nearest[0] if nearest else None)
    if any(char.isspace() or not char.isprintable() for char in rest):
        raise _wrong(text, key, "holds a space or control character")
    if scheme == "tcp":
        return _parse_tcp(text, rest, key)
    if not rest:
        raise _wrong(text, key, f"needs a {'path' if scheme == 'ipc' else 'name'} after ://")
    if scheme == "ipc" and rest == "*":
        raise _wrong(text, key, "no reader can know the path that ipc://* gets; give one")
    return Endpoint(scheme, rest)


def parse_host(text: str, key: str = "host") -> str:
    """Return ``text``, a host a reader dials, without brackets.

    Raises:
        ConfigError: It is no host name or address, or a wildcard.
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    problem = _host_problem(host)
    if problem is None and host in WILDCARDS:
        problem = "is a wildcard, which cannot be dialled"
    if problem is not None:
        raise ConfigError(f"{key} {text!r} {problem}", key=key)
    return host


def binds(endpoint: Endpoint, bind: bool | None) -> bool:
    """Return whether the publisher binds: ``bind``, or else what the host suggests.

    A wildcard host, ipc and inproc bind; a concrete host is dialled, as both engines do.
    """
    if bind is not None:
        return bind
    return endpoint.scheme != "tcp" or endpoint.is_wildcard


def check_ranks(endpoint: Endpoint, stream_ranks: int, key: str = "endpoint") -> None:
    """Check that ranks ``0..stream_ranks - 1`` get an address each; never depends on one's rank.

    Raises:
        ConfigError: The last port passes 65535 or the last path is too long.
    """
    last = endpoint.for_rank(stream_ranks - 1)
    if last.port is not None and last.port > MAX_PORT:
        raise ConfigError(
            f"{key} {str(endpoint)!r}: {stream_ranks} stream ranks need ports {endpoint.port} to "
            f"{last.port}, above {MAX_PORT}; use a base of at most {MAX_PORT - stream_ranks + 1}",
            key=key,
        )
    if last.scheme == "ipc" and len(os.fsencode(last.host)) > MAX_IPC_PATH_BYTES:
        raise ConfigError(
            f"{key} {str(endpoint)!r}: the path of rank {stream_ranks - 1} exceeds "
            f"{MAX_IPC_PATH_BYTES} bytes; use a shorter one",
            key=key,
        )


def check_apart(events: Endpoint, replay: Endpoint, stream_ranks: int) -> None:
    """Check that no rank's replay address is another rank's event address (both bound here).

    Raises:
        ConfigError: They overlap; the customary 5557 and 5558 do so from two ranks on.
    """
    if events.scheme == replay.scheme == "tcp":
        if not events.port or not replay.port or abs(replay.port - events.port) >= stream_ranks:
            return
        above = events.port + stream_ranks
        raise ConfigError(
            f"replay_endpoint {str(replay)!r} and endpoint {str(events)!r} overlap with "
            f"{stream_ranks} stream ranks, since rank r takes port + r in both; keep the ports at "
            f"least {stream_ranks} apart, for example replay port {above}",
            key="replay_endpoint",
        )
    ranks = range(stream_ranks)
    shared = {str(events.for_rank(r)) for r in ranks} & {str(replay.for_rank(r)) for r in ranks}
    if shared:
        raise ConfigError(
            f"replay_endpoint and endpoint share {min(shared)!r}; give them different names",
            key="replay_endpoint",
        )


def dial(bound: Endpoint, host: str | None) -> Endpoint:
    """Return where a peer connects to reach what is bound at ``bound``.

    A wildcard or loopback host gives way to ``host``; without one a wildcard means loopback.
    """
    if host is not None and (bound.is_wildcard or bound.is_loopback):
        return replace(bound, host=parse_host(host))
    if bound.is_wildcard:
        return replace(bound, host="::1" if bound.host == "::" else "127.0.0.1")
    return bound


def listen(dialled: Endpoint) -> Endpoint:
    """Return where a reader binds so that a publisher dialling ``dialled`` reaches it.

    Loopback stays loopback. Any other host may be a service name or an address that is translated
    on the way, so the reader listens on every interface.
    """
    if dialled.scheme != "tcp":
        return dialled
    if not dialled.is_loopback:
        return replace(dialled, host="*")
    return replace(dialled, host="127.0.0.1") if dialled.host == "localhost" else dialled


def wants_ipv6(endpoint: Endpoint) -> bool:
    """Return whether the socket needs the IPV6 option: an IPv6 host, or ``*`` (both families).

    ``0.0.0.0`` asks for IPv4. A host name stays IPv4 by default, since libzmq 4.3 tries only the
    first address it finds and would pick the IPv6 one.
    """
    return endpoint.scheme == "tcp" and (endpoint.is_ipv6 or endpoint.host == "*")


def _parse_tcp(text: str, rest: str, key: str) -> Endpoint:
    if "@" in rest:
        # Not echoed: what stands before an @ is often a password.
        raise ConfigError(f"{key} holds user information (…@…), which ZMQ has not", key=key)
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or ":" not in host:
            raise _wrong(text, key, "brackets must hold an IPv6 address, as in tcp://[::1]:5557")
    else:
        host, colon, after = rest.rpartition(":")
        host, tail = (host, colon + after) if colon else (rest, "")
        if ":" in host and _is_ipv6(rest):
            advice = f"is ambiguous; put the address in brackets: tcp://[{host}]:{after}"
            raise _wrong(text, key, advice)
    problem = _host_problem(host)
    if problem is not None:
        raise _wrong(text, key, problem)
    return Endpoint("tcp", host, _parse_port(text, tail, key))


def _parse_port(text: str, tail: str, key: str) -> int:
    """Return the port in ``tail``, which is ``:`` and digits if all is well."""
    digits = tail[1:]
    if not tail.startswith(":") or not digits:
        raise _wrong(text, key, "needs a port, as in tcp://*:5557 (0 = the system chooses)")
    if not (digits.isascii() and digits.isdigit()):
        raise _wrong(text, key, f"port {digits!r} is not a number (0 = the system chooses)")
    if int(digits) > MAX_PORT:
        raise _wrong(text, key, f"port {digits} is above {MAX_PORT}")
    return int(digits)


def _host_problem(host: str) -> str | None:
    """Return what is wrong with ``host`` (no brackets), or None."""
    if not host:
        return "needs a host; * means every interface"
    if host == "*" or _is_ipv6(host):
        return None
    if ":" in host:
        return "is not an IPv6 address; put one in brackets, as in tcp://[::1]:5557"
    if _NUMERIC.fullmatch(host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return f"{host!r} is not an IPv4 address"
        return None
    return None if _NAME.fullmatch(host) else f"{host!r} is not a host name"


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def _wrong(text: str, key: str, problem: str, suggestion: str | None = None) -> ConfigError:
    hint = f" (did you mean {suggestion!r}?)" if suggestion else ""
    return ConfigError(f"{key} {text!r} {problem}{hint}", key=key, suggestion=suggestion)
