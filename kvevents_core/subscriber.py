"""What a reader holds: ``subscribe`` for threads, ``asubscribe`` for asyncio.

Both take the publisher's own configuration and yield ``Batch``, ``Gap``, ``Restarted``, ``Conflict``
and ``Silent`` per stream and in order.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from kvevents_core.backend import ReaderOptions
from kvevents_core.errors import ClosedError, ConfigError
from kvevents_core.items import Batch, Conflict, Gap, Item, Restarted, Silent
from kvevents_core.naming import StreamId, parse_stream_id
from kvevents_core.settings import KVEventsConfig
from kvevents_core.stats import ReaderStats
from kvevents_core.stream_reader import StreamReader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from kvevents_core.backend import Backend, BackendSettings

__all__ = [
    "AsyncSubscription",
    "Batch",
    "Conflict",
    "Gap",
    "Item",
    "Restarted",
    "Silent",
    "Subscription",
    "asubscribe",
    "subscribe",
]

_POLL_S: Final = 0.25
"""Longest single wait of an iteration, so that silence and closing are noticed."""


class Subscription:
    """An open reading end. Iterate over it, or call ``receive``. One thread at a time.

    Made by ``subscribe``. It is a context manager; leaving it closes the source.
    """

    def __init__(
        self, config: KVEventsConfig, reader: ReaderOptions, *, recover: bool = True
    ) -> None:
        backend, settings = _backend_of(config)
        resume = _resume_of(reader.start)
        if isinstance(reader.start, dict):
            # A position without a place in the transport (ZMQ) goes on from the replay ring.
            source_start = reader.start.get("source", reader.start)
            reader = replace(reader, start=source_start or "earliest")
        self._source = backend.open_source(settings, reader)
        self._waiting: deque[Item] = deque()
        self._is_closed = False
        expected = {stream: number for number, stream in self._source.channels().items()}
        for rank in reader.ranks or ():
            stream = StreamId(reader.tenant, reader.model, reader.instance, rank)
            if not reader.all_instances:
                expected.setdefault(stream, 0)
        self._reader = StreamReader(
            self._source,
            backend.capabilities,
            expected=expected,
            next_seqs=resume,
            from_start=reader.start == "earliest",
            recover=recover,
            silent_after_s=config.silent_after_s,
        )

    def receive(self, timeout_s: float) -> list[Item]:
        """Return the items that came, waiting at most ``timeout_s`` for the first.

        Raises:
            ClosedError: After ``close``.
        """
        if self._is_closed:
            raise ClosedError("the subscription is closed")
        if self._waiting:
            items = list(self._waiting)
            self._waiting.clear()
            return items
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            items = self._reader.take(self._source.receive(min(left_s, _POLL_S)))
            items += self._reader.silences()
            if items or time.monotonic() >= deadline:
                return items

    def __iter__(self) -> Iterator[Item]:
        """Yield items until the subscription is closed."""
        while not self._is_closed:
            self._waiting.extend(self.receive(_POLL_S))
            while self._waiting:
                yield self._waiting.popleft()

    def position(self) -> dict[str, Any]:
        """Return where to go on later: pass it as ``start``. JSON-able.

        It covers what ``receive`` has returned.
        """
        return {"source": self._source.position(), "streams": self._reader.position()}

    def stats(self) -> ReaderStats:
        """Return a copy of the counters."""
        return replace(self._reader.stats)

    def close(self) -> None:
        """Free everything; quiet when called again."""
        if not self._is_closed:
            self._is_closed = True
            self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSubscription:
    """``Subscription`` for asyncio: the reading is done by one thread of its own."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvevents-reader")
        self._reading: asyncio.Future[list[Item]] | None = None

    async def receive(self, timeout_s: float) -> list[Item]:
        """Return the items that came within ``timeout_s``; cancelling it loses none.

        Raises:
            ClosedError: After ``close``.
        """
        if self._reading is None:
            loop = asyncio.get_running_loop()
            self._reading = loop.run_in_executor(
                self._thread, self._subscription.receive, timeout_s
            )
        try:
            items = await asyncio.shield(self._reading)
        except asyncio.CancelledError:
            raise  # the read goes on; the next call takes its result
        except BaseException:
            self._reading = None
            raise
        self._reading = None
        return items

    async def __aiter__(self) -> AsyncIterator[Item]:
        """Yield items until the subscription is closed."""
        while True:
            try:
                items = await self.receive(_POLL_S)
            except ClosedError:
                return
            for item in items:
                yield item

    def position(self) -> dict[str, Any]:
        """Return where to go on later: pass it as ``start``."""
        return self._subscription.position()

    def stats(self) -> ReaderStats:
        """Return a copy of the counters."""
        return self._subscription.stats()

    async def close(self) -> None:
        """Free everything, after the read in progress; quiet when called again."""
        loop = asyncio.get_running_loop()
        if not self._subscription._is_closed:
            await loop.run_in_executor(self._thread, self._subscription.close)
        self._thread.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def subscribe(
    config: str | Mapping[str, Any] | KVEventsConfig,
    *,
    ranks: Sequence[int] | None = None,
    dp_size: int | None = None,
    host: str | None = None,
    start: str | dict[str, Any] | None = None,
    silent_after_s: float | None = None,
    instance: str | None = None,
    recover: bool = True,
) -> Subscription:
    """Open the reading end of what a publisher with ``config`` publishes.

    It connects where the publisher binds and binds where it connects. An unreachable publisher is
    no error: items come when it comes.

    Args:
        config: The publisher's own configuration.
        ranks: Stream ranks to read.
        dp_size: Short for ``ranks=range(dp_size)``.
        host: Where to dial instead of a wildcard address; loopback by default.
        start: ``earliest`` (the default: an index is rebuilt from history), ``latest``, an ISO
            time where the transport keeps a log, or what ``Subscription.position`` returned.
        silent_after_s: Seconds without a record after which a stream is ``Silent``; 0 = never.
        instance: The one instance to read. None takes the configuration's if it names one, else,
            where the transport can tell instances apart, all of them, and all models unless one
            is named.
        recover: Whether to fetch what was missed from history.

    Raises:
        ConfigError: The configuration is wrong or publishes nothing.
        BackendError: The backend cannot be loaded.
        TransportError: A local address cannot be had (where readers bind).
    """
    parsed = _parse(config)
    if silent_after_s is not None:
        parsed = parsed.model_copy(update={"silent_after_s": silent_after_s})
    if ranks is None and dp_size is None:
        ranks = parsed.ranks
    if ranks is None and (size := dp_size or parsed.dp_size) is not None:
        ranks = range(size)
    one = instance or (parsed.instance if parsed.origin_of("instance") else None)
    reader = ReaderOptions(
        tenant=parsed.tenant,
        model=_model_of(parsed, all_instances=one is None),
        instance=one or parsed.instance,
        ranks=None if ranks is None else tuple(ranks),
        host=host or parsed.host,
        start=start if start is not None else parsed.start,
        all_instances=one is None,
    )
    return Subscription(parsed, reader, recover=recover)


def _model_of(config: KVEventsConfig, *, all_instances: bool) -> str:
    """Return the model to read; empty, for every model, if none is named and streams can be told.

    An engine publishes under the name of the model it serves, which its own configuration need
    not hold.
    """
    tells_apart = config.backend is not None and config.backend.capabilities.carries_epoch
    if all_instances and tells_apart and config.origin_of("model") is None:
        return ""
    return config.model


def asubscribe(
    config: str | Mapping[str, Any] | KVEventsConfig, **options: Any
) -> AsyncSubscription:
    """Open the reading end for asyncio; takes and raises what ``subscribe`` does."""
    return AsyncSubscription(subscribe(config, **options))


def _parse(config: str | Mapping[str, Any] | KVEventsConfig) -> KVEventsConfig:
    if isinstance(config, KVEventsConfig):
        return config
    if isinstance(config, str):
        return KVEventsConfig.from_cli(config)
    return KVEventsConfig.from_mapping(config)


def _backend_of(config: KVEventsConfig) -> tuple[Backend[Any], BackendSettings]:
    if config.backend is None or config.backend_settings is None:
        raise ConfigError(
            f"publisher {config.publisher!r} publishes nothing, so there is nothing to read: name "
            'the publisher\'s transport, for instance {"publisher": "zmq"}',
            key="publisher",
        )
    return config.backend, config.backend_settings


def _resume_of(start: str | dict[str, Any]) -> dict[StreamId, tuple[int | None, int]]:
    if not isinstance(start, dict):
        return {}
    return {
        parse_stream_id(text): (epoch, next_seq)
        for text, (epoch, next_seq) in start.get("streams", {}).items()
    }
