"""Our publisher as SGLang holds it, and what SGLang's processes know about themselves.

Imported only when the flag asks for one of our publishers.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvevents_core.engines import flag, zmq_document
from kvevents_core.errors import LayoutError
from kvevents_core.ranks import Placement

if TYPE_CHECKING:
    from kvevents_core.publisher import EventPublisher, NullEventPublisher
    from kvevents_core.settings import KVEventsConfig

logger = logging.getLogger(__name__)


def adapt(publisher: EventPublisher | NullEventPublisher) -> Any:
    """Return ``publisher`` as an instance of SGLang's own ``EventPublisher``."""
    return _publisher_class()(publisher)


@lru_cache(maxsize=1)
def _publisher_class() -> Any:
    from sglang.srt.disaggregation import kv_events

    class KVEventsPublisher(kv_events.EventPublisher):  # type: ignore[misc]
        """SGLang's side of one of our publishers (SGLang 0.5.23, ``kv_events.py``)."""

        def __init__(self, publisher: EventPublisher | NullEventPublisher) -> None:
            self.kvevents = publisher
            self.__dict__["publish"] = publisher.publish  # a call fewer on the scheduler's thread

        def publish(self, events: Any) -> None:
            """Append ``events`` and return. The scheduler's thread."""
            self.kvevents.publish(events)

        def shutdown(self) -> None:
            """Send what can be sent in time and stop."""
            self.kvevents.shutdown()

        def describe_local_source(self, block_size: int) -> dict[str, Any] | None:
            """Return the bound ZMQ socket for a process on this node, else None."""
            self.kvevents.expect_block_size(block_size)
            return local_source(self.kvevents, block_size)

    return KVEventsPublisher


def local_source(
    publisher: EventPublisher | NullEventPublisher, block_size: int
) -> dict[str, Any] | None:
    """Return SGLang's description of a locally bound source, or None if there is none."""
    bound = zmq_document.bound_socket(publisher)
    endpoint = zmq_document.local(bound["endpoint"]) if bound else None
    if bound is None or endpoint is None or publisher.stream is None:
        return None
    source = {
        "dp_rank": publisher.stream.rank,
        "endpoint": endpoint,
        "topic": bound["topic"],
        "block_size": block_size,
    }
    replay_endpoint = zmq_document.local(bound["replay_endpoint"])
    return source if replay_endpoint is None else {**source, "replay_endpoint": replay_endpoint}


def engine_keys(config: KVEventsConfig) -> dict[str, Any]:
    """Return what SGLang's own ``KVEventsConfig`` is to say about ``config``.

    Only keys that SGLang acts on: the format of its hashes, and where a ZMQ socket is.
    """
    socket = zmq_document.configured_socket(config) or {}
    return {"publisher": config.publisher, "format": config.format, **socket}


def stream_names(config: KVEventsConfig) -> dict[str, str]:
    """Return SGLang's own names for the parts of the stream's name that nobody gave.

    ``model`` is the name the server answers to. ``instance`` gets the server's port, which is the
    same in all its processes and tells apart two servers of one host. Empty outside a configured
    SGLang process.
    """
    try:
        from sglang.srt.runtime_context import get_parallel, get_serving

        serving, nodes = get_serving(), get_parallel().nnodes
        names = {
            "model": str(serving.served_model_name or ""),
            "instance": f"{config.instance}-{serving.port}",
        }
    except Exception as error:
        logger.debug("kvevents: SGLang has no names for this process: %s", error)
        return {}
    if nodes > 1:
        flag.warn_if_unnamed(config, logger)
    return {key: name for key, name in names.items() if name and config.origin_of(key) is None}


def _placement() -> Placement | None:
    """Return where this process sits; None before SGLang has told it (main process, tests)."""
    try:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        return Placement(
            tp_rank=parallel.tp_rank,
            tp_size=parallel.tp_size,
            pp_rank=parallel.pp_rank,
            pp_size=parallel.pp_size,
            attn_cp_size=parallel.attn_cp_size,
            attn_dp_size=parallel.attn_dp_size,
            dp_rank=parallel.dp_rank,
            dp_size=parallel.dp_size,
        )
    except LayoutError as error:
        logger.error("kvevents: SGLang's ranks contradict each other: %s", error)  # noqa: TRY400
    except Exception as error:
        logger.debug("kvevents: no ranks in this process yet: %s", error)
    return None


def compare_gates(text: str) -> bool:
    """Return whether SGLang's gate agrees with ours here; say loudly, once, if it does not.

    SGLang's decides, since it also switches the recorder on.
    """
    place = _placement()
    if place is None:
        return True
    from sglang.srt.disaggregation import kv_events

    gate = getattr(kv_events, "is_kv_publisher_rank", None)
    theirs = place.is_publisher if gate is None else bool(gate(text))
    if theirs == place.is_publisher:
        return True
    _say_once(
        f"SGLang says that this process {'publishes' if theirs else 'is silent'}, our rule says: "
        f"{place.explain()} ({place}). SGLang's gate is followed; expect a stream published twice "
        "or not at all, and report this"
    )
    return False


def compare_stream_rank(stream_rank: int) -> bool:
    """Return whether SGLang passes the stream rank that our rule gives; say once if it does not."""
    place = _placement()
    if place is None or place.stream_rank == stream_rank:
        return True
    _say_once(
        f"SGLang publishes this process as stream {stream_rank}, our rule says "
        f"{place.stream_rank} ({place}). SGLang's number is followed; expect two streams of one "
        "rank, and report this"
    )
    return False


@lru_cache(maxsize=8)
def _say_once(message: str) -> None:
    logger.error("kvevents: %s", message)
