"""Whose stream it is: the sink's knowledge of other publishers of its stream. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable

from kvevents_core import StreamId
from kvevents_nats.subjects import Place


class Ownership:
    """Judges every record of the stream that the sink meets, in the log or live.

    Args:
        stream: The sink's stream.
        publisher: The sink's own name in its records.
        epoch: Returns the epoch core chose, None before.
    """

    def __init__(self, stream: StreamId, publisher: str, epoch: Callable[[], int | None]) -> None:
        self._stream = stream
        self._publisher = publisher
        self._epoch = epoch
        self.last_epoch: int | None = None
        """The highest epoch of others, met before core chose its own."""
        self.superseded_by: int | None = None

    def meet(self, place: Place) -> bool:
        """Take note of a record at ``place``; True if it changed anything."""
        if place.stream != self._stream or place.publisher == self._publisher:
            return False
        epoch = self._epoch()
        if epoch is None:
            if self.last_epoch is not None and place.epoch <= self.last_epoch:
                return False
            self.last_epoch = place.epoch
            return True
        # Equal epochs: two publishers started in one millisecond, and one of them has to go.
        newer = place.epoch > epoch or (place.epoch == epoch and place.publisher > self._publisher)
        if newer and self.superseded_by is None:
            self.superseded_by = place.epoch
            return True
        return False
