"""Sockets of connections that fail are closed at once.

kafka-python 3.0.12 leaves them to the garbage collector: during an outage one for every attempt, and
an engine may collect seldom. Its registry of proxies by scheme is the place to do better.
"""

from __future__ import annotations

from typing import Any, Final

from kafka.net.inet import KafkaNetSocket

DIRECT: Final = "kvevents://direct"
"""The ``proxy_url`` that means: no proxy, but no socket left behind either."""


class TidySocket(KafkaNetSocket):  # type: ignore[misc]
    """Connects without a proxy."""

    SCHEMES = ("kvevents",)

    async def sock_connect(
        self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None
    ) -> Any:
        """Connect ``sock``, or close it."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
