"""Asks publishers for history on behalf of one subscription, with deadlines and pauses.

A replay socket that does not answer must not hold up live traffic: after one failed answer its
channel is left alone for a while. Used by the reader's thread; hands out nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvevents_core.backend import Head, Record, Source
    from kvevents_core.naming import StreamId

ASK_TIMEOUT_S: Final = 2.0
"""Longest wait for one answer of a publisher's replay socket."""
COOLDOWN_S: Final = 5.0
"""After a failed answer a channel is not asked again for so long."""


class Recovery:
    """Access to the history of a source.

    Args:
        source: Whom to ask.
        is_possible: Whether the transport has history and the reader wants it.
        clock: Monotonic seconds.
    """

    def __init__(self, source: Source, clock: Callable[[], float], *, is_possible: bool) -> None:
        self._source = source
        self._clock = clock
        self.is_possible = is_possible
        self._not_before: dict[int, float] = {}

    def try_again(self, channel: int) -> None:
        """End the pause of ``channel``: there is a publisher again."""
        self._not_before.pop(channel, None)

    def head(self, channel: int) -> Head | None:
        """Return where the publisher behind ``channel`` stands; None if it does not say."""
        if self._rests(channel):
            return None
        begin = self._clock()
        head = self._source.head(channel, ASK_TIMEOUT_S)
        # A stock engine says at once that it does not know the question.
        if head is None and self._clock() - begin > ASK_TIMEOUT_S / 2:
            self._rest(channel)
        return head

    def epoch(self, channel: int) -> int | None:
        """Return the epoch of the publisher behind ``channel``; None if it does not say."""
        head = self.head(channel)
        return None if head is None else head.epoch

    def portion(self, channel: int, stream: StreamId, first_seq: int) -> Sequence[Record] | None:
        """Return the next records from ``first_seq`` on, empty if there are none; None: no answer."""
        if self._rests(channel):
            return None
        portion = self._source.recover(channel, stream, first_seq, ASK_TIMEOUT_S)
        if portion is None:
            self._rest(channel)
        return portion

    def _rests(self, channel: int) -> bool:
        return not self.is_possible or self._clock() < self._not_before.get(channel, 0.0)

    def _rest(self, channel: int) -> None:
        self._not_before[channel] = self._clock() + COOLDOWN_S
