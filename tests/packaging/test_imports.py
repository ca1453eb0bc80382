"""What importing costs: engines load this package in every process, wanted or not."""

from __future__ import annotations

import subprocess
import sys

import pytest

CLIENTS = {"zmq", "nats", "nkeys", "kafka", "redis"}
TESTS = {"pytest", "hypothesis", "_pytest"}
CLI = {"typer", "click", "rich", "prometheus_client"}
HEAVY = {"pydantic", "pydantic_settings", "asyncio"}
ENGINES = {"vllm", "sglang", "torch"}

NULL = """
from kvevents_core import EventPublisherFactory
publisher = EventPublisherFactory.create({config})
publisher.publish(object())
publisher.shutdown()
import threading
assert threading.active_count() == 1
"""


def imported(code: str) -> set[str]:
    """Return the top-level modules a fresh interpreter holds after ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    return {name.partition(".")[0] for name in names} | {
        name for name in names if name == "kvevents_core.testing"
    }


def test_importing_core_pulls_no_client_and_nothing_heavy() -> None:
    """Nor the kit, the command line, an engine, pydantic or asyncio."""
    unwanted = CLIENTS | TESTS | CLI | HEAVY | ENGINES | {"kvevents_core.testing"}
    assert imported("import kvevents_core") & unwanted == set()


@pytest.mark.parametrize(
    ("package", "clients"),
    [
        ("kvevents_zmq", {"zmq"}),
        ("kvevents_nats", {"nats", "nkeys"}),
        ("kvevents_kafka", {"kafka"}),
    ],
)
def test_importing_a_backend_pulls_no_client(package: str, clients: set[str]) -> None:
    """A client is imported when a sink or source is opened."""
    found = imported(f"import {package}; assert {package}.kvevents_backend()")
    assert found & (CLIENTS | TESTS | CLI | ENGINES) == set(), clients


@pytest.mark.parametrize("config", ["None", "''", '\'{"publisher": "null"}\''])
def test_a_silent_publisher_pulls_no_client(config: str) -> None:
    """No socket, no thread, no client where nothing is published."""
    found = imported(NULL.format(config=config))
    assert found & (CLIENTS | TESTS | CLI | ENGINES) == set()


def test_a_configuration_loads_its_own_backend_only() -> None:
    """With ``memory`` no other backend and no client is imported."""
    code = 'from kvevents_core import KVEventsConfig as C\nC.from_cli(\'{"publisher": "memory"}\')'
    found = imported(code)
    others = {"kvevents_zmq", "kvevents_nats", "kvevents_kafka"}
    assert found & (CLIENTS | TESTS | CLI | ENGINES | others) == set()
