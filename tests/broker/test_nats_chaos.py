"""Any mixture of troubles, at random: every batch arrives once and in order all the same."""

from __future__ import annotations

import gc
import random
import time

import pytest
from broker.cache_and_reader import LONG, Cache, Reading, open_publisher
from broker.nats_server import NatsServer
from broker.nats_streams import configure

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(300)]


class Mischief:
    """Hurts a server in ways that lose nothing it has acknowledged.

    Args:
        server: The server.
        seed: Makes a run repeatable as far as time allows.
    """

    def __init__(self, server: NatsServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self.done: list[str] = []

    def go_on_for(self, seconds: float) -> None:
        """Do one thing after another."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(self._random.uniform(0.0, 1.0))
            what = self._random.choice(["crash", "restart", "freeze", "away", "no_jetstream"])
            self.done.append(what)
            getattr(self, what)()

    def crash(self) -> None:
        self._server.restart(crash=True)

    def restart(self) -> None:
        self._server.restart()

    def freeze(self) -> None:
        self._server.freeze()
        time.sleep(self._random.uniform(0.0, 2.0))
        self._server.thaw()

    def away(self) -> None:
        self._server.kill()
        time.sleep(self._random.uniform(0.0, 1.5))
        self._server.start()

    def no_jetstream(self) -> None:
        self._server.jetstream = False
        self._server.restart(crash=self._random.random() < 0.5)
        time.sleep(self._random.uniform(0.0, 0.7))
        self._server.jetstream = True
        self._server.restart(crash=self._random.random() < 0.5)


@pytest.mark.parametrize("seed", range(5 if LONG else 1))
def test_nothing_is_lost_repeated_or_left_behind(
    nats_server: NatsServer, tenant: str, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens to the server, and in whatever order."""
    config = configure(nats_server.url, tenant, ack_timeout_s=0.7, ping_interval_s=0.5)
    cache = Cache(open_publisher(config), tokens=100)
    mischief = Mischief(nats_server, seed)
    with Reading(config) as reading:
        cache.during(1.0, lambda: mischief.go_on_for(20.0 if LONG else 5.0), per_s=500)
        reading.wait_level_with(cache, 60)
        reading.assert_complete(cache)
    cache.publisher.shutdown()
    assert cache.longest_call_s < 0.25
    # The loop complains here of tasks that were forgotten or failed unheard.
    gc.collect()
    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == [], mischief.done
