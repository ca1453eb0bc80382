"""``RankGate``: one boolean decides publisher, recording and metrics, so that they cannot drift.

When the same rule stood in three places, each forgot another parallel dimension: replicas published
one rank twice, or recorded events that nobody drained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvevents_core.publisher import EventPublisher, NullEventPublisher
    from kvevents_core.ranks import Placement
    from kvevents_core.settings import KVEventsConfig


@dataclass(frozen=True, slots=True)
class RankGate:
    """The decision for one process. Made by ``resolve``."""

    config: KVEventsConfig
    placement: Placement
    enabled: bool
    """This process publishes, records cache events and collects event metrics; all or none."""

    @classmethod
    def resolve(cls, config: KVEventsConfig, placement: Placement) -> RankGate:
        """Decide for the process at ``placement``; opens and imports nothing.

        Raises:
            ConfigError: Some rank of this layout cannot have an address; the same error on every
                rank, whether it publishes or not.
        """
        if config.enabled and config.backend_settings is not None:
            config.backend_settings.check_ranks(placement.stream_ranks)
        return cls(config, placement, config.enabled and placement.is_publisher)

    @property
    def publishes(self) -> bool:
        """Whether to build a publisher: ``enabled``."""
        return self.enabled

    @property
    def records_events(self) -> bool:
        """Whether the cache records events: ``enabled``."""
        return self.enabled

    @property
    def collects_metrics(self) -> bool:
        """Whether event metrics are collected: ``enabled``."""
        return self.enabled

    def create_publisher(self) -> EventPublisher | NullEventPublisher:
        """Return this process's publisher: a silent one where the gate is closed.

        Raises:
            TransportError: The stream's local address cannot be had (ZMQ bind).
        """
        from kvevents_core.publisher import EventPublisher, NullEventPublisher

        if not self.enabled:
            return NullEventPublisher()
        return EventPublisher(self.config, self.placement.stream_rank)
