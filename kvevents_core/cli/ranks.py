"""``kvevents ranks``: which process of an engine publishes what, and where."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from kvevents_core import KVEventsConfig, Layout, Placement
from kvevents_core.cli.addresses import stream_addresses
from kvevents_core.cli.demo_plan import place_name
from kvevents_core.cli.output import OK, console, print_json


def ranks(
    *,
    tp: Annotated[int, typer.Option(help="Tensor-parallel size of one pipeline stage.")] = 1,
    cp: Annotated[int, typer.Option(help="Attention context-parallel size.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline-parallel size.")] = 1,
    dp: Annotated[int, typer.Option(help="Replicas under pure data parallelism.")] = 1,
    attn_dp: Annotated[int, typer.Option(help="Attention data-parallel size.")] = 1,
    config: Annotated[
        str | None,
        typer.Option(help="The --kv-events-config, JSON or @FILE, to show each stream's address."),
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Short for --config with a ZMQ endpoint of rank 0.")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> int:
    """List every process of a layout: its ranks, its stream and whether it publishes it.

    Exactly one process publishes each stream; sizes are SGLang's (--tp includes CP and
    attention DP). The addresses are those that publishers with this configuration use.
    """
    layout = Layout(tp, pp, cp, attn_dp, dp)
    addresses = _addresses(config, endpoint, layout)
    if json_:
        print_json(_as_json(layout, addresses))
        return OK
    table = Table(box=None, pad_edge=False)
    for column in ("process", "tp", "pp", "dp", "attn tp", "attn cp", "attn dp", "stream"):
        table.add_column(column, justify="left" if column == "process" else "right")
    table.add_column("decision")
    for place in layout.placements():
        table.add_row(*map(str, _row(place)), style=None if place.is_publisher else "dim")
    out = console()
    out.print(table)
    out.print()
    for place in layout.publishers():
        where = addresses.get(place.stream_rank)
        at = f" at {where}" if where else ""
        out.print(f"stream {place.stream_rank} is published by {place_name(place)}{at}")
    return OK


def _addresses(config: str | None, endpoint: str | None, layout: Layout) -> dict[int, str]:
    """Return the address of each stream rank as far as one is configured."""
    if config is None and endpoint is None:
        return {}
    if config is None:
        parsed = KVEventsConfig.from_mapping(
            {"publisher": "zmq", "enable_kv_cache_events": True, "endpoint": endpoint},
            origin="--endpoint",
        )
    elif endpoint is None:
        parsed = KVEventsConfig.from_cli(config)
    else:
        raise typer.BadParameter("--endpoint and --config exclude each other")
    return stream_addresses(parsed, layout.stream_ranks)


def _row(place: Placement) -> tuple[Any, ...]:
    return (
        place_name(place),
        place.tp_rank,
        place.pp_rank,
        place.dp_rank,
        place.attn_tp_rank,
        place.attn_cp_rank,
        place.attn_dp_rank,
        place.stream_rank,
        "publishes" if place.is_publisher else place.explain().partition(";")[0],
    )


def _as_json(layout: Layout, addresses: dict[int, str]) -> dict[str, Any]:
    places = [
        {
            "process": place_name(place),
            "tp_rank": place.tp_rank,
            "pp_rank": place.pp_rank,
            "dp_rank": place.dp_rank,
            "attn_tp_rank": place.attn_tp_rank,
            "attn_cp_rank": place.attn_cp_rank,
            "attn_dp_rank": place.attn_dp_rank,
            "stream_rank": place.stream_rank,
            "is_publisher": place.is_publisher,
            "address": addresses.get(place.stream_rank) if place.is_publisher else None,
            "why": place.explain(),
        }
        for place in layout.placements()
    ]
    publishers = [each for each in places if each["is_publisher"]]
    return {
        "processes": layout.processes,
        "streams": layout.stream_ranks,
        "placements": places,
        "publishers": publishers,
    }
