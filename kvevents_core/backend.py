"""THE CONTRACT between core and a backend. Read this before writing a backend.

Core owns everything that makes "one ordered, numbered stream": who publishes, stamping, encoding,
splitting, numbering, the epoch, the outbox and its overflow, the replay ring, the in-flight window,
heartbeats, deadlines and counters. A backend only moves numbered records. So the semantics are the
same whatever the transport. This module opens nothing and imports no client library.

The life of a sink, as core drives it (after ``open_sink`` every call is made by the one sender
thread of that stream, ``close`` included; only ``status`` is also called by others):

    open_sink(settings, stream) -> start(host) -> [ status | send | take_receipts ]* -> flush -> close

Signals are blocked in that thread, since they are the engine's; threads and programs that a sink
starts from it inherit this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.sources import PydanticBaseSettingsSource

from kvevents_core.naming import StreamId

CONTRACT_VERSION: Final = 1
"""Version of this contract. A backend states the one it was written for in ``contract_version``."""


class Record(NamedTuple):
    """One encoded batch. A sink never changes it; a source returns what the sink was given."""

    stream: StreamId
    epoch: int | None
    """Life of the stream this batch belongs to; < 2**53. None from a source whose frames carry
    none (ZMQ live traffic)."""
    seq: int
    """u64, 0 for the first batch of an epoch, +1 for each batch sent *or lost*."""
    payload: bytes
    """The batch as ``wire`` encoded it. Never inspected or altered by a backend."""
    channel: int = 0
    """Sources only: which connection of the source it came by; given back to ``recover``."""


class Receipt(NamedTuple):
    """What became of the records ``first_seq..last_seq`` of the sink's stream and epoch."""

    first_seq: int
    last_seq: int
    rejected: str | None = None
    """None: the transport confirmed them. Else why they are lost for good, in a few words
    (``too_large``, ``not_authorized``, ...); core counts them under ``rejected``."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """State of a sink at one moment."""

    ready: bool
    """True once records can be sent and ``last_epoch`` is known. Stays True through later
    outages of the transport (``send`` then takes 0)."""
    connected: bool
    """True while the peer is believed reachable."""
    last_epoch: int | None = None
    """Highest epoch that the stream's log holds, read before the first send; None if it holds none,
    cannot be read, or the transport keeps no log."""
    superseded_by: int | None = None
    """A higher epoch than ours that another publisher wrote to our stream: core stops sending."""
    generation: int = 0
    """Raised by one whenever the client was rebuilt and records taken but not yet confirmed may be
    gone: core then sends every unconfirmed record again, in seq order, before any other. From the
    rebuild until the sender thread has seen the new number ``send`` takes 0, or newer records would
    overtake those to be sent again."""
    max_message_bytes: int | None = None
    """Largest payload the transport takes now; core splits above it. None: no limit."""
    error: str | None = None
    """The last trouble in one line, without secrets; None while all is well."""


class History(Protocol):
    """What a sink that serves replay may read: core's ring of the last records. Any thread."""

    def read(self, first_seq: int, limit: int) -> list[Record]:
        """Return at most ``limit`` records with seq >= ``first_seq``, in seq order."""

    def bounds(self) -> tuple[int, int]:
        """Return (seq of the oldest record held, seq of the next record); equal if empty."""


@dataclass(frozen=True, slots=True)
class SinkHost:
    """What core offers a sink when it starts it."""

    wake: Callable[[], None]
    """Call it, from any thread, when ``status`` changed, room was made or receipts wait. Cheap."""
    epoch: Callable[[], int | None]
    """The epoch core chose for this life of the stream, None before it is fixed. Any thread."""
    history: History
    """The replay ring; empty unless ``Capabilities.serves_history``."""
    identity: str = ""
    """Who publishes, for people: host name and pid. Put it where the transport has room."""
    engine: str = ""
    """The engine whose batches these are (``sglang``, ``vllm``, ``kvevents``); for headers."""


class Sink(ABC):
    """The sending end of one stream."""

    def start(self, host: SinkHost) -> None:
        """Begin background work. Called once, by the sender thread, before anything else.

        Does not block. Trouble shows in ``status().error``, never as an exception.
        """

    @abstractmethod
    def status(self) -> SinkStatus:
        """Return the present state. Any thread; never blocks; cheap enough for every group."""

    @abstractmethod
    def send(self, records: Sequence[Record]) -> int:
        """Take a prefix of ``records``, whole records only, and return its length.

        0 means full or not connected; core keeps the rest and offers it again. Never blocks for
        longer than a few milliseconds. Promises nothing about delivery unless
        ``Capabilities.confirms``: then each record taken must later appear in a ``Receipt``.

        Raises:
            ClosedError: After ``close``; nothing is taken.
        """

    def take_receipts(self) -> Sequence[Receipt]:
        """Return the receipts since the last call, oldest first. Only if ``confirms``."""
        return ()

    def flush(self, timeout_s: float) -> bool:
        """Push what was taken towards the peer; True if nothing waits any more.

        Keeps its deadline with a dead peer and never raises.
        """
        return True

    @abstractmethod
    def close(self, timeout_s: float) -> None:
        """Stop every thread and free every resource within ``timeout_s``.

        Quiet when called again; never raises; keeps its deadline with a dead peer. Does not
        promise delivery: core calls ``flush`` first.
        """

    def describe(self) -> dict[str, Any]:
        """Return facts for operators (real address, counters), JSON-able, without secrets."""
        return {}


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Source notice: the connection of ``channel`` was made, for the first time or again."""

    channel: int
    first: bool = False
    """True the first time: what the publisher sent before may be asked for now."""


@dataclass(frozen=True, slots=True)
class PeersCounted:
    """Source notice: how many publishers are connected to ``channel`` (where readers bind)."""

    channel: int
    count: int


@dataclass(frozen=True, slots=True)
class Malformed:
    """Source notice: something arrived that is not a record; it was dropped."""

    channel: int
    reason: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """Source notice: the transport cannot be read just now, or history is out of reach."""

    channel: int
    reason: str


Arrival = Record | Reconnected | PeersCounted | Malformed | Trouble


@dataclass(frozen=True, slots=True)
class Head:
    """Where a publisher stands, as far as the transport can tell."""

    stream: StreamId | None
    epoch: int | None
    first_seq: int
    """Oldest seq that ``recover`` could still return."""
    next_seq: int
    """Seq of the batch to come."""


class Source(ABC):
    """The receiving end: any number of streams. Used by one thread at a time."""

    @abstractmethod
    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        """Return what arrived, in order per stream, waiting at most ``timeout_s`` for the first.

        Survives peers that die, restart or send nonsense; such things become notices.

        Raises:
            ClosedError: After ``close``.
        """

    def channels(self) -> Mapping[int, StreamId]:
        """Return the connections that can be asked for history before anything arrives.

        Each with the stream it is expected to carry (a batch's own rank has the last word).
        """
        return {}

    def head(self, channel: int, timeout_s: float) -> Head | None:
        """Ask the publisher behind ``channel`` where it stands; None if it cannot say."""
        return None

    def recover(
        self, channel: int, stream: StreamId, first_seq: int, timeout_s: float
    ) -> Sequence[Record] | None:
        """Return records of ``stream`` with seq >= ``first_seq`` from history, in seq order.

        At most one portion (some hundreds of records or some MiB): core asks again from the next
        seq until it has caught up with live traffic or the answer is empty. None if history
        cannot be read now. Only if ``Capabilities.replays``.
        """
        return None

    def position(self) -> dict[str, Any] | None:
        """Return where reading could resume (see ``start``), JSON-able; None if it cannot."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free everything, promptly; quiet when called again."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a transport can do; every flag is closed by default."""

    confirms: bool = False
    """The sink reports what was delivered (``take_receipts``)."""
    serves_history: bool = False
    """The sink answers readers from core's ring (``SinkHost.history``)."""
    replays: bool = False
    """The source can fetch records again by seq (``recover``)."""
    durable: bool = False
    """Records outlive the publisher; a source can start from the beginning."""
    carries_epoch: bool = False
    """Records carry their epoch, so the highest epoch owns the stream."""
    exclusive: bool = False
    """A second publisher of a stream fails in ``open_sink`` with ``AddressInUseError``."""


class GatheredSettings(BaseSettings):
    """Settings whose values core has gathered; strict, frozen, and silent about what they hold."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the values given and no others: a field ``user`` is not the variable ``USER``."""
        return (init_settings,)


class BackendSettings(GatheredSettings):
    """Base of a backend's settings model: flat keys beside core's own in the one JSON object.

    A subclass adds fields; none may have the name of a core key. Passwords are
    ``pydantic.SecretStr``. ``check_ranks`` refuses what is wrong for some ranks only, on every rank
    alike. Core fills it from the JSON, the environment (``KVEVENTS_<NAME>_<KEY>``,
    ``KVEVENTS_<KEY>``) and the secrets directory, in that order. A value in the JSON keeps its
    kind: a number in quotes is no number.
    """

    def check_ranks(self, stream_ranks: int) -> None:
        """Raise ``ConfigError`` if ``stream_ranks`` streams cannot have an address each."""
        return

    def leaves_process(self) -> bool:
        """Return whether readers in another process can be reached; if not, no sender can move there."""
        return True

    def address_of(self, stream: StreamId) -> str | None:
        """Return where ``stream`` is found, for people: endpoint, topic, subject; None: unsaid."""
        return None


SettingsT = TypeVar("SettingsT", bound=BackendSettings)


class Backend(ABC, Generic[SettingsT]):
    """One transport. Constructing it opens nothing, imports no client and starts no thread."""

    name: ClassVar[str]
    """The ``publisher`` value, the entry-point name and the extra, lower case."""
    contract_version: ClassVar[int]
    """The ``CONTRACT_VERSION`` this backend was written for."""
    capabilities: ClassVar[Capabilities]
    settings_model: ClassVar[type[BackendSettings]]

    @abstractmethod
    def open_sink(self, settings: SettingsT, stream: StreamId) -> Sink:
        """Open the sending end of ``stream``. Called on the engine's thread, once, at start.

        Where the address is local (ZMQ bind) it is taken at once. A remote peer is never waited
        for: it is reached in the background, and an unreachable one is no error.

        Raises:
            TransportError: The local address cannot be had.
            AddressInUseError: Another publisher holds it.
        """

    @abstractmethod
    def open_source(self, settings: SettingsT, reader: ReaderOptions) -> Source:
        """Open the receiving end for ``reader.streams``; an unreachable peer is no error."""


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What a reader wants, beside the publisher's own configuration."""

    tenant: str
    model: str
    instance: str
    ranks: tuple[int, ...] | None = None
    """Stream ranks to read; None = all there are (transports that can tell) or rank 0."""
    host: str | None = None
    """Where to dial instead of a wildcard or loopback bind address."""
    start: str | dict[str, Any] = "earliest"
    """``earliest``, ``latest``, an ISO time, or what ``Source.position`` returned."""
    all_instances: bool = False
    """Read every instance (and, with an empty ``model``, every model) of the tenant."""

    def wants(self, stream: StreamId) -> bool:
        """Return whether ``stream`` was asked for; the one rule of every source."""
        any_model = self.all_instances and not self.model
        return (
            stream.tenant == self.tenant
            and (self.all_instances or stream.instance == self.instance)
            and (any_model or stream.model == self.model)
            and (self.ranks is None or stream.rank in self.ranks)
        )
