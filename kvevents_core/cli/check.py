"""``kvevents check``: a configuration as the engine would take it, and whether it can work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from kvevents_core import KVEventsConfig, settings
from kvevents_core.cli.addresses import stream_addresses
from kvevents_core.cli.given_config import Setting, effective_settings
from kvevents_core.cli.output import FAILED, OK, console, print_json
from kvevents_core.cli.reach import Reached, reach


def check(
    config: Annotated[
        str | None, typer.Argument(help="The --kv-events-config, JSON or @FILE.")
    ] = None,
    *,
    connect: Annotated[
        bool, typer.Option("--connect", help="Also reach the transport, as a publisher would.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds that --connect waits for an answer.", min=0.1)
    ] = 10.0,
    rank: Annotated[int, typer.Option(help="Stream rank that --connect opens.", min=0)] = 0,
    dp_size: Annotated[
        int | None,
        typer.Option(help="Check that N stream ranks have an address each.", metavar="N", min=1),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> int:
    """Validate a configuration exactly as an engine does and show where each setting came from.

    Reads the environment (KVEVENTS_...) and the secrets directory too; secrets are not shown. Exit
    code 2 if the configuration is wrong, 1 if --connect cannot reach the transport.
    """
    with _warnings_shown_once():
        parsed = KVEventsConfig.from_cli(config)
    addresses = stream_addresses(parsed, dp_size or parsed.dp_size or rank + 1)
    reached = reach(parsed, rank, timeout) if connect else None
    if json_:
        print_json(
            {
                "ok": reached is None or reached.is_ok,
                "enabled": parsed.enabled,
                "publisher": parsed.publisher,
                "settings": [asdict(setting) for setting in effective_settings(parsed)],
                "addresses": {str(each): where for each, where in addresses.items()},
                "warnings": list(parsed.warnings),
                "reached": asdict(reached) if reached else None,
            }
        )
    else:
        _print(parsed, addresses, reached)
    return OK if reached is None or reached.is_ok else FAILED


@contextmanager
def _warnings_shown_once() -> Iterator[None]:
    """Keep the settings' warnings out of the log: this command prints them where they belong."""
    logger = logging.getLogger(settings.__name__)
    logger.addFilter(_nothing)
    try:
        yield
    finally:
        logger.removeFilter(_nothing)


def _nothing(_record: logging.LogRecord) -> bool:
    return False


def _print(parsed: KVEventsConfig, addresses: dict[int, str], reached: Reached | None) -> None:
    out = console()
    out.print(_table(effective_settings(parsed)))
    out.print()
    state = f"publishes over {parsed.publisher}" if parsed.enabled else "publishes nothing"
    out.print(Text(f"configuration is valid; it {state}"))
    for rank, where in addresses.items():
        out.print(Text(f"stream {rank}: {where}"))
    for warning in parsed.warnings:
        out.print(Text(f"warning: {warning}", style="yellow"))
    if reached is not None:
        style = "green" if reached.is_ok else "bold red"
        out.print(Text(f"{'OK' if reached.is_ok else 'FAILED'}  {reached.detail}", style=style))


def _table(settings: list[Setting]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("key", "value", "origin"):
        table.add_column(column, overflow="fold")
    owner = "kvevents"
    for setting in settings:
        if setting.owner != owner:
            owner = setting.owner
            table.add_section()
        style = "dim" if setting.origin == "default" else None
        table.add_row(Text(setting.key), Text(setting.value), Text(setting.origin), style=style)
    return table
