"""The client's thread is woken once for a group of records, and never forgotten."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator

import pytest

from kvevents_kafka.client import _Loop


@pytest.fixture
def loop() -> Iterator[_Loop]:
    """An event loop whose thread is not running."""
    made = _Loop()
    drain(made)
    yield made
    made.close()


def drain(loop: _Loop) -> int:
    """Return how many times the loop was woken since the last call."""
    woken = 0
    while select.select([loop._wakeup_r], [], [], 0)[0]:
        woken += len(loop._wakeup_r.recv(1024))
    return woken


def test_a_group_wakes_once_at_its_end(loop: _Loop) -> None:
    """Each record that opens a batch asks for it; the lock is let go of once."""
    with loop.one_wakeup():
        for _ in range(5):
            loop.wakeup()
        assert drain(loop) == 0
    assert drain(loop) == 1
    with loop.one_wakeup():
        pass
    assert drain(loop) == 0


def test_what_was_owed_is_done_when_the_group_fails(loop: _Loop) -> None:
    """A refused record does not leave the accepted ones before it waiting."""
    with pytest.raises(ValueError, match="refused"), loop.one_wakeup():
        loop.wakeup()
        raise ValueError("refused")
    assert drain(loop) == 1
    loop.wakeup()
    assert drain(loop) == 1


def test_another_thread_wakes_at_once(loop: _Loop) -> None:
    """Only the thread that sends the group puts off; nobody else's call can be lost."""
    with loop.one_wakeup():
        other = threading.Thread(target=loop.wakeup)
        other.start()
        other.join()
        assert drain(loop) == 1
    assert drain(loop) == 0
