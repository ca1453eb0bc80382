"""``kvevents tail``: what a stream says, live, one line each."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from kvevents_core import KVEventsConfig, Silent, Subscription, subscribe
from kvevents_core.cli.item_text import item_line, item_object
from kvevents_core.cli.output import FAILED, OK, print_error, print_json
from kvevents_core.items import Item

_POLL_S = 0.25


def tail(
    config: Annotated[
        str | None,
        typer.Argument(help="The publisher's own --kv-events-config, JSON or @FILE."),
    ] = None,
    *,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, or an ISO time (brokers).")
    ] = "earliest",
    rank: Annotated[
        list[int] | None, typer.Option(help="Stream rank to read; repeat for several.", min=0)
    ] = None,
    dp_size: Annotated[
        int | None, typer.Option(help="Read stream ranks 0 to N-1.", metavar="N", min=1)
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Dial this host instead of a wildcard address (ZMQ).")
    ] = None,
    count: Annotated[
        int | None, typer.Option(help="Stop after N items; fewer is a failure.", min=1)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after so long; nothing at all is a failure.", min=0)
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="With --json: print the tokens (users' prompts).")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> int:
    """Print batches, gaps, restarts and conflicts of one or more streams as they arrive.

    Takes the publisher's configuration: it connects where the publisher binds and binds where it
    connects. Runs until interrupted unless --count or --seconds ends it.
    """
    parsed = KVEventsConfig.from_cli(config)
    with subscribe(
        parsed, ranks=rank or None, dp_size=dp_size, host=host, start=start
    ) as subscription:
        seen = _follow(subscription, count, seconds, json_=json_, token_ids=token_ids)
    if seen >= (count or 1) or (count is None and seconds is None):
        return OK
    if seen == 0:
        print_error(
            f"nothing came within {seconds:g} s over {parsed.publisher}: is the publisher running, "
            "is this its configuration (try: kvevents check --connect), and does it serve requests?"
        )
    else:
        print_error(f"only {seen} of {count} items came within {seconds:g} s")
    return FAILED


def _follow(
    subscription: Subscription,
    count: int | None,
    seconds: float | None,
    *,
    json_: bool,
    token_ids: bool,
) -> int:
    """Print items until one of the limits is reached; return how many came from a publisher."""
    seen = 0
    deadline_s = None if seconds is None else time.monotonic() + seconds
    while True:
        left_s = _POLL_S if deadline_s is None else deadline_s - time.monotonic()
        if left_s <= 0:
            return seen
        for item in subscription.receive(min(left_s, _POLL_S)):
            _print_item(item, json_=json_, token_ids=token_ids)
            seen += not isinstance(item, Silent)
            if count is not None and seen >= count:
                return seen


def _print_item(item: Item, *, json_: bool, token_ids: bool) -> None:
    if json_:
        print_json(item_object(item, token_ids=token_ids))
    else:
        print(item_line(item), flush=True)
