"""How the NATS broker tests configure, administer and name what they use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
from senders import chosen_sender

from kvevents_core import KVEventsConfig, StreamId

T = TypeVar("T")


def configure(url: str, tenant: str, **more: Any) -> KVEventsConfig:
    """Return a configuration of one instance on ``url`` that no environment disturbs, but for the sender."""
    mapping = {
        "publisher": "nats",
        "servers": url,
        "tenant": tenant,
        "model": "org/model",
        "instance": "i0",
        "ack_timeout_s": 2.0,
        "reconnect_wait_s": 0.3,
        **more,
    }
    return KVEventsConfig.from_mapping(mapping, environ=chosen_sender())


def administer(url: str, work: Callable[[Any], Awaitable[T]], **options: Any) -> T:
    """Run ``work(client)`` with a plain client."""

    async def run() -> T:
        client = await nats.connect(url, **options)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def stream_of(tenant: str, rank: int = 0) -> StreamId:
    """Return the stream that ``configure`` names."""
    return StreamId(tenant, "org/model", "i0", rank)
