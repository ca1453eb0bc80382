"""The conformance kit: the promises of ``docs/reference/contract.md`` as tests any backend adopts.

    pytest_plugins = ["kvevents_core.testing.plugin"]

    class TestRedis(BackendConformance):
        backend = RedisBackend()

        @pytest.fixture
        def place(self, redis_url):
            yield RedisPlace(redis_url)

Needs pytest and hypothesis, which are no dependencies of kvevents; nothing outside this package
imports it.
"""

from __future__ import annotations

import pytest

# Before the imports below, so that a broken promise is reported with its values.
for _name in ("closing", "confirmation", "delivery", "opening", "outage", "ownership", "process"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")
pytest.register_assert_rewrite(f"{__name__}.reading", f"{__name__}.rig")

from kvevents_core.testing.conformance import BackendConformance  # noqa: E402
from kvevents_core.testing.driver import SinkDriver  # noqa: E402
from kvevents_core.testing.place import Observed, Observer, Peer, Place  # noqa: E402
from kvevents_core.testing.relay import TcpRelay  # noqa: E402
from kvevents_core.testing.rig import Rig, Watch  # noqa: E402

__all__ = [
    "BackendConformance",
    "Observed",
    "Observer",
    "Peer",
    "Place",
    "Rig",
    "SinkDriver",
    "TcpRelay",
    "Watch",
]
