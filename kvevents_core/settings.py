"""``--kv-events-config``, environment and secret files as one frozen, validated object.

Explicit keys win over the environment, the environment over secret files, and those over defaults.
A value that an engine merely passes along as its own default counts as not given. Never opens
anything.

The models are pydantic-settings'; values are gathered by ``config_assembly`` and not by the
library's own sources, because every error names the origin of the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr

from kvevents_core import config_sources
from kvevents_core.backend import Backend, BackendSettings, GatheredSettings
from kvevents_core.config_assembly import Assembled, assemble
from kvevents_core.config_sources import Given
from kvevents_core.plugins import NULL

_MAX_COUNT: Final = 2**53 - 1
Count = Annotated[int, Field(gt=0, le=_MAX_COUNT)]
Rank = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]


def _choice(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


def _distinct(ranks: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if ranks is not None and (not ranks or len(set(ranks)) != len(ranks)):
        raise ValueError("give at least one rank, and each only once")
    return ranks


def _start(value: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(value, str) and value not in ("earliest", "latest"):
        try:
            datetime.fromisoformat(value)
        except ValueError:
            raise ValueError(
                "it must be earliest, latest, an ISO time such as 2026-01-31T12:00:00+00:00, or "
                "a position that a subscription returned"
            ) from None
    return value


class CoreSettings(GatheredSettings):
    """The keys that mean the same with every transport."""

    publisher: Annotated[str, BeforeValidator(_choice)] = NULL
    """Name of the backend; ``null``: publish nothing. Not given: ``zmq`` if events are enabled."""
    enable_kv_cache_events: bool | None = None
    """False silences a publisher that is named. Not given: on if a publisher is named."""

    tenant: Name = "default"
    """Whose stream it is, the first part of its name."""
    model: Name = "default"
    """Model served, the second part of the stream's name."""
    instance: Name = "default"
    """Name of the running engine, the third part. Not given: ``POD_NAME``, ``HOSTNAME`` or the
    host's name."""
    engine: Name = "kvevents"
    """Engine whose batches these are (``sglang``, ``vllm``); only told, in headers."""

    dialect: Annotated[Literal["native", "array"], BeforeValidator(_choice)] = "native"
    """Shape of events on the wire: as the engine gives them, or legacy positional arrays."""
    omit_token_ids: bool = False
    """Publish blocks without the tokens in them."""
    format: Annotated[Literal["default", "dynamo"], BeforeValidator(_choice)] = "default"
    """The engine's own key (how hashes are made); kept, not used."""

    overflow: Annotated[
        Literal["drop_newest", "drop_oldest", "block"], BeforeValidator(_choice)
    ] = "drop_newest"
    """What gives way when the outbox is full; ``block`` makes the engine wait."""
    max_queue_size: Count = 100_000
    """Outbox, in batches."""
    max_queue_bytes: Count = 256 * 1024 * 1024
    """Outbox, in estimated bytes."""
    buffer_steps: Count = 10_000
    """Replay ring, in batches."""
    buffer_bytes: Count = 256 * 1024 * 1024
    """Replay ring, in encoded bytes."""
    max_in_flight_batches: Count = 4096
    """Batches sent and not yet confirmed."""
    max_in_flight_bytes: Count = 32 * 1024 * 1024
    """The same in encoded bytes."""
    heartbeat_s: Seconds = 0.0
    """Send an empty batch after this long without another; 0: never."""
    shutdown_timeout_s: Seconds = 2.0
    """Longest time that a shutdown spends on sending what is left."""
    sender: Annotated[Literal["thread", "process"], BeforeValidator(_choice)] = "thread"
    """Where batches are numbered and sent: on a thread of the engine's process, or in a process of
    its own, to which that thread only hands them encoded."""
    metrics_endpoint: Name | None = None
    """Where to serve counters to Prometheus, ``host:port``; the port counts up with the rank."""

    ranks: Annotated[tuple[Rank, ...] | None, AfterValidator(_distinct)] = None
    """Reader: stream ranks to read. Not given: all of ``dp_size``, or all that can be found."""
    dp_size: Count | None = None
    """Reader: number of stream ranks that the engine has."""
    host: Name | None = None
    """Reader: host to dial instead of a wildcard or loopback address of the publisher."""
    start: Annotated[str | dict[str, Any], AfterValidator(_start)] = "earliest"
    """Reader: ``earliest``, ``latest``, an ISO time or a position, where the transport keeps a log."""
    silent_after_s: Seconds = 0.0
    """Reader: report a stream as silent after this long without a batch; 0: never."""


class KVEventsConfig(CoreSettings):
    """The whole configuration of a publisher or a reader: core's keys and the backend's.

    ``KVEventsConfig(publisher="zmq", topic="kv")`` takes the keys of the JSON object as
    arguments, of core and backend alike; ``from_cli`` takes what an operator typed. Frozen.
    """

    _backend: Backend[Any] | None = PrivateAttr(default=None)
    _backend_settings: BackendSettings | None = PrivateAttr(default=None)
    _warnings: tuple[str, ...] = PrivateAttr(default=())
    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, **keys: Any) -> None:
        given = config_sources.from_mapping(keys, "the arguments of KVEventsConfig")
        made = assemble(CoreSettings, given, None)
        super().__init__(**dict(made.core))
        self._take(made)

    @classmethod
    def from_cli(
        cls, text: str | None, *, environ: Mapping[str, str] | None = None
    ) -> KVEventsConfig:
        """Return the configuration that ``--kv-events-config`` and its surroundings make.

        Args:
            text: JSON, ``@file.json`` or ``@file.toml``; None or blank counts as ``{}``.
            environ: Environment variables; None: those of this process.

        Raises:
            ConfigError: Something is wrong; the message names key, value and origin.
            BackendError: The package of the backend is broken or incomplete.
        """
        return cls._made_of(config_sources.read_flag(text), environ)

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, Any],
        *,
        environ: Mapping[str, str] | None = None,
        origin: str = "the configuration mapping",
    ) -> KVEventsConfig:
        """Return the configuration that ``mapping`` and its surroundings make.

        Args:
            mapping: The keys of the JSON object, already parsed.
            environ: Environment variables; None: those of this process.
            origin: Where ``mapping`` came from, for messages.

        Raises:
            ConfigError: Something is wrong; the message names key, value and origin.
            BackendError: The package of the backend is broken or incomplete.
        """
        return cls._made_of(config_sources.from_mapping(mapping, origin), environ)

    @classmethod
    def _made_of(
        cls, explicit: Mapping[str, Given], environ: Mapping[str, str] | None
    ) -> KVEventsConfig:
        made = assemble(CoreSettings, explicit, environ)
        config = cls.model_construct(**dict(made.core))
        config._take(made)
        return config

    def _take(self, made: Assembled[CoreSettings]) -> None:
        self._backend = made.backend
        self._backend_settings = made.backend_settings
        self._warnings = made.warnings
        self._origins = made.origins

    @property
    def enabled(self) -> bool:
        """Whether a backend is in use at all."""
        return self._backend is not None

    @property
    def backend(self) -> Backend[Any] | None:
        """The chosen backend; None where nothing is published."""
        return self._backend

    @property
    def backend_settings(self) -> BackendSettings | None:
        """The chosen backend's own keys, an instance of its ``settings_model``."""
        return self._backend_settings

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is probably not meant, each in one line; also logged, once per process."""
        return self._warnings

    def origin_of(self, key: str) -> str | None:
        """Return where the value of ``key`` came from; None if it is a default."""
        return self._origins.get(key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KVEventsConfig):
            return NotImplemented
        mine, theirs = (
            (each.model_dump(), each.backend_settings, each.enabled) for each in (self, other)
        )
        return mine == theirs

    def __hash__(self) -> int:
        return hash((self.publisher, self.tenant, self.model, self.instance))

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        yield from super().__repr_args__()
        yield "backend_settings", self._backend_settings
