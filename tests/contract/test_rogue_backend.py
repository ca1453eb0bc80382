"""A third party's backend that misbehaves in every method cannot break the engine's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from waiting import wait_until

from kvevents_core import AllBlocksCleared, EventPublisher, KVEventBatch, KVEventsConfig
from kvevents_core.memory import MemoryBackend, MemorySink

METHODS = ("start", "status", "send", "take_receipts", "flush", "close", "describe")


def explode(*_: object, **__: object) -> Any:
    raise ZeroDivisionError("a fault of the package")


def exit_process(*_: object, **__: object) -> Any:
    raise SystemExit(3)


def nonsense(*_: object, **__: object) -> Any:
    return "nonsense"


def config_with(monkeypatch: pytest.MonkeyPatch, method: str, fault: Callable[..., Any]) -> Any:
    """Return the configuration of a memory publisher whose sink's ``method`` is faulty."""

    class Rogue(MemorySink):
        pass

    setattr(Rogue, method, fault)
    monkeypatch.setattr(
        MemoryBackend, "open_sink", lambda _, settings, stream: Rogue(settings, stream)
    )
    mapping = {"publisher": "memory", "hub": f"rogue-{method}-{fault.__name__}", "instance": "i"}
    return KVEventsConfig.from_mapping(mapping, environ={})


@pytest.mark.parametrize("fault", [explode, exit_process, nonsense], ids=lambda f: f.__name__)
@pytest.mark.parametrize("method", METHODS)
def test_no_method_of_a_sink_hurts_the_engine(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    fault: Callable[..., Any],
) -> None:
    """C20: construction, ``publish``, ``stats``, ``describe`` and ``shutdown`` work all the same."""
    config = config_with(monkeypatch, method, fault)
    caplog.set_level(logging.CRITICAL, "kvevents")
    publisher = EventPublisher(config, 0)
    try:
        for number in range(50):
            started = time.perf_counter()
            publisher.publish(KVEventBatch(float(number), [AllBlocksCleared()]))
            assert time.perf_counter() - started < 0.5
        assert publisher.stats().sender_alive
        assert publisher.describe()["publisher"] == "memory"
    finally:
        unsent = publisher.shutdown(0.5)
    stats = publisher.stats()
    assert not stats.sender_alive
    lost = sum(stats.lost.values())
    if method in ("status", "send") and fault is not nonsense:
        assert unsent >= 50
    assert stats.published_batches + lost + stats.queued_batches >= 50


def test_a_sink_that_recovers_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """C20: after a hundred exceptions in ``send`` everything arrives, in order."""
    left = [100]
    send = MemorySink.send

    def sometimes(sink: MemorySink, records: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise ConnectionResetError("again")
        return send(sink, records)

    config = config_with(monkeypatch, "send", sometimes)
    publisher = EventPublisher(config, 0)
    try:
        for number in range(20):
            publisher.publish(KVEventBatch(float(number), [AllBlocksCleared()]))
        wait_until(lambda: publisher.stats().published_batches == 21)
        assert publisher.stats().lost == {}
        assert publisher.stats().sender_errors == 100
    finally:
        publisher.shutdown(1.0)
