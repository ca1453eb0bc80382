"""The contender that does nothing but send: what everything after a publisher can take.

Messages are encoded before the clock starts and go into libzmq from one loop. No publisher can be
faster with the same reader on the same machine, so a target beyond this is beyond the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from bench.contenders import OURS, batch_maker, free_port
from bench.measure import Found, Line, interleave, spread
from kvevents_zmq.held_send import SendMessage, message_sender

READY: str = "ready-made"
Messages = Sequence[tuple[bytes, bytes]]
AT_LIMIT = 0.9
"""Share of the limit from which on a publisher is at it: figures are good to some 10 %."""


class ReadyMade:
    """A PUB socket and what it sends, encoded before."""

    def __init__(self) -> None:
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        self._socket.sndhwm = 0
        self._socket.bind(self.endpoint)
        self._send = message_sender(self._socket, b"")
        self._encode = msgspec.msgpack.Encoder().encode

    def publish(self, batch: Any) -> None:
        """Send one batch."""
        self._send(bytes(8), self._encode(batch))

    def send_all(self, messages: Messages) -> None:
        """Send as fast as a loop can."""
        _send_all(self._send, messages)


def ready_messages(shape: str, count: int) -> Messages:
    """Return seq and payload of ``count`` batches."""
    make, encode = batch_maker(OURS, shape), msgspec.msgpack.Encoder().encode
    return [(n.to_bytes(8, "big"), encode(make(time.time()))) for n in range(count)]


def replay_all(shape: str, count: int) -> tuple[str, Any]:
    """Return the address of a ROUTER, and what answers one request there with ``count`` batches."""
    address = f"tcp://127.0.0.1:{free_port()}"
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.sndhwm = 0
    router.bind(address)
    messages = ready_messages(shape, count)

    def answer() -> None:
        identity = router.recv_multipart()[0]
        _send_all(message_sender(router, identity, b"", b""), [*messages, (b"\xff" * 8, b"")])

    return address, answer


def _send_all(send: SendMessage, messages: Messages) -> None:
    for seq, payload in messages:
        send(seq, payload)


def limit_line(
    line: Line, found: Found, limit: Found, key: str, *, unit: str, is_rate: bool
) -> Line:
    """Return the line of the limit itself, and note in ``line`` whether ours stands at it.

    ``line`` compares ``key``, a rate or a time, with the engines'.
    """
    limits = limit.values(READY, key)
    reached = statistics.median(found.values(OURS, key)) / statistics.median(limits)
    line.at_limit = (reached if is_rate else 1 / reached) >= AT_LIMIT
    ratios = [statistics.median(limits) / found.median(name, key) for name in found.others()]
    return Line(
        f"{line.what}, of a sender that finds all ready",
        spread(limits, unit),
        ratio=" / ".join(f"{ratio:.3g}" for ratio in ratios),
    )


def limit_of(row: str, rounds: int, **settings: Any) -> Found:
    """Run the ready-made contender of a row."""
    return interleave(row, rounds, [READY], **settings)
