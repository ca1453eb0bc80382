"""What an adopter of the kit supplies: a fresh place on the transport and a look at it from outside.

The kit never reads through the backend's own ``Source`` what its ``Sink`` wrote: a backend that
lies consistently would pass. So the observer is a raw client of the transport.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from kvevents_core.backend import Sink
from kvevents_core.naming import StreamId


class Observed(NamedTuple):
    """One record as the transport really holds it."""

    seq: int
    payload: bytes
    epoch: int | None = None
    """None where the transport's records carry none."""
    topic: bytes | None = None
    """What stands in the topic's place, where records carry it."""
    flaw: str | None = None
    """Why this is no whole record (a missing frame, a header that cannot be read)."""


class Observer(ABC):
    """A raw client that reads one stream."""

    @abstractmethod
    def poll(self, timeout_s: float) -> Sequence[Observed]:
        """Return what came since the last call, in order, waiting ``timeout_s`` for the first.

        An unreachable peer is no error: nothing comes.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything; quiet when called again."""


class Peer(ABC):
    """The other end, to be hurt: a broker, a relay before it, or whatever a sink talks to."""

    can_stall: ClassVar[bool] = False
    """``stall`` and ``slow_down`` work."""

    @abstractmethod
    def stop(self) -> None:
        """Become unreachable: connections break and new ones are refused."""

    @abstractmethod
    def start(self) -> None:
        """Be reachable again, under the same address, and as quick as before."""

    def stall(self) -> None:
        """Keep connections, take new ones, answer nothing."""
        raise LookupError("this peer cannot stall")

    def slow_down(self, delay_s: float) -> None:
        """Hold up everything by ``delay_s`` each time, until ``start``."""
        raise LookupError("this peer cannot be slowed down")


class Place(ABC):
    """A fresh place on the transport, one per test. Tests of a place see no other's streams.

    A subclass gives ``settings`` and ``observe``, and as much of the rest as its transport allows;
    what it leaves out is skipped with the reason.
    """

    settings: Mapping[str, Any]
    """The backend's keys that lead here, as they would stand in ``--kv-events-config``."""
    peer: Peer | None = None
    no_peer: str = "this place's peer cannot be stopped"
    """Why ``peer`` is None; the reason of the tests that are skipped."""
    patience_s: float = 10.0
    """Longest wait for what must happen: generous, since it is only spent when it does not."""
    distinct_names: bool = True
    """Streams of one place are told apart by name. False where only the rank does (ZMQ ports)."""
    crosses_processes: bool = True
    """Other processes reach the same place with the same settings."""
    empty_topic: Mapping[str, Any] | None = None
    """Settings that leave the topic empty; None where records carry no topic."""
    bad_settings: Sequence[Mapping[str, Any]] = ()
    """Settings to be refused, on every rank alike."""
    unavailable: Sequence[Mapping[str, Any]] = ()
    """Settings that are sound, but lead to a local address that cannot be had."""
    secrets: Mapping[str, str] = {}
    """Secret keys with values that are accepted (not necessarily by the peer)."""
    client_modules: Sequence[str] = ()
    """Client libraries that constructing the backend must not import."""
    refused_payload: bytes | None = None
    """A payload that the transport, not the backend, refuses; None if none is known."""

    def __init__(self) -> None:
        self.tenant = "conformance"
        self.model = "org/model-0.6B"
        self.instance = f"i-{uuid.uuid4().hex[:12]}"

    def stream(self, rank: int = 0) -> StreamId:
        """Return the stream of ``rank``, which no other place has."""
        return StreamId(self.tenant, self.model, self.instance, rank)

    @abstractmethod
    def observe(self, sink: Sink, stream: StreamId) -> Observer:
        """Return a raw reader of ``stream``, from now on or from the beginning.

        Args:
            sink: The stream's open sink; ask its ``describe`` for a real address.
            stream: The stream to read.
        """

    def corrupt(self, stream: StreamId, sink: Sink) -> bool:
        """Put something into ``stream`` that is not a record; False if that cannot be done."""
        return False

    def close(self) -> None:
        """Free what the place holds."""
        return
