"""What the next record of one stream means: next, duplicate, gap, restart, stale or conflict.

Pure: no clock, no I/O. One ``StreamSequence`` per stream, never per topic or socket, since one
socket may carry several ranks.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final

_REMEMBERED: Final = 2048
"""Fingerprints kept, to tell a duplicate from another publisher's batch of the same number."""


class Verdict(Enum):
    """What a record is to the stream so far."""

    NEXT = "next"
    GAP = "gap"
    """Numbers between ``next_seq`` and this one are missing."""
    DUPLICATE = "duplicate"
    RESTARTED = "restarted"
    """It belongs to a new life of the stream."""
    STALE = "stale"
    """Its epoch is lower than one already seen: a publisher that lost the stream."""
    CONFLICT = "conflict"
    """The same number with other bytes, while several publishers are connected."""
    UNCLEAR = "unclear"
    """A number already used, with other bytes: only the publisher's epoch can tell."""


class StreamSequence:
    """Where one stream stands.

    Args:
        ordered_epochs: The transport's records carry epochs, so the higher one owns the stream.
        next_seq: First number expected; None takes any number as the start.
    """

    def __init__(self, *, ordered_epochs: bool, next_seq: int | None = 0) -> None:
        self._ordered_epochs = ordered_epochs
        self.epoch: int | None = None
        self.next_seq = next_seq
        self.reconnected = False
        """The connection was made anew since the last record that did not follow on."""
        self._fingerprints: OrderedDict[int, object] = OrderedDict()

    def judge(self, epoch: int | None, seq: int, fingerprint: object) -> Verdict:
        """Return what a record is; changes nothing."""
        if epoch is not None and self.epoch is not None and epoch != self.epoch:
            if self._ordered_epochs and epoch < self.epoch:
                return Verdict.STALE
            return Verdict.RESTARTED
        if self.next_seq is None or seq == self.next_seq:
            return Verdict.NEXT
        if seq > self.next_seq:
            return Verdict.GAP
        if self._fingerprints.get(seq) == fingerprint:
            return Verdict.DUPLICATE
        if epoch is not None:  # the same life for certain
            return Verdict.CONFLICT if seq in self._fingerprints else Verdict.DUPLICATE
        return Verdict.UNCLEAR

    def accept(self, epoch: int | None, seq: int, fingerprint: object) -> None:
        """Take a record as the newest of the stream."""
        if epoch is not None:
            self.epoch = epoch
        self.next_seq = seq + 1
        self._fingerprints[seq] = fingerprint
        if len(self._fingerprints) > _REMEMBERED:
            self._fingerprints.popitem(last=False)

    def mark_of(self, seq: int) -> object | None:
        """Return the fingerprint of the record taken under ``seq``, if it is remembered."""
        return self._fingerprints.get(seq)

    def restart(self, epoch: int | None) -> None:
        """Begin a new life, whose first number is 0."""
        self.epoch = epoch
        self.next_seq = 0
        self.reconnected = False
        self._fingerprints.clear()
