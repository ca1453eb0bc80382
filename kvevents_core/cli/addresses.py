"""Where each stream of a configuration is found, for people. Opens nothing."""

from __future__ import annotations

from kvevents_core import KVEventsConfig, StreamId


def stream_addresses(config: KVEventsConfig, stream_ranks: int) -> dict[int, str]:
    """Return the address of every stream rank that has one: an endpoint, a topic, a subject.

    Raises:
        ConfigError: Some rank cannot have an address.
    """
    settings = config.backend_settings
    if settings is None:
        return {}
    settings.check_ranks(stream_ranks)
    found = {}
    for rank in range(stream_ranks):
        stream = StreamId(config.tenant, config.model, config.instance, rank)
        address = settings.address_of(stream)
        if address is not None:
            found[rank] = address
    return found
