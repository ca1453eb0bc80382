"""Finds out whether a transport can be reached, as a publisher of one stream would reach it.

Nothing is sent. Where a publisher already holds the address, it is asked where it stands instead.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvevents_core import KVEventsConfig, ReaderOptions, Record, SinkHost, StreamId
from kvevents_core.backend import Backend, BackendSettings, SinkStatus
from kvevents_core.errors import AddressInUseError, TransportError

_POLL_S: Final = 0.05
_CLOSE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Reached:
    """The outcome for one stream."""

    is_ok: bool
    detail: str
    """One line: where, or what keeps it from working."""


class _NoHistory:
    """A replay ring that never held anything."""

    def read(self, first_seq: int, limit: int) -> list[Record]:
        """Return nothing."""
        return []

    def bounds(self) -> tuple[int, int]:
        """Return that nothing is held."""
        return (0, 0)


def reach(config: KVEventsConfig, rank: int, timeout_s: float) -> Reached:
    """Open the sending end of stream ``rank``, wait until it is connected, close it again.

    Raises:
        ConfigError: The rank cannot have an address.
    """
    backend, settings = config.backend, config.backend_settings
    if backend is None or settings is None:
        return Reached(False, "this configuration publishes nothing, so there is nothing to reach")
    settings.check_ranks(rank + 1)
    stream = StreamId(config.tenant, config.model, config.instance, rank)
    try:
        sink = backend.open_sink(settings, stream)
    except AddressInUseError as exc:
        return _ask_the_holder(backend, settings, stream, timeout_s) or Reached(False, str(exc))
    except TransportError as exc:
        return Reached(False, str(exc))
    try:
        sink.start(SinkHost(lambda: None, lambda: None, _NoHistory(), "kvevents check"))
        deadline_s = time.monotonic() + timeout_s
        status = sink.status()
        while not _is_reached(status) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            status = sink.status()
        described = sink.describe()
        where = _where(described, settings.address_of(stream))
        if _is_reached(status):
            outcome = "is free to bind" if described.get("bind") else "answers"
            return Reached(True, f"{backend.name}: {where} {outcome}")
        why = status.error or f"no answer within {timeout_s:g} s"
        return Reached(False, f"{backend.name}: {where} cannot be reached: {why}")
    finally:
        sink.close(_CLOSE_S)


def _is_reached(status: SinkStatus) -> bool:
    return status.ready and status.connected


def _where(described: dict[str, Any], address: str | None) -> str:
    for key in ("endpoint", "servers", "bootstrap_servers"):
        where = described.get(key)
        if where:
            return where if isinstance(where, str) else ", ".join(map(str, where))
    return address or "the transport"


def _ask_the_holder(
    backend: Backend[Any], settings: BackendSettings, stream: StreamId, timeout_s: float
) -> Reached | None:
    """Return what the publisher that holds the address says of itself, None if it does not."""
    reader = ReaderOptions(stream.tenant, stream.model, stream.instance, ranks=(stream.rank,))
    source = backend.open_source(settings, reader)
    try:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for channel in source.channels():
                head = source.head(channel, _POLL_S * 10)
                if head is not None:
                    return Reached(
                        True,
                        f"{backend.name}: a publisher of {head.stream or stream} runs at "
                        f"{settings.address_of(stream)}: epoch {head.epoch}, "
                        f"next seq {head.next_seq}",
                    )
            if _carries_stream(source.receive(_POLL_S)):
                return Reached(
                    True,
                    f"{backend.name}: a publisher runs at {settings.address_of(stream)}",
                )
    finally:
        source.close()
    return None


def _carries_stream(arrivals: Sequence[object]) -> bool:
    return any(isinstance(arrival, Record) for arrival in arrivals)
