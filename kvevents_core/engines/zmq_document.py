"""What engines tell their ZMQ readers about a publisher of ours, or nothing.

Both engines' discovery documents know ZMQ sockets only (SGLang 0.5.23 ``/server_info``, vLLM 0.33
``/kv_event_sources``). So a publisher on another transport, or one that dials its reader, is left
out of them: better no address than one where nobody listens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvevents_core.publisher import EventPublisher, NullEventPublisher
    from kvevents_core.settings import KVEventsConfig


def configured_socket(config: KVEventsConfig) -> dict[str, Any] | None:
    """Return the ZMQ keys of ``config`` if its publisher binds a ZMQ socket, else None."""
    settings = config.backend_settings
    if config.publisher != "zmq" or not getattr(settings, "publisher_binds", False):
        return None
    keys = ("endpoint", "bind", "replay_endpoint", "topic")
    return {key: getattr(settings, key) for key in keys}


def bound_socket(publisher: EventPublisher | NullEventPublisher) -> dict[str, Any] | None:
    """Return ``endpoint``, ``replay_endpoint`` (or None) and ``topic`` as they are bound, or None."""
    facts = publisher.describe()
    if facts.get("publisher") != "zmq" or not facts.get("bind"):
        return None
    return {key: facts.get(key) for key in ("endpoint", "replay_endpoint", "topic")}


def local(endpoint: str | None) -> str | None:
    """Return ``endpoint`` as a process on this node dials it; None if none can."""
    if endpoint is None or endpoint.startswith("inproc://"):
        return None
    for wildcard, loopback in (("*", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):  # noqa: S104
        if endpoint.startswith(f"tcp://{wildcard}:"):
            return endpoint.replace(wildcard, loopback, 1)
    return endpoint
