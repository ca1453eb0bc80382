"""What a sender takes batches from: the engine's outbox, or what a sender process receives of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from kvevents_core.rhythm import Sleeps

if TYPE_CHECKING:
    from kvevents_core.outbox import Waiting


class Backlog(Sleeps, Protocol):
    """The sender's side of ``Outbox``, which says what each method does."""

    @property
    def lost(self) -> Mapping[str, int]:
        """Batches lost here, by reason."""

    def take(self, max_batches: int, max_bytes: int) -> list[Waiting]:
        """Return what waits, oldest first, up to the bounds."""

    def take_tail_loss(self) -> int:
        """Return how many batches were lost after the last one taken, if nothing waits."""

    def has_tail_loss(self) -> bool:
        """Return whether ``take_tail_loss`` has something to tell."""

    def nudge(self) -> None:
        """Wake the sender, or keep it from falling asleep. Any thread."""

    def size(self) -> tuple[int, int]:
        """Return (batches, bytes) waiting; no batch says that none will come, once it is closing."""
