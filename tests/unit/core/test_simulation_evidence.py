"""What the operating system says a process holds, against what the test knows it holds."""

import socket
import sys
import threading

import pytest

from kvevents_core.simulation import evidence

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there is no /proc elsewhere"
)


@pytest.mark.parametrize(
    ("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_listening_socket_is_found_with_its_address(family, host):
    """Host and port as people write them, for both families; only while it listens."""
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    before = evidence.socket_inodes()
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        written = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        assert written in evidence.listening_addresses()
        assert len(evidence.socket_inodes() - before) == 1
    assert written not in evidence.listening_addresses()


def test_a_connected_socket_counts_as_a_socket_but_not_as_an_address():
    """A process that only dials listens nowhere."""
    before = evidence.listening_addresses()
    left, right = socket.socketpair()
    with left, right:
        assert len(evidence.socket_inodes()) >= 2
        assert evidence.listening_addresses() == before


def test_threads_are_counted_by_the_system():
    """A started thread counts until it has ended."""
    end = threading.Event()
    before = evidence.count_threads()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert evidence.count_threads() == before + 1
    end.set()
    thread.join()


def test_where_there_is_no_proc_the_answers_are_none(monkeypatch):
    """Not knowing is told apart from holding nothing."""

    def refuse(_path):
        raise FileNotFoundError

    monkeypatch.setattr("pathlib.Path.iterdir", refuse)
    assert evidence.count_threads() is None
    assert evidence.socket_inodes() is None
    assert evidence.listening_addresses() is None
