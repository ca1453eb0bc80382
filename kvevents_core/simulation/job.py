"""What the demo tells an engine process to do, and the words the two exchange.

The parent writes lines to the child's standard input: the job as JSON, then ``GO``, then ``STOP``;
the end of that stream, however it comes about, also means stop, so no child outlives its parent.
The child writes one JSON object a line: ``ready`` or ``failed``, ``progress``, ``done``, ``log``.
Opens nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, Self

from kvevents_core.ranks import Placement
from kvevents_core.simulation.traffic import Request, TrafficShape, make_requests

GO: Final = "go"
STOP: Final = "stop"


@dataclass(frozen=True, slots=True)
class Job:
    """The work of one engine process."""

    config: dict[str, Any]
    """The ``--kv-events-config`` object, the same for every process of an engine."""
    placement: Placement
    """Where the process really sits."""
    claimed: Placement
    """Where it tells the gate that it sits; another place only to show what a broken rule does."""
    seed: int
    """Processes that hold one cache share a seed."""
    requests: int
    flush_before: int
    """Index of the request before which the cache is flushed once; never if beyond the last."""
    rate_per_s: float
    capacity_blocks: int
    block_size: int

    def traffic(self) -> Iterator[Request]:
        """Yield the requests of this process, the same in every process with this seed."""
        shape = TrafficShape(rate_per_s=self.rate_per_s)
        return islice(make_requests(self.seed, shape), self.requests)

    def to_line(self) -> str:
        """Return the job as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the job that ``to_line`` wrote."""
        fields = json.loads(line)
        fields["placement"] = Placement(**fields["placement"])
        fields["claimed"] = Placement(**fields["claimed"])
        return cls(**fields)
