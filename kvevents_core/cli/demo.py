"""``kvevents demo``: a simulated engine of many processes publishes exactly one stream per rank."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.live import Live

from kvevents_core import KVEventsConfig
from kvevents_core.cli.addresses import stream_addresses
from kvevents_core.cli.demo_plan import BREAKS, Workload, make_plan, parse_layout
from kvevents_core.cli.demo_run import run_demo
from kvevents_core.cli.demo_verdict import judge
from kvevents_core.cli.demo_view import DemoView, print_verdict
from kvevents_core.cli.demo_watch import DemoWatch
from kvevents_core.cli.given_config import read_object
from kvevents_core.cli.output import FAILED, OK, UsageError, console, print_json


def demo(
    *,
    layout: Annotated[
        str,
        typer.Option(
            help="Parallel sizes of the engine: tp, cp, pp, dp, attn_dp; default 1 each."
        ),
    ] = "tp=2,cp=2,pp=2",
    publisher: Annotated[
        str | None, typer.Option(help="Backend that carries the streams; default zmq.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long the traffic lasts.", min=0.1)] = 5.0,
    rate: Annotated[
        float, typer.Option(help="Requests per second and data-parallel rank.", min=0.1)
    ] = 20.0,
    config: Annotated[
        str | None,
        typer.Option(help="More --kv-events-config keys, as JSON or @FILE (broker address, ...)."),
    ] = None,
    break_: Annotated[
        str | None,
        typer.Option(
            "--break", help="Let the processes forget tp, cp, pp or dp, to see it caught."
        ),
    ] = None,
    connect: Annotated[
        bool, typer.Option("--connect", help="ZMQ: publishers connect and the reader binds.")
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the verdict as one line of JSON.")
    ] = False,
) -> int:
    """Run a simulated multi-rank engine and verify its streams end to end.

    One process per placement runs the same prefix cache on the same requests; each asks the real
    rank gate whether it publishes. A reader follows every stream, and what it learnt is compared
    block by block with what the caches hold. Exit code 1 if anything is not as it must be.
    """
    if break_ is not None and break_ not in BREAKS:
        raise UsageError(f"--break {break_!r}: known are {', '.join(BREAKS)}")
    given = read_object(config)
    plan = make_plan(
        parse_layout(layout),
        _publisher(publisher, given),
        given,
        Workload(seconds=seconds, rate_per_s=rate),
        broken=break_,
        connect=connect,
    )
    parsed = KVEventsConfig.from_mapping(plan.config, origin="--config")
    stream_addresses(parsed, plan.layout.stream_ranks)  # refuses ranks that cannot have one
    terminal = console()
    if json_ or not terminal.is_terminal:
        if not json_:
            print(f"running {len(plan.jobs)} processes for {seconds:g} s ...", flush=True)
        watch = run_demo(plan, parsed, seconds, _say_nothing)
    else:
        view = DemoView()
        with Live(console=terminal, auto_refresh=False, vertical_overflow="crop") as live:
            watch = run_demo(
                plan, parsed, seconds, lambda seen: live.update(view.draw(seen), refresh=True)
            )
    verdict = judge(watch)
    if json_:
        print_json(verdict.to_json())
    else:
        print_verdict(terminal, watch, verdict)
    return OK if verdict.is_ok and plan.broken is None else FAILED


def _publisher(asked: str | None, given: dict[str, Any]) -> str:
    named = given.get("publisher")
    if asked is not None and named not in {None, asked}:
        raise UsageError(f"--publisher is {asked!r} and --config says {named!r}; give one of them")
    return asked or (named if isinstance(named, str) else "zmq")


def _say_nothing(_watch: DemoWatch) -> None:
    """Take the place of the live view where there is no terminal."""
