"""How a fault is planted: a memory (or ZMQ) backend with one class replaced by a faulty one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from contract.memory_place import MemoryPlace

from kvevents_core.backend import Backend, BackendSettings, Capabilities
from kvevents_core.memory import MemoryBackend, MemorySettings, MemorySink, MemorySource
from kvevents_core.testing import Place


@dataclass(frozen=True)
class Fault:
    """One broken backend and the promise it breaks."""

    promise: str
    what: str
    backend: Backend[Any]
    make_place: Callable[[], Place]

    def __str__(self) -> str:
        return f"{self.promise} {self.what}"


_planted: list[Fault] = []


def planted() -> list[Fault]:
    """Return every fault."""
    if not _planted:
        for name in ("sinks", "sources", "backends", "zmq"):
            import_module(f"contract.faults.{name}")
    return _planted


def plant(
    promise: str,
    *,
    place: Callable[[], Place] = MemoryPlace,
    settings: type[BackendSettings] = MemorySettings,
    capabilities: Capabilities = MemoryBackend.capabilities,
) -> Callable[[type], type]:
    """Register a faulty sink, source or backend under the promise it breaks."""

    def register(cls: type) -> type:
        if issubclass(cls, Backend):
            backend = cls
        else:
            sink = cls if issubclass(cls, MemorySink) else MemorySink
            source = cls if issubclass(cls, MemorySource) else MemorySource
            backend = _memory_with(sink, source, settings, capabilities)
        _planted.append(Fault(promise, cls.__name__, backend(), place))
        return cls

    return register


def _memory_with(
    sink: type[MemorySink],
    source: type[MemorySource],
    model: type[BackendSettings],
    can: Capabilities,
) -> type[Backend[Any]]:
    class Faulty(MemoryBackend):
        name = "faulty"
        capabilities = can
        settings_model = model

        def open_sink(self, settings: Any, stream: Any) -> MemorySink:
            return sink(settings, stream)

        def open_source(self, settings: Any, reader: Any) -> MemorySource:
            return source(settings, reader)

    return Faulty
