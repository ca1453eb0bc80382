"""The outbox as a state machine: whatever is put and taken, no batch vanishes uncounted."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvevents_core.events import AllBlocksCleared, KVEventBatch
from kvevents_core.outbox import Outbox, estimate_bytes


class OutboxMachine(RuleBasedStateMachine):
    """Puts numbered batches and takes them in groups of any size."""

    @initialize(
        capacity=st.integers(1, 5) | st.integers(6, 20),
        capacity_bytes=st.integers(1, 6000) | st.just(1 << 40),
        policy=st.sampled_from(["drop_newest", "drop_oldest"]),
    )
    def open(self, capacity: int, capacity_bytes: int, policy: str) -> None:
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        self.outbox = Outbox(capacity, capacity_bytes, policy)
        self.put_count = 0
        self.reader_next = 0

    @rule(events=st.integers(1, 4))
    def put(self, events: int) -> None:
        self.outbox.put(KVEventBatch(float(self.put_count), [AllBlocksCleared()] * events))
        self.put_count += 1

    @rule()
    def put_nonsense(self) -> None:
        self.outbox.put(object())
        self.put_count += 1

    @rule(limit=st.integers(1, 4))
    def take(self, limit: int) -> None:
        for item in self.outbox.take(limit, 1 << 30):
            assert item.lost_before >= 0
            self.reader_next += item.lost_before
            assert item.batch.ts == float(self.reader_next)
            self.reader_next += 1

    @rule()
    def tail(self) -> None:
        self.reader_next += self.outbox.take_tail_loss()
        if not self.outbox.size()[0]:
            assert self.reader_next == self.put_count

    @invariant()
    def bounds_hold(self) -> None:
        waiting, held = self.outbox.size()
        assert waiting <= self.capacity
        assert held <= self.capacity_bytes
        assert held == 0 or held >= estimate_bytes(KVEventBatch(0.0, [AllBlocksCleared()]))


OutboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestOutbox = OutboxMachine.TestCase
