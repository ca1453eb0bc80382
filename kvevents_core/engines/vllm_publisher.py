"""Our publisher as vLLM holds it, and the factory that makes it.

Imported only where the flag asks for one of our publishers. ``create`` is wrapped rather than a
name registered: vLLM passes ``dataclasses.asdict`` of its configuration to a registered publisher
(0.33, ``distributed/kv_events.py``), and that holds none of our keys.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvevents_core.engines import flag, vllm_config, zmq_document

if TYPE_CHECKING:
    from kvevents_core.publisher import EventPublisher, NullEventPublisher

logger = logging.getLogger("vllm.kvevents")


@lru_cache(maxsize=1)
def wrap_factory() -> None:
    """Let vLLM's ``EventPublisherFactory.create`` make our publishers; once per process."""
    from vllm.distributed.kv_events import EventPublisherFactory

    original = EventPublisherFactory.create.__func__

    def create(cls: Any, config: Any, data_parallel_rank: int = 0) -> Any:
        """Create the publisher of one EngineCore, which is one data-parallel rank."""
        if config is None or not vllm_config.is_ours(config):
            return original(cls, config, data_parallel_rank)
        return adapt(_create(config, data_parallel_rank), config)

    EventPublisherFactory.create = classmethod(create)


def _create(config: Any, data_parallel_rank: int) -> EventPublisher | NullEventPublisher:
    from kvevents_core.publisher import EventPublisherFactory

    settings = vllm_config.settings_of(config)
    publisher = EventPublisherFactory.create(settings, data_parallel_rank)
    logger.info("kvevents: %s", flag.describe(publisher))
    return publisher


def adapt(publisher: EventPublisher | NullEventPublisher, config: Any) -> Any:
    """Return ``publisher`` as an instance of vLLM's own ``EventPublisher``."""
    return _publisher_class()(publisher, config)


@lru_cache(maxsize=1)
def _publisher_class() -> Any:
    from vllm.distributed import kv_events

    class KVEventsPublisher(kv_events.EventPublisher):  # type: ignore[misc]
        """vLLM's side of one of our publishers (vLLM 0.33, ``distributed/kv_events.py``)."""

        def __init__(self, publisher: EventPublisher | NullEventPublisher, config: Any) -> None:
            super().__init__(publisher.stream.rank if publisher.stream else 0)
            self.kvevents = publisher
            self._config = config
            self.__dict__["publish"] = publisher.publish  # a call fewer on the scheduler's thread

        def publish(self, events: Any) -> None:
            """Append ``events`` and return. The scheduler's thread."""
            self.kvevents.publish(events)

        def shutdown(self) -> None:
            """Send what can be sent in time and stop."""
            self.kvevents.shutdown()

        def get_publisher_config(self) -> Any:
            """Return where this rank's ZMQ socket is bound; None on other transports.

            vLLM sends it to the API server, which serves it at ``/kv_event_sources``.
            """
            bound = zmq_document.bound_socket(self.kvevents)
            return None if bound is None else _with_socket(self._config, bound)

    return KVEventsPublisher


def _with_socket(config: Any, bound: dict[str, Any]) -> Any:
    """Return a copy of vLLM's ``config`` with its fields only, and the real endpoints."""
    fields = {name: vars(config)[name] for name in type(config).__dataclass_fields__}
    copy = object.__new__(type(config))
    vars(copy).update(fields | bound)
    return copy
