"""A reader beside a driver: follow one stream until its mirror is what the cache says it holds."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from waiting import wait_until

from kvevents_core import Batch, Mirror, StreamId, subscribe
from kvevents_core.wire import normalise_hash


def free_ports(count: int) -> int:
    """Return the first of ``count`` neighbouring free TCP ports on loopback.

    They lie below those that the system gives to programs that ask for any port.
    """
    while True:
        base = random.randrange(20_000, 32_000)
        try:
            for port in range(base, base + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return base


class Reader:
    """A subscription, what came of it, and the mirror it makes."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription
        self.mirror = Mirror()
        self.items: list[Any] = []

    def read(self, timeout_s: float = 0.1) -> None:
        for item in self._subscription.receive(timeout_s):
            self.items.append(item)
            self.mirror.apply(item)

    @property
    def batches(self) -> list[Batch]:
        return [item for item in self.items if isinstance(item, Batch)]

    def event_types(self) -> Counter[str]:
        """Return how often each type of event came."""
        return Counter(type(event).__name__ for batch in self.batches for event in batch.events)

    def stream_ranks(self) -> set[int]:
        return {batch.stream.rank for batch in self.batches}

    def until_equal(self, stream_rank: int, content: list[int], timeout_s: float = 15.0) -> None:
        """Read until the mirror of ``stream_rank`` holds exactly ``content``."""
        wanted = frozenset(normalise_hash(each) for each in content)

        def is_equal() -> bool:
            self.read()
            return any(
                stream.rank == stream_rank and self.mirror.blocks(stream) == wanted
                for stream in self.mirror.streams()
            )

        wait_until(is_equal, timeout_s, f"stream {stream_rank} to hold {len(wanted)} blocks")

    def stream(self, stream_rank: int) -> StreamId:
        return next(s for s in self.mirror.streams() if s.rank == stream_rank)


@contextmanager
def reading(config: dict[str, Any], **options: Any) -> Iterator[Reader]:
    """Subscribe with the publisher's own configuration."""
    with subscribe(config, **options) as subscription:
        yield Reader(subscription)
