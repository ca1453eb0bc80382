"""Read by the type checker only: what users' code may rely on, as they would write it.

``test_public_api`` runs mypy over this file; every line below is a promise about a type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, assert_type

from kvevents_core import (
    CONTRACT_VERSION,
    AllBlocksCleared,
    Backend,
    BackendSettings,
    Batch,
    BlockRemoved,
    BlockStored,
    Capabilities,
    ConfigError,
    Conflict,
    EventPublisher,
    EventPublisherFactory,
    Gap,
    KVEventBatch,
    KVEventsConfig,
    Layout,
    Mirror,
    NullEventPublisher,
    Placement,
    RankGate,
    ReaderOptions,
    Receipt,
    Record,
    Restarted,
    Silent,
    Sink,
    SinkHost,
    SinkStatus,
    Source,
    StreamId,
    Subscription,
    asubscribe,
    hookimpl,
    subscribe,
)
from kvevents_core.subscriber import AsyncSubscription


def an_engine(text: str) -> None:
    """What an engine does."""
    config = KVEventsConfig.from_cli(text)
    placement = Placement(tp_rank=0, tp_size=2)
    gate = RankGate.resolve(config, placement)
    assert_type(gate.publishes, bool)
    publisher = gate.create_publisher()
    assert_type(publisher, EventPublisher | NullEventPublisher)
    publisher.publish(KVEventBatch(ts=1.0, events=[BlockStored([1]), BlockRemoved([1])]))
    publisher.publish(KVEventBatch(1.0, [AllBlocksCleared(medium="GPU")], dp_rank=0))
    assert_type(publisher.stats().lost, dict[str, int])
    assert_type(publisher.describe(), dict[str, Any])
    assert_type(publisher.shutdown(timeout_s=1.0), int)
    assert_type(EventPublisherFactory.create(text, 3), EventPublisher | NullEventPublisher)


def an_operator(error: ConfigError) -> tuple[str | None, str | None, str | None]:
    """Facts of an error are attributes."""
    return error.key, error.origin, error.suggestion


def a_planner() -> int:
    """Sizes in, placements out."""
    layout = Layout(tp_size=4, attn_dp_size=2)
    return len([placement for placement in layout.placements() if placement.is_publisher])


def a_reader(text: str) -> None:
    """What a router does."""
    mirror = Mirror()
    with subscribe(text, dp_size=2, start="earliest", silent_after_s=5.0) as subscription:
        assert_type(subscription, Subscription)
        for item in subscription:
            assert_type(item, Batch | Gap | Restarted | Conflict | Silent)
            mirror.apply(item)
            if isinstance(item, Batch):
                assert_type(item.stream, StreamId)
                assert_type(item.epoch, int | None)
                assert_type(item.seq, int)
            elif isinstance(item, Gap):
                assert_type(item.last_seq - item.first_seq, int)
        position: dict[str, Any] = subscription.position()
    subscribe({"publisher": "zmq"}, start=position).close()


async def an_async_reader(text: str) -> None:
    """The same for asyncio."""
    async with asubscribe(text) as subscription:
        assert_type(subscription, AsyncSubscription)
        async for item in subscription:
            assert_type(item, Batch | Gap | Restarted | Conflict | Silent)


class Settings(BackendSettings):
    """A third party's settings."""

    address: str = "nowhere"


class ThirdPartySink(Sink):
    """A third party's sink."""

    def start(self, host: SinkHost) -> None:
        """Use what core offers."""
        host.wake()
        assert_type(host.epoch(), int | None)
        assert_type(host.history.read(0, 10), list[Record])
        assert_type(host.history.bounds(), tuple[int, int])

    def status(self) -> SinkStatus:
        """State."""
        return SinkStatus(ready=True, connected=True, last_epoch=None, max_message_bytes=1 << 20)

    def send(self, records: Sequence[Record]) -> int:
        """Take all."""
        return len(records)

    def take_receipts(self) -> Sequence[Receipt]:
        """Confirm."""
        return [Receipt(0, 1), Receipt(2, 2, "too_large")]

    def close(self, timeout_s: float) -> None:
        """Close."""


class ThirdPartyBackend(Backend[Settings]):
    """A third party's backend."""

    name: ClassVar[str] = "third"
    contract_version: ClassVar[int] = CONTRACT_VERSION
    capabilities: ClassVar[Capabilities] = Capabilities(confirms=True)
    settings_model: ClassVar[type[BackendSettings]] = Settings

    def open_sink(self, settings: Settings, stream: StreamId) -> Sink:
        """Settings are the model's, typed."""
        assert_type(settings.address, str)
        assert_type(stream.rank, int)
        return ThirdPartySink()

    def open_source(self, settings: Settings, reader: ReaderOptions) -> Source:
        """Not built."""
        raise LookupError(reader.ranks)


@hookimpl
def kvevents_backend() -> ThirdPartyBackend:
    """Return it."""
    return ThirdPartyBackend()
