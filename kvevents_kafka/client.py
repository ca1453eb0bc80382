"""kafka-python's clients, made without waiting and unmade within a deadline.

With ``api_version`` given, kafka-python 3.0 connects in the background, for ever, and takes a lower
version from the broker itself; without it the constructor waits. What is private in the client and
needed here is named in this module only.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaConfigurationError, KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

from kvevents_core import ConfigError
from kvevents_kafka.client_log import client_log
from kvevents_kafka.settings import KafkaSettings
from kvevents_kafka.sockets import DIRECT

NEWEST_BROKER: Final = (4, 3)
"""Newest broker version that kafka-python 3.0.12 knows."""
BACKOFF_MAX_MS: Final = 1_000
"""The default of 30 s would delay the recovery from a long outage by as much."""
MAX_BLOCK_MS: Final = 50
"""Longest wait of ``send`` for metadata; it happens only if a topic vanishes."""
ADMIN_TIMEOUT_MS: Final = 3_000
MISSING_GRACE_S: Final = 2.0
"""Brokers that create topics by themselves need a moment."""

_producers: Final[weakref.WeakSet[KafkaProducer]] = weakref.WeakSet()


Nets = list[KafkaNetClient]


class _Loop(NetworkSelector):  # type: ignore[misc]
    """kafka-python's event loop, whose thread is woken once for a group of records.

    Waking it writes to a socket, which lets go of the interpreter lock; a main thread that computes
    without pause gives it back only after the switch interval, for each record that opens a batch.
    """

    def __init__(self, **configs: Any) -> None:
        self._holder: int | None = None  # a thread
        self._owes_wakeup = False
        super().__init__(**configs)

    def wakeup(self) -> None:
        """Wake the client's thread, or note that the holder owes it. Any thread."""
        if self._holder == threading.get_ident():
            self._owes_wakeup = True
        else:
            super().wakeup()

    @contextmanager
    def one_wakeup(self) -> Iterator[None]:
        """Put off what this thread would wake the client's thread for to the end."""
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            if self._owes_wakeup:
                self._owes_wakeup = False
                super().wakeup()


@dataclass(slots=True)
class Client:
    """A producer or consumer, with the network client inside it."""

    api: Any
    """The ``KafkaProducer`` or ``KafkaConsumer``."""
    net: KafkaNetClient
    client_id: str
    missing_since: float | None = None

    @property
    def cluster(self) -> Any:
        """Return what the client knows of brokers and topics."""
        return self.net.cluster

    @property
    def loop(self) -> _Loop:
        """Return the event loop of ``net``."""
        loop: _Loop = self.net._net
        return loop

    def is_connected(self) -> bool:
        """Return whether a connection to any broker stands."""
        return any(self.net.connected(broker.node_id) for broker in self.cluster.brokers())

    def reaches_leader(self, topic: str, partition: int) -> bool:
        """Return whether a connection to the partition's leader stands."""
        leader = self.cluster.leader_for_partition(TopicPartition(topic, partition))
        return leader is not None and leader >= 0 and bool(self.net.connected(leader))

    def partitions(self, topic: str) -> list[int] | None:
        """Return the partitions of ``topic`` in order, or None if it is not known (yet)."""
        known = self.cluster.partitions_for_topic(topic)
        return sorted(known) if known else None

    def ask_for(self, topic: str) -> None:
        """Have metadata of ``topic`` fetched in the background."""
        self.cluster.add_topic(topic)
        if not self.cluster.partitions_for_topic(topic):
            self.cluster.request_update()

    def refresh(self) -> None:
        """Have metadata fetched again in the background."""
        self.cluster.request_update()

    def trouble(self, topic: str) -> str | None:
        """Return in one line why ``topic`` cannot be used, or None if nothing is known to be."""
        if topic in self.cluster.unauthorized_topics:
            return f"not authorized for topic {topic!r} (TopicAuthorizationFailed): grant an ACL"
        cause = client_log.cause(self.client_id)
        if cause is not None or not self._is_missing(topic):
            return cause
        if not self.cluster.brokers():  # and the client's log is switched off
            return "no broker has answered yet"
        return f"topic {topic!r} does not exist, and the brokers do not create it"

    def _is_missing(self, topic: str) -> bool:
        """Return whether ``topic`` has not been heard of for a while."""
        if self.partitions(topic) is not None:
            self.missing_since = None
            return False
        if self.missing_since is None:
            self.missing_since = time.monotonic()
        return time.monotonic() - self.missing_since > MISSING_GRACE_S


def producer(settings: KafkaSettings, client_id: str, *, batch_size: int | None = None) -> Client:
    """Return a producer that is connecting.

    Raises:
        ConfigError: kafka-python refuses an option.
    """
    options = _common(settings, client_id) | {
        "acks": "all" if settings.is_idempotent else int(settings.acks),
        "enable_idempotence": settings.is_idempotent,
        # Without idempotence a retry keeps the order only if nothing else is under way.
        "max_in_flight_requests_per_connection": 5 if settings.is_idempotent else 1,
        "compression_type": None if settings.compression_type == "none" else settings.compression_type,
        "linger_ms": settings.linger_ms,
        "batch_size": settings.batch_size if batch_size is None else batch_size,
        "max_request_size": settings.max_request_size,
        "delivery_timeout_ms": settings.delivery_timeout_ms,
        "max_block_ms": MAX_BLOCK_MS,
        "allow_auto_create_topics": not settings.create_topics,
        "metrics_enabled": False,
    }  # fmt: skip
    client = _make(KafkaProducer, options, settings, client_id)
    # The client's own exit hook would close it before core has sent what waits.
    client.api._unregister_cleanup()
    _producers.add(client.api)
    return client


def consumer(
    settings: KafkaSettings, client_id: str, nets: Nets | None = None, **special: Any
) -> Client:
    """Return a consumer without a group that is connecting.

    Args:
        settings: The settings.
        client_id: Its name.
        nets: Where its network client is noted, for ``end_waiting``.
        special: Options beside the settings.

    Raises:
        ConfigError: kafka-python refuses an option.
    """
    options = _common(settings, client_id) | {
        "group_id": None,
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "allow_auto_create_topics": False,
        "metadata_max_age_ms": 10_000,
        "metrics_enabled": False,
    }
    return _make(KafkaConsumer, options | special, settings, client_id, nets)


def admin(settings: KafkaSettings, client_id: str, nets: Nets) -> Client:
    """Return an admin client; waits for the brokers, at most ``ADMIN_TIMEOUT_MS``.

    Args:
        settings: The settings.
        client_id: Its name.
        nets: Where its network client is noted, for ``end_waiting``.

    Raises:
        KafkaError: No broker answered in time.
    """
    options = _common(settings, client_id) | {"bootstrap_timeout_ms": ADMIN_TIMEOUT_MS}
    options["request_timeout_ms"] = ADMIN_TIMEOUT_MS
    return _make(KafkaAdminClient, options, settings, client_id, nets)


def _common(settings: KafkaSettings, client_id: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.bootstrap_servers),
        "client_id": client_id,
        "api_version": NEWEST_BROKER,
        "reconnect_backoff_max_ms": BACKOFF_MAX_MS,
        "request_timeout_ms": settings.request_timeout_ms,
        "security_protocol": settings.security_protocol,
    }
    if "socks5_proxy" not in settings.kafka_options:
        options["proxy_url"] = DIRECT
    if settings.security_protocol.endswith("SSL"):
        options["ssl_check_hostname"] = settings.ssl_check_hostname
        for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            options[name] = getattr(settings, name) or None
        if settings.ssl_password is not None:
            options["ssl_password"] = settings.ssl_password.get_secret_value()
    if settings.security_protocol.startswith("SASL_"):
        options["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_plain_password is not None:
            options["sasl_plain_username"] = settings.sasl_plain_username
            options["sasl_plain_password"] = settings.sasl_plain_password.get_secret_value()
    return options


def _make(
    kind: Any,
    options: dict[str, Any],
    settings: KafkaSettings,
    client_id: str,
    nets: Nets | None = None,
) -> Client:
    made: Nets = []

    def net_client(**configs: Any) -> KafkaNetClient:
        loop = _Loop(**configs)
        try:
            made.append(KafkaNetClient(net=loop, **configs))
        except Exception:
            loop.close()
            raise
        if nets is not None:
            nets.append(made[-1])
        return made[-1]

    wanted = {**options, **settings.kafka_options, "kafka_client": net_client}
    if isinstance(wanted["api_version"], list):  # JSON has no tuples
        wanted["api_version"] = tuple(wanted["api_version"])
    client_log.attach()
    try:
        api = kind(**{name: wanted[name] for name in wanted if name in kind.DEFAULT_CONFIG})
    except Exception as error:
        # kafka-python leaves the thread of a client that failed in its constructor running.
        for net in made:
            net.close()
        if isinstance(error, KafkaError) and not isinstance(error, KafkaConfigurationError):
            raise
        what = str(error) if isinstance(error, KafkaError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"kafka-python refuses its options: {what}; look at kafka_options", key="kafka_options"
        ) from error
    # kafka-python 3.0.12 takes the option and does not hand it on to where it counts.
    may_create = wanted.get("allow_auto_create_topics", False)
    made[0].cluster.config["allow_auto_create_topics"] = may_create
    return Client(api, made[0], client_id)


def abandon_producer(client: Client) -> None:
    """Let the producer send nothing more; what it held fails soon. Any thread, returns at once."""
    client.api._sender.force_close()


def close_producer(client: Client, timeout_s: float) -> bool:
    """End the producer without sending what it holds; True if its thread ended in time.

    ``KafkaProducer.close`` gives up when its flush does not finish, and leaves the thread running.
    """
    deadline = time.monotonic() + timeout_s
    abandon_producer(client)
    sender = client.api._sender
    sender.join(max(0.05, timeout_s))
    try:
        client.api.close(timeout=max(0.01, deadline - time.monotonic()))
    except KafkaError:
        client.api._closed = True
    return not sender.is_alive()


def close_quietly(client: Client, timeout_s: float = 1.0) -> None:
    """End a consumer or admin client; whatever goes wrong is of no interest any more."""
    try:
        if isinstance(client.api, KafkaConsumer):
            client.api.close(autocommit=False, timeout_ms=timeout_s * 1000)
        else:
            client.api.close()
    except (KafkaError, OSError, RuntimeError):
        client.net.close()


def end_waiting(nets: Nets) -> None:
    """End the calls that a thread waits in, through the network clients in ``nets``. Any thread."""
    while nets:
        try:
            nets.pop().close()
        except (IndexError, KafkaError, OSError, RuntimeError):
            continue  # it was being closed already


def _after_fork() -> None:
    # The child has no sender thread: closing an inherited producer would only wait and complain.
    for inherited in list(_producers):
        inherited._closed = True


os.register_at_fork(after_in_child=_after_fork)
