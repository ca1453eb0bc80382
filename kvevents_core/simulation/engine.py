"""One process of a simulated engine: the real gate and publisher around the simulated cache.

It calls kvevents exactly where an engine does: once at start to decide, once per step to publish
what the cache recorded. It never looks at ranks itself. One thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from kvevents_core.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVCacheEvent,
    KVEventBatch,
)
from kvevents_core.gate import RankGate
from kvevents_core.simulation.cache import Chain, PrefixCache
from kvevents_core.simulation.traffic import Request


@dataclass(slots=True)
class EventMetrics:
    """The engine's own event counters, which only a publishing process may raise."""

    events: int = 0
    stored_blocks: int = 0
    removed_blocks: int = 0
    clears: int = 0

    def observe(self, events: Iterable[KVCacheEvent]) -> None:
        """Count ``events``."""
        for event in events:
            self.events += 1
            match event:
                case BlockStored():
                    self.stored_blocks += len(event.block_hashes)
                case BlockRemoved():
                    self.removed_blocks += len(event.block_hashes)
                case AllBlocksCleared():
                    self.clears += 1


class SimulatedEngine:
    """Serves requests from a prefix cache and publishes what the gate allows.

    Owns the publisher it creates; whoever owns the engine shuts that down.

    Raises:
        TransportError: The publisher cannot have its local address.
    """

    def __init__(self, gate: RankGate, capacity_blocks: int, block_size: int = 16) -> None:
        self.gate = gate
        self.cache = PrefixCache(capacity_blocks, block_size, records_events=gate.records_events)
        self.metrics = EventMetrics()
        self.requests = 0
        self.hit_blocks = 0
        self.prompt_blocks = 0
        self.publisher = gate.create_publisher()

    def run(self, requests: Iterable[Request], stop: threading.Event) -> None:
        """Serve ``requests``, each no sooner than it arrives, until they end or ``stop`` is set."""
        started_s = time.monotonic()
        for request in requests:
            wait_s = started_s + request.arrival_s - time.monotonic()
            if stop.wait(wait_s) if wait_s > 0 else stop.is_set():
                return
            self.serve(request)

    def serve(self, request: Request) -> None:
        """Prefill the prompt, then decode the output, publishing once per step that says more."""
        chain = Chain(self.cache.block_size, request.prompt)
        stored = self.cache.store(chain)
        self.requests += 1
        self.publisher.note_requests()
        self.hit_blocks += stored.hit
        self.prompt_blocks += len(chain.blocks)
        self._publish_step()
        for start in range(0, len(request.output), chain.block_size):
            chain.extend(request.output[start : start + chain.block_size])
            self.cache.store(chain)
            self._publish_step()

    def flush_cache(self) -> None:
        """Forget every block, as an operator's flush or new weights do."""
        self.cache.clear()
        self._publish_step()

    def _publish_step(self) -> None:
        events = self.cache.take_events()
        if not events:
            return
        if self.gate.collects_metrics:
            self.metrics.observe(events)
        self.publisher.publish(KVEventBatch(ts=time.time(), events=list(events)))
