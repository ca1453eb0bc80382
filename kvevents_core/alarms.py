"""What an operator should hear although nothing failed. Each is said once, with a code.

``no_events``: requests are served, but no block was ever stored: the engine's cache records nothing,
or its recorder is off (ai-dynamo/dynamo#11984). An idle engine raises no alarm.
``block_size``: events have another block size than the one advertised to readers, whose hashes then
never match (sgl-project/sglang#35298).

Codes stand in the log line, as ``kvevents_code`` on the log record, and in ``PublisherStats.alarms``.
The engine's thread tells facts, the sender's thread raises alarms. Never raises.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kvevents_core.naming import StreamId
    from kvevents_core.outbox import Waiting

logger = logging.getLogger("kvevents")

NO_EVENTS: Final = "no_events"
BLOCK_SIZE: Final = "block_size"
GRACE_S: Final = 60.0
"""How long after the first request the first block may take."""
ENOUGH_REQUESTS: Final = 20
"""Fewer may all have been shorter than one block."""


class Looks(Protocol):
    """What is shown the batches on their way."""

    def look(self, taken: Iterable[Waiting] = ()) -> None:
        """Look at the batches just taken, and at the time. Sender thread."""


class Alarms:
    """The alarms of one publisher.

    Args:
        stream: The stream, for the log.
        clock: Monotonic seconds.
    """

    def __init__(self, stream: StreamId, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._requests = 0
        self._requests_since = 0.0
        self._had_blocks = False
        self._block_size: int | None = None
        self._told: set[str] = set()
        self.raised: tuple[str, ...] = ()
        """Codes of the alarms that hold now."""

    def note_requests(self, count: int) -> None:
        """Note that the engine has served ``count`` requests. The engine's thread."""
        if not self._requests:
            self._requests_since = self._clock()
        self._requests += count

    def expect_block_size(self, block_size: int) -> None:
        """Note the block size that readers were told. Any thread, before events come."""
        self._block_size = block_size

    def look(self, taken: Iterable[Waiting] = ()) -> None:
        """Look at the batches just taken from the outbox, and at the time. Sender thread."""
        if self._had_blocks and self._block_size is None:
            return
        for item in taken:
            with contextlib.suppress(Exception):  # not a batch: the encoder will say so
                for event in item.batch.events:
                    self._see(event)
        if self._had_blocks:
            self._end(NO_EVENTS)
        elif self._requests >= ENOUGH_REQUESTS and self._is_overdue():
            self._raise(
                NO_EVENTS,
                f"{self._requests} requests were served in {GRACE_S:.0f} s or more and the engine "
                "reported no block: check that prefix caching is on and that this model's cache "
                "records events",
            )

    def _is_overdue(self) -> bool:
        return self._clock() - self._requests_since >= GRACE_S

    def _see(self, event: object) -> None:
        if not getattr(event, "block_hashes", None):
            return  # a cache that is cleared when it is made proves nothing
        self._had_blocks = True
        seen = getattr(event, "block_size", 0)
        is_device = getattr(event, "medium", None) in (None, "GPU")
        if self._block_size is None or not seen or not is_device:
            return
        expected, self._block_size = self._block_size, None  # one look is enough
        if seen != expected:
            self._raise(
                BLOCK_SIZE,
                f"readers were told blocks of {expected} tokens, the events have {seen}; take the "
                "block size from the events",
            )

    def _raise(self, code: str, text: str) -> None:
        if code not in self.raised:
            self.raised = (*self.raised, code)
        if code not in self._told:
            self._told.add(code)
            logger.warning(
                "kvevents: [%s] stream %s: %s",
                code,
                self._stream,
                text,
                extra={"kvevents_code": code},
            )

    def _end(self, code: str) -> None:
        if code in self.raised:
            self.raised = tuple(each for each in self.raised if each != code)
