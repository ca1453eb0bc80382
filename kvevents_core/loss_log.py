"""One line in the log for many losses, and not more often than an operator can read."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvevents_core.naming import StreamId

logger = logging.getLogger("kvevents")

LOG_EVERY_S: Final = 10.0


class LossLog:
    """Tells of what one stream lost. One thread's."""

    def __init__(self, stream: StreamId) -> None:
        self._stream = stream
        self._told = 0
        self._next_at = 0.0

    def look(self, *lost: Mapping[str, int], error: str | None) -> None:
        """Log if ``lost``, counts by reason, grew; ``error`` is what the transport last reported."""
        total = sum([count for each in lost for count in each.values()])
        if total == self._told or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + LOG_EVERY_S
        reasons: dict[str, int] = {}
        for each in lost:
            for reason, count in each.items():
                reasons[reason] = reasons.get(reason, 0) + count
        logger.warning(
            "kvevents: stream %s lost %d batches since the last report (all so far: %s; %s)",
            self._stream,
            total - self._told,
            ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()) if count),
            error or "the transport reports no error",
        )
        self._told = total
