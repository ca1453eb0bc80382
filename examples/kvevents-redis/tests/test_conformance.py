"""The Redis backend keeps every promise of the contract that it claims."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kvevents_redis import RedisBackend
from redis_place import RedisPlace
from redis_server import redis_port

from kvevents_core.testing import BackendConformance

pytest_plugins = ["kvevents_core.testing.plugin"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One server for all tests."""
    with redis_port() as port:
        yield port


class TestRedis(BackendConformance):
    """Against a real server."""

    backend = RedisBackend()

    @pytest.fixture
    def place(self, port: int) -> RedisPlace:
        """Streams of the test's own."""
        return RedisPlace(port)
