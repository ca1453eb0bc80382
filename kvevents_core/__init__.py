"""KV-cache events as exactly one ordered, numbered stream per data-parallel rank.

The public names. Each is imported when first used, because engines load this package in every
process, also where the plugin is not wanted: importing it costs no pydantic and no client library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvevents_core.backend import (
        CONTRACT_VERSION,
        Backend,
        BackendSettings,
        Capabilities,
        Head,
        History,
        Malformed,
        PeersCounted,
        ReaderOptions,
        Receipt,
        Reconnected,
        Record,
        Sink,
        SinkHost,
        SinkStatus,
        Source,
        Trouble,
    )
    from kvevents_core.errors import ConfigError
    from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
    from kvevents_core.gate import RankGate
    from kvevents_core.hookspecs import hookimpl
    from kvevents_core.mirror import Mirror
    from kvevents_core.naming import StreamId
    from kvevents_core.publisher import EventPublisher, EventPublisherFactory, NullEventPublisher
    from kvevents_core.ranks import Layout, Placement
    from kvevents_core.settings import KVEventsConfig
    from kvevents_core.subscriber import (
        Batch,
        Conflict,
        Gap,
        Restarted,
        Silent,
        Subscription,
        asubscribe,
        subscribe,
    )

_HOME: Final = {
    "backend": (
        "CONTRACT_VERSION Backend BackendSettings Capabilities Head History Malformed PeersCounted"
        " ReaderOptions Receipt Reconnected Record Sink SinkHost SinkStatus Source Trouble"
    ),
    "errors": "ConfigError",
    "events": "AllBlocksCleared BlockRemoved BlockStored KVEventBatch",
    "gate": "RankGate",
    "hookspecs": "hookimpl",
    "mirror": "Mirror",
    "naming": "StreamId",
    "publisher": "EventPublisher EventPublisherFactory NullEventPublisher",
    "ranks": "Layout Placement",
    "settings": "KVEventsConfig",
    "subscriber": "Batch Conflict Gap Restarted Silent Subscription asubscribe subscribe",
}
_MODULE_OF: Final = {name: home for home, names in _HOME.items() for name in names.split()}

__all__ = [  # noqa: RUF022 - grouped as a reader meets them
    "Placement",
    "Layout",
    "RankGate",
    "KVEventsConfig",
    "ConfigError",
    "EventPublisher",
    "NullEventPublisher",
    "EventPublisherFactory",
    "KVEventBatch",
    "BlockStored",
    "BlockRemoved",
    "AllBlocksCleared",
    "StreamId",
    "subscribe",
    "asubscribe",
    "Subscription",
    "Mirror",
    "Batch",
    "Gap",
    "Restarted",
    "Conflict",
    "Silent",
    "Backend",
    "BackendSettings",
    "Sink",
    "SinkHost",
    "SinkStatus",
    "Source",
    "Record",
    "Receipt",
    "History",
    "Head",
    "ReaderOptions",
    "Reconnected",
    "PeersCounted",
    "Malformed",
    "Trouble",
    "Capabilities",
    "CONTRACT_VERSION",
    "hookimpl",
]


def __getattr__(name: str) -> object:
    """Import a public name from its module when it is first asked for."""
    home = _MODULE_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
