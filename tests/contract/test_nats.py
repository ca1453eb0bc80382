"""The NATS backend keeps every promise of the contract that it claims, on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from broker.nats_fixtures import nats_url
from contract.nats_place import NatsPlace

from kvevents_core.backend import Capabilities
from kvevents_core.testing import BackendConformance, TcpRelay
from kvevents_nats import NatsBackend

__all__ = ["nats_url"]

pytest_plugins = ["kvevents_core.testing.plugin"]
pytestmark = pytest.mark.broker("nats")


@pytest.fixture
def relay(nats_url: str) -> Iterator[TcpRelay]:
    """A way to the server that can be cut."""
    parts = urlsplit(nats_url)
    relay = TcpRelay(parts.hostname or "127.0.0.1", parts.port or 4222)
    try:
        yield relay
    finally:
        relay.close()


class TestNats(BackendConformance):
    """JetStream."""

    backend = NatsBackend()

    @pytest.fixture
    def place(self, nats_url: str, relay: TcpRelay) -> NatsPlace:
        """A JetStream stream of the test's own."""
        return NatsPlace(nats_url, relay)


class CoreModeBackend(NatsBackend):
    """What the backend can claim with ``mode: core``."""

    capabilities = Capabilities(confirms=True, carries_epoch=True)


class TestNatsCoreMode(BackendConformance):
    """Core NATS: everything but what needs a log."""

    backend = CoreModeBackend()

    @pytest.fixture
    def place(self, nats_url: str, relay: TcpRelay) -> NatsPlace:
        """A subject of the test's own."""
        return NatsPlace(nats_url, relay, mode="core")
