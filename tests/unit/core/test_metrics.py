"""The Prometheus exporter: every counter, labelled with its stream, on a port of its own."""

from __future__ import annotations

import urllib.request

import pytest

from kvevents_core.errors import ConfigError, TransportError
from kvevents_core.metrics import serve, split_endpoint
from kvevents_core.naming import StreamId
from kvevents_core.stats import PublisherStats


class Counted:
    """A publisher as far as the exporter can see."""

    def __init__(self, rank: int = 0) -> None:
        self.stream = StreamId("t", "Qwen/Qwen3", "pod-1", rank)

    def stats(self) -> PublisherStats:
        return PublisherStats(
            published_batches=7, lost={"overflow": 3}, queued_bytes=42, connected=True
        )


def test_a_scrape_shows_the_counters_with_the_stream_and_the_reason() -> None:
    """What operators alert on: delivered, lost by reason, queue depth, connection."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    stop = serve(Counted(), f"127.0.0.1:{port}")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    finally:
        stop()
    labels = 'instance="pod-1",model="Qwen/Qwen3",'
    assert "kvevents_published_batches_total{" + labels in text
    assert 'reason="overflow",stream_rank="0",tenant="t"} 3.0' in text
    assert "kvevents_queued_bytes{" in text
    assert "kvevents_connected{" in text


def test_a_port_that_is_taken_is_one_clear_error() -> None:
    """It names the address, the stream and what to do."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match="choose another port") as caught:
            serve(Counted(), f"127.0.0.1:{port}")
    assert caught.value.address == f"127.0.0.1:{port}"


def test_ranks_have_ports_of_their_own() -> None:
    """Port + stream rank; port 0 is left to the system; IPv6 in brackets."""
    assert split_endpoint("0.0.0.0:9464", 3) == ("0.0.0.0", 9467)
    assert split_endpoint("[::1]:9464", 0) == ("::1", 9464)
    assert split_endpoint("127.0.0.1:0", 3) == ("127.0.0.1", 0)


@pytest.mark.parametrize("text", ["9464", ":9464", "host:", "host:ninety", "host:65535"])
def test_a_wrong_endpoint_names_its_key(text: str) -> None:
    """The error says which key and what it should look like."""
    with pytest.raises(ConfigError) as caught:
        split_endpoint(text, 1)
    assert caught.value.key == "metrics_endpoint"
