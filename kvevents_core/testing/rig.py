"""The rig of one test: a backend, a place, and everything the test opened, closed at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

import pytest

from kvevents_core.backend import Arrival, Backend, BackendSettings, ReaderOptions, Record, Source
from kvevents_core.naming import StreamId
from kvevents_core.plugins import installed_backends
from kvevents_core.testing.driver import SinkDriver
from kvevents_core.testing.place import Observed, Observer, Peer, Place

_NO_ENVIRONMENT: Final = "KVEVENTS_CONFORMANCE_UNSET_"


class Watch:
    """An observer and what it saw of one driver's records after it was attached."""

    def __init__(self, observer: Observer, driver: SinkDriver) -> None:
        self._observer = observer
        self._driver = driver
        self._first_seq = 0
        self.seen: list[Observed] = []
        """What the transport holds, in its order; what came before ``attach`` left out."""

    def attach(self) -> None:
        """Send records until one is seen: a transport without memory loses the first ones."""
        deadline = time.monotonic() + self._driver.patience_s
        self._driver.send([b"\x93warm-up"])
        while not self._observer.poll(0.02):
            if time.monotonic() > deadline:
                raise AssertionError(f"the observer saw nothing of {self._driver.stream}")
            self._driver.send([b"\x93warm-up"])
        self._driver.settle()
        self._first_seq = self._driver.next_seq

    def until(self, condition: Callable[[list[Observed]], bool], what: str) -> list[Observed]:
        """Read until ``condition`` holds of what was seen; the driver goes on meanwhile."""
        deadline = time.monotonic() + self._driver.patience_s
        while not condition(self.seen):
            if time.monotonic() > deadline:
                seqs = [one.seq for one in self.seen]
                raise AssertionError(f"not seen within the deadline: {what}; seen: {seqs[-40:]}")
            self._driver.step()
            self.look(0.02)
        return self.seen

    def until_seq(self, seq: int) -> list[Observed]:
        """Read until record ``seq`` was seen, or something that is no record."""
        return self.until(lambda seen: any(o.seq == seq or o.flaw for o in seen), f"seq {seq}")

    def until_all(self, records: Sequence[Record]) -> list[Observed]:
        """Read until all ``records`` were seen."""
        wanted = {record.seq for record in records}

        def complete(seen: list[Observed]) -> bool:
            return any(o.flaw for o in seen) or wanted <= {o.seq for o in seen}

        return self.until(complete, f"{len(wanted)} records from {min(wanted)} to {max(wanted)}")

    def look(self, timeout_s: float) -> None:
        """Read what is there now."""
        for one in self._observer.poll(timeout_s):
            if one.flaw or one.seq >= self._first_seq:
                self.seen.append(one)


class Rig:
    """What a promise is tested with.

    Args:
        backend: The backend under test.
        place: A fresh place.
    """

    def __init__(self, backend: Backend[Any], place: Place) -> None:
        self.backend = backend
        self.place = place
        self.can = backend.capabilities
        self._open: list[Any] = []

    def settings(self, **changes: Any) -> BackendSettings:
        """Return the place's settings, with ``changes``, from no environment."""
        mapping = {**self.place.settings, **changes}
        model: Callable[..., BackendSettings] = self.backend.settings_model
        return model(_env_prefix=_NO_ENVIRONMENT, **mapping)

    def open(self, rank: int = 0, *, epoch: int | None = None, **changes: Any) -> SinkDriver:
        """Open the sink of ``rank`` and start it; it need not be ready."""
        return self.open_stream(self.place.stream(rank), epoch=epoch, **changes)

    def open_stream(
        self, stream: StreamId, *, epoch: int | None = None, **changes: Any
    ) -> SinkDriver:
        """Open the sink of ``stream`` and start it; it need not be ready."""
        sink = self.backend.open_sink(self.settings(**changes), stream)
        self._open.append(lambda: sink.close(1.0))
        return SinkDriver(
            sink,
            stream,
            confirms=self.can.confirms,
            epoch=epoch,
            patience_s=self.place.patience_s,
        )

    def watch(self, driver: SinkDriver) -> Watch:
        """Return a watch that sees every record ``driver`` sends from now on."""
        driver.wait_ready()
        observer = self.place.observe(driver.sink, driver.stream)
        self._open.append(observer.close)
        watch = Watch(observer, driver)
        watch.attach()
        return watch

    def open_source(
        self,
        *,
        ranks: tuple[int, ...] = (0,),
        start: str | dict[str, Any] = "earliest",
        **changes: Any,
    ) -> Source:
        """Open a source of this place's streams."""
        reader = ReaderOptions(
            tenant=self.place.tenant,
            model=self.place.model,
            instance=self.place.instance,
            ranks=ranks,
            start=start,
        )
        source = self.backend.open_source(self.settings(**changes), reader)
        self._open.append(source.close)
        return source

    def receive_until(
        self,
        source: Source,
        condition: Callable[[list[Arrival]], bool],
        what: str,
        *,
        meanwhile: Callable[[], object] = lambda: None,
    ) -> list[Arrival]:
        """Return all arrivals up to the one that makes ``condition`` true."""
        arrivals: list[Arrival] = []
        deadline = time.monotonic() + self.place.patience_s
        while not condition(arrivals):
            if time.monotonic() > deadline:
                raise AssertionError(f"the source did not give {what}: {arrivals[-20:]}")
            meanwhile()
            arrivals += source.receive(0.02)
        return arrivals

    def need(self, capability: str) -> None:
        """Skip the test unless the backend claims ``capability``."""
        if not getattr(self.can, capability):
            pytest.skip(f"{self.backend.name} does not claim `{capability}`")

    def need_peer(self) -> Peer:
        """Return the peer to hurt, or skip with the place's reason."""
        if self.place.peer is None:
            pytest.skip(self.place.no_peer)
        return self.place.peer

    def need_installed(self) -> None:
        """Skip the test unless the backend is found by its name, as engines find it."""
        if self.backend.name not in {found.name for found in installed_backends()}:
            pytest.skip(f"{self.backend.name!r} is not installed under its name")

    def close(self) -> None:
        """Close everything in the reverse order of opening."""
        with ExitStack() as closing:  # every one of them, whatever the others raise
            closing.callback(self.place.close)
            for close in self._open:
                closing.callback(close)
            if self.place.peer is not None:
                closing.callback(self.place.peer.start)


def records_of(arrivals: Sequence[Arrival]) -> list[Record]:
    """Return the records among ``arrivals``."""
    return [arrival for arrival in arrivals if isinstance(arrival, Record)]
