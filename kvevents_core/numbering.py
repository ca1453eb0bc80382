"""Batches become numbered records here: encoding, splitting, holes, the opening and the heartbeat.

A number is spent on every batch *sent or lost*, at the place where it was lost, so that a reader
sees each loss as a gap. Sender thread only. Does no I/O.
"""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from kvevents_core import stats
from kvevents_core.backend import Record
from kvevents_core.errors import EncodeError
from kvevents_core.outbox import count_events
from kvevents_core.surviving import keep_what_survives

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvevents_core.in_flight import InFlight
    from kvevents_core.naming import StreamId
    from kvevents_core.outbox import Waiting
    from kvevents_core.replay import ReplayRing
    from kvevents_core.wire import BatchEncoder

logger = logging.getLogger("kvevents")

_new: Final = tuple.__new__
SHOW_AGAIN_S: Final = 1.0
"""Pause between empty batches that show a hole, should the transport refuse those too."""


class Numbering:
    """Gives each batch of one stream its number and puts it into the window and the ring.

    Args:
        stream: The stream.
        encoder: Turns batches into payloads, with the stream rank.
        in_flight: Where records wait for the sink.
        ring: The replay ring, or None if the sink serves no history.
        counters: Where losses are counted.
    """

    def __init__(
        self,
        stream: StreamId,
        encoder: BatchEncoder,
        *,
        in_flight: InFlight,
        ring: ReplayRing | None,
        counters: stats.SenderCounters,
    ) -> None:
        self._stream = stream
        self._encoder = encoder
        self._in_flight = in_flight
        self._ring = ring
        self._counters = counters
        self.epoch: int | None = None
        """None until ``open``; nothing is numbered before."""
        self.next_seq = 0
        self.last_record_at = time.monotonic()
        self._last_record_seq = -1
        self._highest_hole = -1
        self._show_hole_at = 0.0
        self._made: list[Record] = []
        self._made_events: list[int] = []

    def open(self, epoch: int) -> None:
        """Fix the epoch and number its first batch: one ``AllBlocksCleared``, seq 0."""
        self.epoch = epoch
        self._number(self._encoder.opening(time.time()), 1)
        self._hand_over()

    def add(self, items: Iterable[Waiting], max_message_bytes: int | None) -> None:
        """Number ``items``, and the losses before them; all reach the window and the ring at once."""
        limit = sys.maxsize if max_message_bytes is None else max_message_bytes
        encode = self._encoder.encode
        try:
            for item in items:
                if item.lost_before:
                    self.skip(item.lost_before)
                batch: Any = item.batch
                try:
                    try:
                        payload = encode(batch)
                    except EncodeError:
                        payload = None
                    if payload is not None and len(payload) <= limit:
                        self._number(payload, count_events(batch))
                    else:
                        keep_what_survives(
                            self._encoder, batch, limit, keep=self._number, lose=self._lose
                        )
                except Exception as error:  # it costs itself, not the batches behind it
                    self._give_up(item, error)
        finally:
            self._hand_over()

    def skip(self, batches: int) -> None:
        """Leave a hole of ``batches`` numbers; they are counted where they were lost."""
        if batches > 0:
            self.next_seq += batches
            self._highest_hole = self.next_seq - 1

    def _give_up(self, item: Waiting, error: Exception) -> None:
        """Leave a hole for ``item``, on which the encoder broke."""
        self._counters.sender_errors += 1
        if self._counters.sender_errors <= 10:
            logger.error("kvevents: a batch of %s is lost by", self._stream, exc_info=error)
        self._lose(stats.ENCODE, count_events(item.batch))

    def note_rejected(self, seq: int) -> None:
        """Note that the transport refused record ``seq``: a hole, and readers must see it."""
        self._highest_hole = max(self._highest_hole, seq)
        if seq == self._last_record_seq:
            self._last_record_seq = seq - 1

    def has_hidden_hole(self) -> bool:
        """Return whether a hole is the last thing in the stream, where no reader can see it."""
        return self._highest_hole > self._last_record_seq

    def show_hidden_hole(self) -> None:
        """Number an empty batch behind a hidden hole."""
        now = time.monotonic()
        if self.has_hidden_hole() and now >= self._show_hole_at:
            self._show_hole_at = now + SHOW_AGAIN_S
            self.beat()

    def beat(self) -> None:
        """Number an empty batch."""
        self._number(self._encoder.heartbeat(time.time()), 0)
        self._hand_over()

    def _lose(self, reason: str, events: int) -> None:
        self._counters.lose(reason, 1, events)
        self.skip(1)

    def _number(self, payload: bytes, events: int) -> None:
        # By position and without Record's own constructor: this runs once per batch.
        self._made.append(_new(Record, (self._stream, self.epoch, self.next_seq, payload, 0)))
        self._made_events.append(events)
        self._last_record_seq = self.next_seq
        self.next_seq += 1

    def _hand_over(self) -> None:
        """Put what was made into the ring and the window."""
        if not self._made:
            return
        self.last_record_at = time.monotonic()
        if self._ring is not None:
            self._ring.extend(self._made)
        self._in_flight.extend(self._made, self._made_events)
        self._made, self._made_events = [], []
