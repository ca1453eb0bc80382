"""The table of endpoint rules: every row of the engines' behaviour, and what we do instead."""

from __future__ import annotations

import pytest

from kvevents_core.errors import ConfigError
from kvevents_zmq import endpoints
from kvevents_zmq.endpoints import Endpoint, parse_endpoint


@pytest.mark.parametrize(
    ("text", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 3, "tcp://*:5560"),
        ("tcp://10.0.0.7:5557", 1, "tcp://10.0.0.7:5558"),
        ("tcp://*:0", 2, "tcp://*:0"),
        ("tcp://*:65534", 1, "tcp://*:65535"),
        ("tcp://inproc-host:5557", 1, "tcp://inproc-host:5558"),
        ("tcp://ipc-host:1", 1, "tcp://ipc-host:2"),
        ("tcp://kv_events.default.svc.cluster.local:5557", 1, None),
        ("tcp://[fd00::1]:5557", 1, "tcp://[fd00::1]:5558"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("tcp://[fe80::1%eth0]:5557", 1, "tcp://[fe80::1%eth0]:5558"),
        ("TCP://h:1", 0, "tcp://h:1"),
        ("ipc:///run/kv", 0, "ipc:///run/kv"),
        ("ipc:///run/kv", 3, "ipc:///run/kv_dp3"),
        ("ipc://@abstract", 1, "ipc://@abstract_dp1"),
        ("ipc:///run/tcp", 1, "ipc:///run/tcp_dp1"),
        ("inproc://x", 0, "inproc://x"),
        ("inproc://x", 2, "inproc://x_dp2"),
        ("inproc://tcp:5", 1, "inproc://tcp:5_dp1"),
    ],
)
def test_each_rank_gets_its_own_address(text: str, rank: int, expected: str | None) -> None:
    """Port or suffix follows the stream rank; rank 0 and port 0 stay as they are."""
    if expected is None:
        expected = text.replace("5557", "5558")
    assert str(parse_endpoint(text).for_rank(rank)) == expected


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("", "no scheme"),
        ("localhost:5557", "no scheme"),
        ("kafka://b:9092", "unknown scheme 'kafka'"),
        ("udp://h:1", "unknown scheme"),
        ("tcps://h:1", "did you mean 'tcp'"),
        ("tcp://", "needs a host"),
        ("tcp://*", "needs a port"),
        ("tcp://host", "needs a port"),
        ("tcp://host:", "needs a port"),
        ("tcp://:5557", "needs a host"),
        ("tcp://host:abc", "not a number"),
        ("tcp://host:-1", "not a number"),
        ("tcp://host:+1", "not a number"),
        ("tcp://host:*", "not a number"),
        ("tcp://host:\u0665", "not a number"),
        ("tcp://host:65536", "above 65535"),
        ("tcp://host:1/path", "not a number"),
        ("tcp://host :1", "space"),
        ("tcp://host:1\n", "space"),
        ("tcp://256.0.0.1:1", "not an IPv4 address"),
        ("tcp://ho*st:1", "not a host name"),
        ("tcp://-host:1", "not a host name"),
        ("tcp://a;b:1", "not a host name"),
        ("tcp://::1:5557", "ambiguous"),
        ("tcp://fd00::1:5557", "tcp://[fd00::1]:5557"),
        ("tcp://fe80::1%eth0:5557", "ambiguous"),
        ("tcp://fd00::1", "ambiguous"),
        ("tcp://a:b:1", "brackets"),
        ("tcp://[::1]", "needs a port"),
        ("tcp://[::1]5557", "needs a port"),
        ("tcp://[::1:5557", "brackets"),
        ("tcp://[host]:5557", "brackets"),
        ("tcp://[1::2::3]:5557", "not an IPv6 address"),
        ("ipc://", "needs a path"),
        ("ipc://*", "no reader can know"),
        ("inproc://", "needs a name"),
    ],
)
def test_a_bad_endpoint_is_refused_with_its_text(text: str, phrase: str) -> None:
    """The error names key and value and says what is wrong."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(text, "replay_endpoint")
    assert caught.value.key == "replay_endpoint"
    assert repr(text) in str(caught.value)
    assert phrase in str(caught.value)


def test_user_information_is_refused_without_repeating_it() -> None:
    """What stands before an @ may be a password."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint("tcp://me:hunter2@host:1")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://:::5557", Endpoint("tcp", "::", 5557)),
        ("tcp://1:2:3:4:5:6:7:8:5557", Endpoint("tcp", "1:2:3:4:5:6:7:8", 5557)),
    ],
)
def test_an_unbracketed_ipv6_host_is_taken_where_it_is_unambiguous(
    text: str, expected: Endpoint
) -> None:
    """It is written with brackets from then on."""
    assert parse_endpoint(text) == expected
    assert str(parse_endpoint(text)).startswith("tcp://[")


@pytest.mark.parametrize(
    ("text", "bind", "expected"),
    [
        ("tcp://*:5557", None, True),
        ("tcp://0.0.0.0:5557", None, True),
        ("tcp://[::]:5557", None, True),
        ("ipc:///x", None, True),
        ("inproc://x", None, True),
        ("tcp://[fd00::1]:5557", None, False),
        ("tcp://10.0.0.1:5557", None, False),
        ("tcp://epp.svc:5557", None, False),
        ("tcp://inproc:5557", None, False),
        ("tcp://10.0.0.1:5557", True, True),
        ("tcp://[fd00::1]:5557", True, True),
        ("ipc:///x", False, False),
    ],
)
def test_the_parsed_host_decides_who_binds_unless_bind_does(
    text: str, bind: bool | None, expected: bool
) -> None:
    """A remote IPv6 host is no wildcard, although :: stands in it."""
    assert endpoints.binds(parse_endpoint(text), bind) is expected


def test_too_many_ranks_for_the_ports_are_refused() -> None:
    """The message gives the arithmetic and the highest base."""
    base = parse_endpoint("tcp://*:65534")
    endpoints.check_ranks(base, 2)
    with pytest.raises(ConfigError, match=r"65537.*at most 65532"):
        endpoints.check_ranks(base, 4)


def test_an_ipc_path_that_grows_too_long_is_refused() -> None:
    """The longest suffix counts, and bytes, not characters."""
    base = parse_endpoint("ipc:///" + "é" * 52)
    endpoints.check_ranks(base, 1)
    with pytest.raises(ConfigError, match="exceeds 107 bytes"):
        endpoints.check_ranks(base, 2)


@pytest.mark.parametrize("replay", [5558, 5559, 5555, 5557])
def test_replay_ports_within_reach_of_event_ports_are_refused(replay: int) -> None:
    """5557 and 5558 are the customary trap: rank 1 publishes where rank 0 replays."""
    events = parse_endpoint("tcp://*:5557")
    with pytest.raises(ConfigError, match="overlap") as caught:
        endpoints.check_apart(events, parse_endpoint(f"tcp://*:{replay}"), 3)
    assert caught.value.key == "replay_endpoint"


@pytest.mark.parametrize(
    ("events", "replay"),
    [
        ("tcp://*:5557", "tcp://*:5560"),
        ("tcp://*:5557", "tcp://*:5554"),
        ("tcp://*:5557", "tcp://*:0"),
        ("tcp://*:0", "tcp://*:0"),
        ("ipc:///a", "ipc:///b"),
        ("tcp://*:5557", "ipc:///b"),
    ],
)
def test_endpoints_that_stay_apart_are_taken(events: str, replay: str) -> None:
    """Port 0 never overlaps; the distance is the number of ranks."""
    endpoints.check_apart(parse_endpoint(events), parse_endpoint(replay), 3)


@pytest.mark.parametrize(("events", "replay"), [("ipc:///a", "ipc:///a_dp2"), ("inproc://a",) * 2])
def test_names_that_meet_at_some_rank_are_refused(events: str, replay: str) -> None:
    """Suffixes are compared over all ranks."""
    with pytest.raises(ConfigError, match="share"):
        endpoints.check_apart(parse_endpoint(events), parse_endpoint(replay), 3)


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("tcp://*:5557", None, "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", None, "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", None, "tcp://[::1]:5557"),
        ("tcp://*:5557", "2a02::1", "tcp://[2a02::1]:5557"),
        ("tcp://*:5557", "[2a02::1]", "tcp://[2a02::1]:5557"),
        ("tcp://*:5557", "fe80::1%eth0", "tcp://[fe80::1%eth0]:5557"),
        ("tcp://*:5557", "worker-3.svc", "tcp://worker-3.svc:5557"),
        ("tcp://127.0.0.1:5557", "worker-3", "tcp://worker-3:5557"),
        ("tcp://localhost:5557", "worker-3", "tcp://worker-3:5557"),
        ("tcp://10.0.0.5:5557", "worker-3", "tcp://10.0.0.5:5557"),
        ("ipc:///x", "worker-3", "ipc:///x"),
    ],
)
def test_a_reader_dials_what_the_publisher_binds(
    bound: str, host: str | None, expected: str
) -> None:
    """Wildcards mean loopback unless the reader has a host; brackets are put where needed."""
    assert str(endpoints.dial(parse_endpoint(bound), host)) == expected


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "", "a b", "a:1", "me@host"])
def test_a_host_that_cannot_be_dialled_is_refused(host: str) -> None:
    """Better than a silent socket."""
    with pytest.raises(ConfigError, match="host"):
        endpoints.dial(parse_endpoint("tcp://*:5557"), host)


@pytest.mark.parametrize(
    ("dialled", "expected"),
    [
        ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::1]:5557", "tcp://[::1]:5557"),
        ("tcp://localhost:5557", "tcp://127.0.0.1:5557"),
        ("tcp://epp.svc:5557", "tcp://*:5557"),
        ("tcp://10.1.2.3:5557", "tcp://*:5557"),
        ("ipc:///x", "ipc:///x"),
    ],
)
def test_a_reader_binds_what_the_publisher_dials(dialled: str, expected: str) -> None:
    """Service names and translated addresses are not the reader's own, so it takes all."""
    assert str(endpoints.listen(parse_endpoint(dialled))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp://*:1", True),
        ("tcp://[::]:1", True),
        ("tcp://[fd00::1]:1", True),
        ("tcp://0.0.0.0:1", False),
        ("tcp://10.0.0.1:1", False),
        ("tcp://host:1", False),
        ("ipc:///a:b", False),
    ],
)
def test_ipv6_is_wanted_for_ipv6_hosts_and_the_wildcard(text: str, expected: bool) -> None:
    """0.0.0.0 asks for IPv4."""
    assert endpoints.wants_ipv6(parse_endpoint(text)) is expected
