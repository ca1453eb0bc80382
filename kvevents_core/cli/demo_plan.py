"""What a demo is going to run: the layout, the configuration and one job per process.

Pure but for the choice of free ports and of a name nobody has used.
"""

from __future__ import annotations

import random
import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Final

from kvevents_core import Layout, Placement
from kvevents_core.cli.output import UsageError
from kvevents_core.simulation.job import Job
from kvevents_core.suggestions import nearest

_SIZES: Final = {
    "tp": "tp_size",
    "cp": "attn_cp_size",
    "pp": "pp_size",
    "dp": "dp_size",
    "attn_dp": "attn_dp_size",
}
BREAKS: Final = ("tp", "cp", "pp", "dp")
_HEARTBEAT_S: Final = 1.0
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """One demo run, decided in full before anything starts."""

    layout: Layout
    config: dict[str, Any]
    jobs: tuple[Job, ...]
    """One per process, in the order of ``Layout.placements``."""
    broken: str | None
    """The part of the rule that the processes do not know, or None."""
    publishers_bind: bool
    """Whether each publisher listens on an address of its own on this machine."""


@dataclass(frozen=True, slots=True)
class Workload:
    """How much every process does."""

    seconds: float = 5.0
    rate_per_s: float = 20.0
    """Requests per second and data-parallel rank."""
    capacity_blocks: int = 1200
    block_size: int = 16
    seed: int = 0


def parse_layout(text: str) -> Layout:
    """Return the layout that ``tp=2,cp=2,pp=2`` names; sizes left out are 1.

    Raises:
        UsageError: A part is not ``name=size``, or a name is unknown or given twice.
        LayoutError: The sizes do not fit together.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, size = (piece.strip() for piece in part.partition("="))
        if name not in _SIZES:
            near = nearest(name, _SIZES)
            meant = f"did you mean {near!r}? " if near else ""
            raise UsageError(
                f"--layout {text!r}: {name!r} is no parallel size; {meant}known are "
                f"{', '.join(_SIZES)}, for instance tp=2,cp=2,pp=2"
            )
        if _SIZES[name] in sizes:
            raise UsageError(f"--layout {text!r}: {name} is given twice")
        if not equals or not size.isascii() or not size.isdigit():
            raise UsageError(
                f"--layout {text!r}: {part!r} is not a size; write for instance {name}=2"
            )
        sizes[_SIZES[name]] = int(size)
    return Layout(**sizes)


def place_name(place: Placement) -> str:
    """Return a short name of ``place``, such as ``dp1.pp0.tp3``; sizes of 1 are left out."""
    parts = [
        f"{kind}{rank}"
        for kind, rank, size in (
            ("dp", place.dp_rank or 0, place.dp_size),
            ("pp", place.pp_rank, place.pp_size),
            ("tp", place.tp_rank, place.tp_size),
        )
        if size > 1
    ]
    return ".".join(parts) or "tp0"


def blind(place: Placement, dimension: str) -> Placement:
    """Return where a process that overlooks ``dimension`` believes it sits: at its rank 0.

    This is how the demo breaks the rule: the gate itself is the real one, but it is told the ranks
    as an engine would that forgot one kind of parallelism.
    """
    group = place.attn_tp_size * place.attn_cp_size
    match dimension:
        case "tp":
            return replace(place, tp_rank=place.tp_rank - place.attn_tp_rank)
        case "cp":
            return replace(place, tp_rank=place.tp_rank - place.attn_cp_rank * place.attn_tp_size)
        case "pp":
            return replace(place, pp_rank=0)
        case "dp":
            return replace(place, dp_rank=0, tp_rank=place.tp_rank % group)
    raise UsageError(f"--break {dimension!r}: known are {', '.join(BREAKS)}")


def make_plan(
    layout: Layout,
    publisher: str,
    given: Mapping[str, Any],
    workload: Workload,
    *,
    broken: str | None = None,
    connect: bool = False,
) -> DemoPlan:
    """Decide the whole run.

    Args:
        layout: The processes of the engine.
        publisher: Name of the backend.
        given: Keys the operator gave; they win over what the demo would choose.
        workload: How much to do.
        broken: Part of the rule to disable, one of ``BREAKS``, or None.
        connect: ZMQ only: publishers connect and the reader binds.

    Raises:
        UsageError: The request makes no sense; the message says why.
    """
    if publisher in {"null", "memory"}:
        why = "publishes nothing" if publisher == "null" else "never leaves its process"
        raise UsageError(
            f"the demo needs a transport between processes and {publisher!r} {why}; "
            "see: kvevents backends"
        )
    if connect and publisher != "zmq":
        raise UsageError("--connect is for zmq: with a broker both sides connect anyway")
    if broken is not None:
        _check_break(layout, broken)
    config = {
        "publisher": publisher,
        "enable_kv_cache_events": True,
        "model": "demo",
        "instance": f"demo-{secrets.token_hex(4)}",
        "heartbeat_s": _HEARTBEAT_S,
        **(_zmq_addresses(layout.stream_ranks, connect=connect) if publisher == "zmq" else {}),
        **given,
    }
    if "endpoint" in given and "replay_endpoint" not in given:
        config.pop("replay_endpoint", None)
    jobs = tuple(
        _job(config, place, blind(place, broken) if broken else place, workload)
        for place in layout.placements()
    )
    return DemoPlan(layout, config, jobs, broken, publisher == "zmq" and not connect)


def _job(config: dict[str, Any], place: Placement, claimed: Placement, workload: Workload) -> Job:
    requests = max(1, round(workload.seconds * workload.rate_per_s))
    return Job(
        config=config,
        placement=place,
        claimed=claimed,
        seed=workload.seed + place.stream_rank,
        requests=requests,
        flush_before=requests // 3,
        rate_per_s=workload.rate_per_s,
        capacity_blocks=workload.capacity_blocks,
        block_size=workload.block_size,
    )


def _check_break(layout: Layout, broken: str) -> None:
    """Refuse a break that would leave every process where it is."""
    for place in layout.placements():
        claimed = blind(place, broken)
        if claimed.is_publisher and (
            not place.is_publisher or claimed.stream_rank != place.stream_rank
        ):
            return
    size = {"tp": "attention TP", "cp": "attention CP", "pp": "PP", "dp": "DP"}[broken]
    raise UsageError(
        f"--break {broken} changes no publisher in this layout: its {size} size is 1; "
        f"give --layout a larger one, for instance {'tp=2,cp=2' if broken == 'cp' else broken + '=2'}"
    )


def _zmq_addresses(streams: int, *, connect: bool) -> dict[str, Any]:
    if connect:
        return {"endpoint": f"tcp://{_LOOPBACK}:{free_ports(streams)}", "bind": False}
    first = free_ports(2 * streams)
    return {
        "endpoint": f"tcp://{_LOOPBACK}:{first}",
        "bind": True,
        "replay_endpoint": f"tcp://{_LOOPBACK}:{first + streams}",
    }


def free_ports(count: int) -> int:
    """Return the first of ``count`` consecutive loopback ports that are free just now.

    They lie below the range that systems hand out to outgoing connections, so that nobody takes
    one by chance before the publishers bind.
    """
    for _ in range(200):
        first = random.randrange(15_000, 32_000 - count)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server((_LOOPBACK, port)))
            except OSError:
                continue
            return first
    raise UsageError(f"no {count} consecutive free ports were found; give an endpoint in --config")
