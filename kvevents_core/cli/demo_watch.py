"""What a demo sees while it runs: what each process reports and what the reader receives.

Facts only; ``demo_verdict`` judges them and ``demo_view`` draws them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvevents_core import Batch, Conflict, Gap, Mirror, Restarted, Silent, StreamId
from kvevents_core.cli.demo_plan import DemoPlan, place_name
from kvevents_core.items import Item
from kvevents_core.simulation.job import Job


@dataclass(slots=True)
class ProcessWatch:
    """One engine process, by its own reports and by its parent's account of its life."""

    job: Job
    name: str
    """Short name of where it really sits."""
    pid: int = 0
    ready: dict[str, Any] | None = None
    """What it held right after it started."""
    failed: dict[str, Any] | None = None
    """Why it could not start."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Its latest counters."""
    done: dict[str, Any] | None = None
    """Its cache, counters and holdings after the last request."""
    exit_code: int | None = None
    """None while it runs."""
    logs: list[str] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether it has started or will never do so."""
        return self.ready is not None or self.failed is not None or self.exit_code is not None

    @property
    def is_finished(self) -> bool:
        """Whether it has served all it will."""
        return self.done is not None or self.failed is not None or self.exit_code is not None

    @property
    def wants_to_publish(self) -> bool:
        """Whether its gate is open, be it that it publishes or that it was refused."""
        facts = self.ready or self.failed
        return bool(facts and facts["publishes"])

    @property
    def stream_rank(self) -> int:
        """The stream it publishes or would publish."""
        return self.job.claimed.stream_rank

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of the process."""
        facts = {key: value for key, value in message.items() if key != "kind"}
        match message["kind"]:
            case "ready":
                self.ready = facts
            case "failed":
                self.failed = facts
            case "progress":
                self.progress = facts
            case "done":
                self.done = self.progress = facts
            case "exited":
                self.exit_code = facts["code"]
            case "log":
                self.logs.append(f"{self.name}: {facts['message']}")


@dataclass(slots=True)
class StreamWatch:
    """One stream as the reader receives it."""

    stream: StreamId
    batches: int = 0
    heartbeats: int = 0
    """Those of the batches that hold no event."""
    events: int = 0
    replayed: int = 0
    skipped_events: int = 0
    last_seq: int = -1
    gaps: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    restarts: int = 0

    def take(self, item: Item) -> None:
        """Count one item of the subscription."""
        match item:
            case Batch():
                self.batches += 1
                self.heartbeats += not item.events
                self.events += len(item.events)
                self.replayed += item.replayed
                self.skipped_events += item.skipped_events
                self.last_seq = item.seq
            case Gap():
                self.gaps.append(f"seq {item.first_seq}-{item.last_seq} lost: {item.reason}")
                self.last_seq = item.last_seq
            case Conflict():
                self.conflicts.append(f"seq {item.seq}: {item.detail}")
            case Restarted():
                self.restarts += 1
            case Silent():
                pass


class DemoWatch:
    """Everything seen so far."""

    def __init__(self, plan: DemoPlan) -> None:
        self.plan = plan
        self.processes = [ProcessWatch(job, place_name(job.placement)) for job in plan.jobs]
        self.streams: dict[int, StreamWatch] = {}
        """By stream rank, those that were seen."""
        self.mirror = Mirror()

    def take_message(self, index: int, message: dict[str, Any]) -> None:
        """Take one message of process ``index``."""
        self.processes[index].take(message)

    def take_item(self, item: Item) -> None:
        """Take one item of the reader's subscription."""
        self.mirror.apply(item)
        rank = item.stream.rank
        if rank not in self.streams:
            self.streams[rank] = StreamWatch(item.stream)
        self.streams[rank].take(item)

    def publishers(self, rank: int) -> list[ProcessWatch]:
        """Return the processes whose gate is open for stream ``rank``, refused ones included."""
        return [
            process
            for process in self.processes
            if process.wants_to_publish and process.stream_rank == rank
        ]

    def has_read_everything(self) -> bool:
        """Whether the reader has what every publisher had sent when it was done."""
        for process in self.processes:
            if process.done is None or not process.wants_to_publish:
                continue
            seen = self.streams.get(process.stream_rank)
            if seen is None or seen.last_seq < process.done["next_seq"] - 1:
                return False
        return True

    def mirrored_blocks(self, rank: int) -> frozenset[Any]:
        """Return the canonical hashes that the reader believes stream ``rank`` to hold."""
        seen = self.streams.get(rank)
        return self.mirror.blocks(seen.stream) if seen else frozenset()
