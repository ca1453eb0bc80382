"""A real ``redis-server`` on a free loopback port, for as long as the tests run."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import redis


@contextmanager
def redis_port() -> Iterator[int]:
    """Give the port of a server of our own, or of the one in KVEVENTS_REDIS_URL.

    Without either the test is skipped, or fails where KVEVENTS_REQUIRE_BROKERS=1.
    """
    url = os.environ.get("KVEVENTS_REDIS_URL")
    if url:
        yield urlsplit(url).port or 6379
        return
    binary = shutil.which("redis-server")
    if binary is None:
        reason = "no redis-server on the PATH (Debian: apt-get install redis-server)"
        if os.environ.get("KVEVENTS_REQUIRE_BROKERS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="kvevents-redis-") as folder:
        port = _free_port()
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        server = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)  # noqa: S603
        try:
            _wait_until_ready(port)
            yield port
        finally:
            server.terminate()
            server.wait(10)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 10
    with redis.Redis(port=port) as client:
        while not _answers(client):
            assert time.monotonic() < deadline, "redis-server did not start within 10 s"
            time.sleep(0.01)


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False
