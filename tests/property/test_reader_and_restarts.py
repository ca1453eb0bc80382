"""A reader against publishers that die, drop and reconnect at any moment, many times at random.

Whatever happens: no batch of a former life after ``Restarted``, every number handed out or told as
lost, and a mirror that never holds more than the cache; with history, exactly what the cache holds.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

import pytest
from history_source import RANK0, HistorySource

from kvevents_core.backend import Arrival, Capabilities, Head, Reconnected, Record
from kvevents_core.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from kvevents_core.items import Batch, Conflict, Gap, Item, Restarted
from kvevents_core.mirror import Mirror
from kvevents_core.stream_reader import StreamReader
from kvevents_core.wire import BatchEncoder

ENCODER = BatchEncoder(0)


class Publisher(HistorySource):
    """One publisher after the other behind one address, with a ring and a cache."""

    def __init__(self, ring_size: int, *, tells_epoch: bool) -> None:
        super().__init__()
        self.ring: deque[Record] = deque(maxlen=ring_size)
        self.tells_epoch = tells_epoch
        self.life = 0
        self.next_seq = 0
        self.blocks: set[int] = set()

    def restart(self) -> Record:
        """Begin a new life; return its opening."""
        self.life += 1
        self.next_seq = 0
        self.ring.clear()
        self.blocks = set()
        return self._record(AllBlocksCleared())

    def store(self) -> Record:
        block = self.life << 40 | self.next_seq
        self.blocks.add(block)
        return self._record(BlockStored([block], None, [1], 1, None, "GPU"))

    def remove(self) -> Record:
        return self._record(BlockRemoved([self.blocks.pop()], "GPU"))

    def _record(self, event: object) -> Record:
        batch = KVEventBatch(self.life * 1e6 + self.next_seq, [event])
        record = Record(RANK0, None, self.next_seq, ENCODER.encode(batch))
        self.next_seq += 1
        self.ring.append(record)
        return record

    def head(self, channel: int, timeout_s: float) -> Head | None:
        if not self.tells_epoch:
            return None
        first = self.ring[0].seq if self.ring else self.next_seq
        return Head(RANK0, 1000 * self.life, first, self.next_seq)

    def recover(
        self, channel: int, stream: object, first_seq: int, timeout_s: float
    ) -> Sequence[Record]:
        epoch = 1000 * self.life if self.tells_epoch else None
        return [r._replace(epoch=epoch) for r in self.ring if r.seq >= first_seq][:3]


class World:
    """One run. The socket keeps its order; notices of connections come as soon as they are known."""

    replays = True
    tells_epoch = True
    ring_size = 1_000

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.publisher = Publisher(self.ring_size, tells_epoch=self.tells_epoch)
        self.clock = 0.0
        self.reader = StreamReader(
            self.publisher,
            Capabilities(replays=self.replays),
            expected={RANK0: 0},
            next_seqs={},
            from_start=True,
            recover=True,
            silent_after_s=0.0,
            clock=lambda: self.clock,
        )
        self.mirror = Mirror()
        self.notices: list[Arrival] = []
        self.socket: list[Record] = []
        self.is_connected = self.was_connected = False
        self.life = 0
        self.next_seq = 0
        self.done: list[str] = []
        self.publisher.restart()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.random.choices(
                (self.store, self.remove, self.read, self.restart, self.break_off, self.connect),
                (6, 2, 6, 1, 1, 3),
            )[0]
            self.done.append(step.__name__)
            step()
        self.end()

    # The publisher -----------------------------------------------------------------------------

    def store(self) -> None:
        self.send(self.publisher.store())

    def remove(self) -> None:
        if self.publisher.blocks:
            self.send(self.publisher.remove())

    def send(self, record: Record) -> None:
        # A transport drops what a reader leaves lying, and what it sends before a subscription.
        dropped = (self.socket or self.notices) and self.random.random() < 0.3
        if self.is_connected and not dropped:
            self.socket.append(record)

    def restart(self) -> None:
        self.publisher.restart()
        self.is_connected = False

    def break_off(self) -> None:
        self.is_connected = False

    def connect(self) -> None:
        if not self.is_connected:
            self.notices.append(Reconnected(0, first=not self.was_connected))
            self.is_connected = self.was_connected = True

    # The reader --------------------------------------------------------------------------------

    def read(self) -> None:
        count = self.random.randint(1, 4)
        arrivals = [*self.notices, *self.socket[:count]]
        self.notices, self.socket = [], self.socket[count:]
        self.clock += 0.01 if arrivals else 0.3
        self.take(self.reader.take(arrivals))

    def take(self, items: Sequence[Item]) -> None:
        for item in items:
            self.mirror.apply(item)
            assert not isinstance(item, Conflict)
            if isinstance(item, Restarted):
                self.next_seq = 0
            elif isinstance(item, Gap):
                assert item.first_seq == self.next_seq
                self.next_seq = item.last_seq + 1
            elif isinstance(item, Batch):
                assert item.seq == self.next_seq
                self.next_seq += 1
                self.check_life(item)

    def check_life(self, batch: Batch) -> None:
        life = int(batch.ts // 1e6)
        assert life >= self.life, "a batch of a former life"
        self.life = life
        if batch.epoch is not None:
            # A new life whose first batch to arrive happens to follow on is known a moment later.
            assert batch.epoch <= 1000 * life

    def end(self) -> None:
        """Read whatever there is, and look at the result."""
        self.connect()
        while self.notices or self.socket:
            self.read()
        for _ in range(8):
            self.read()
        self.check_end()

    def check_end(self) -> None:
        assert self.mirror.blocks(RANK0) == self.publisher.blocks
        assert self.next_seq == self.publisher.next_seq


class StockEngines(World):
    """The replay socket of an unmodified engine tells no epoch."""

    tells_epoch = False


class SmallRing(World):
    """History is short: less may be known than the cache holds, never more."""

    ring_size = 3

    def restart(self) -> None:
        # What no history can tell apart any more: batches of two former lives, not read yet.
        if not self.socket:
            super().restart()

    def check_end(self) -> None:
        assert self.mirror.blocks(RANK0) <= self.publisher.blocks
        assert self.next_seq == self.publisher.next_seq


class LiveOnly(World):
    """No replay socket: what follows the last batch that arrived is unknown, nothing else."""

    replays = False

    def check_life(self, batch: Batch) -> None:
        if int(batch.ts // 1e6) < self.life:
            raise AssertionError("a batch of a former life")
        self.life = int(batch.ts // 1e6)

    def check_end(self) -> None:
        return


@pytest.mark.parametrize("world", [World, StockEngines, SmallRing, LiveOnly])
def test_no_life_is_mixed_up_and_nothing_is_missing_untold(world: type[World]) -> None:
    """Some hundred runs of some dozen steps; a failure names its seed and its steps."""
    for seed in range(400):
        run = world(seed)
        try:
            run.run(seed % 60)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}: {' '.join(run.done)}") from error
