"""Read any number of streams over ZMQ: one SUB per stream rank, one replay client beside it.

Where the publisher binds, a channel dials it; where it dials, the channel binds. The number of a
channel is its stream rank. libzmq dials again by itself, so a publisher may die and come back;
what the connections went through comes as notices. Never interprets a payload.
"""

from __future__ import annotations

import logging
import os
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import zmq

from kvevents_core import Head, ReaderOptions, Record, Source, StreamId
from kvevents_core.backend import Arrival
from kvevents_core.errors import ClosedError, ConfigError
from kvevents_zmq import endpoints
from kvevents_zmq.channel import Channel
from kvevents_zmq.curve import reader_keys
from kvevents_zmq.replay_client import ReplayClient
from kvevents_zmq.sockets import bind_socket, end_context, make_context, make_socket

if TYPE_CHECKING:
    from kvevents_zmq.endpoints import Endpoint
    from kvevents_zmq.settings import ZmqSettings

log = logging.getLogger("kvevents.zmq")

LONELY_S: Final = 30.0
"""A listening reader that nobody dials for this long says so."""
KEPT_REPLAYS: Final = 16
"""Up to so many streams keep their replay connections; a process has often 1024 descriptors."""
MOST_ARRIVALS: Final = 4096
"""After so many a ``receive`` returns, whatever else waits."""


class ZmqSource(Source):
    """The receiving end of the streams ``reader.ranks`` (rank 0 if not given)."""

    def __init__(self, settings: ZmqSettings, reader: ReaderOptions) -> None:
        """Begin to dial, or bind.

        Raises:
            ConfigError: The settings leave open where to dial, or a CURVE key cannot be used.
            TransportError: Where the publisher dials: its endpoint cannot be bound here.
        """
        self._settings = settings
        self._reader = reader
        self._keys = reader_keys(settings)
        self._ranks = tuple(sorted(set(reader.ranks or (0,))))
        settings.check_ranks(self._ranks[-1] + 1)
        self._check_ports()
        self._closed = False
        self._pid = os.getpid()
        self._context = make_context(settings.events, settings.replay)
        self._channels: dict[int, Channel] = {}
        self._replays: dict[int, ReplayClient] = {}
        self._selector = selectors.DefaultSelector()
        self._waiting: dict[int, None] = {}
        """Ranks that may hold something unread, the longest waiting first."""
        self._given_up: set[int] = set()
        self._lonely: set[int] = set()
        """Ranks that listen and that no publisher has dialled yet."""
        self._lonely_at = time.monotonic() + LONELY_S
        self.endpoints: dict[int, str] = {}
        """Where each channel dials or, with the real port, listens."""
        try:
            for rank in self._ranks:
                self._open_channel(rank)
        except BaseException:
            self.close()
            raise

    def _check_ports(self) -> None:
        settings = self._settings
        where = [("endpoint", settings.events)] if settings.publisher_binds else []
        if settings.replay is not None:
            where.append(("replay_endpoint", settings.replay))
        for key, endpoint in where:
            if endpoint.port == 0:
                raise ConfigError(
                    f"{key} {str(endpoint)!r}: a reader cannot know the port the system chose; "
                    f"give the one the publisher's describe() reports",
                    key=key,
                )

    def _open_channel(self, rank: int) -> None:
        settings, reader = self._settings, self._reader
        stream = StreamId(reader.tenant, reader.model, reader.instance, rank)
        topic = settings.topic.encode()
        base = settings.events.for_rank(rank)
        there = endpoints.dial if settings.publisher_binds else None
        endpoint = there(base, reader.host) if there else endpoints.listen(base)
        socket = self._maker(zmq.SUB, endpoint)()
        socket.rcvhwm = settings.rcvhwm
        channel = self._channels[rank] = Channel(socket, stream, topic)
        if there:
            channel.connect(endpoint)
            self.endpoints[rank] = str(endpoint)
        else:
            bind = partial(bind_socket, endpoint=endpoint, stream=stream, reads=True)
            self.endpoints[rank] = channel.bind(bind)
            self._lonely.add(rank)
        # libzmq's descriptors instead of zmq_poll: its cost grows with the streams that have
        # something, not with all there are.
        self._selector.register(int(channel.socket.fd), selectors.EVENT_READ, rank)
        self._selector.register(int(channel.monitor.reader.fd), selectors.EVENT_READ, rank)
        self._waiting[rank] = None
        if settings.replay is not None:
            far = endpoints.dial(settings.replay.for_rank(rank), reader.host)
            make = self._maker(zmq.DEALER, far)
            self._replays[rank] = ReplayClient(
                make, str(far), topic, stays=len(self._ranks) <= KEPT_REPLAYS
            )

    def _maker(self, kind: int, endpoint: Endpoint) -> Callable[[], zmq.Socket[Any]]:
        """Return what makes a socket for ``endpoint``; it does not hold on to this source."""
        ipv6 = self._settings.ipv6_for(endpoint)
        return partial(make_socket, self._context, kind, ipv6=ipv6, keys=self._keys)

    def receive(self, timeout_s: float) -> Sequence[Arrival]:
        """Return what arrived, waiting at most ``timeout_s`` for the first.

        Raises:
            ClosedError: After ``close``.
        """
        self._check_open()
        end_at = time.monotonic() + timeout_s
        left_s = 0.0
        while True:
            for key, _ in self._selector.select(left_s):
                self._waiting[key.data] = None
            arrivals = self._drain()
            if self._lonely and time.monotonic() >= self._lonely_at:
                self._warn_of_loneliness()
            left_s = end_at - time.monotonic()
            if arrivals or left_s <= 0:
                return arrivals

    def _drain(self) -> list[Arrival]:
        """Take a chunk from each channel that may hold something."""
        for rank in tuple(self._given_up):
            if self._channels[rank].redial():
                self._given_up.discard(rank)
                self._waiting[rank] = None
        arrivals: list[Arrival] = []
        for rank in tuple(self._waiting):
            del self._waiting[rank]
            channel = self._channels[rank]
            arrivals += channel.drain()
            if channel.more_waits:
                self._waiting[rank] = None
            if channel.gave_up:
                self._given_up.add(rank)
            if len(arrivals) >= MOST_ARRIVALS:
                break
        return arrivals

    def _warn_of_loneliness(self) -> None:
        """Say once that nobody dials: a publisher that binds is never met by a reader that does."""
        for rank in self._lonely:
            if not self._channels[rank].monitor.made:
                log.warning(
                    "no publisher has dialled %s in %.0f s. A concrete host in endpoint (%s) means "
                    'that the publisher dials; if it binds, give the reader "bind": true',
                    self.endpoints[rank],
                    LONELY_S,
                    self._settings.endpoint,
                )
        self._lonely.clear()

    def channels(self) -> Mapping[int, StreamId]:
        """Return every stream rank that is read, with or without a replay socket."""
        return {rank: channel.stream for rank, channel in self._channels.items()}

    def head(self, channel: int, timeout_s: float) -> Head | None:
        """Ask the publisher of ``channel`` where it stands; a stock engine cannot say."""
        self._check_open()
        replay = self._replays.get(channel)
        said = None if replay is None else replay.head(timeout_s)
        return None if said is None else Head(*said)

    def recover(
        self, channel: int, stream: StreamId, first_seq: int, timeout_s: float
    ) -> Sequence[Record] | None:
        """Return the next portion from the replay socket; with the epoch where it is told."""
        self._check_open()
        replay = self._replays.get(channel)
        answer = None if replay is None else replay.recover(first_seq, timeout_s)
        if answer is None:
            return None
        epoch, portion = answer
        return [Record(stream, epoch, one.seq, one.payload, channel) for one in portion]

    def close(self) -> None:
        """Close every socket; nothing lingers, since a reader has nothing to deliver."""
        if self._closed:
            return
        self._closed = True
        if self._pid != os.getpid():
            return
        for replay in self._replays.values():
            replay.close()
        self._selector.close()
        for channel in self._channels.values():
            channel.close()
        end_context(self._context)

    def __del__(self) -> None:
        # Sockets collected in the wrong order would block libzmq; see ``Monitor.close``.
        if not getattr(self, "_closed", True):
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the ZMQ source is closed")
        if self._pid != os.getpid():
            raise ClosedError(
                f"the ZMQ source was opened by process {self._pid}; a forked child must open its own"
            )
