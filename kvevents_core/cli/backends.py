"""``kvevents backends``: which transports are installed and whether they work."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kvevents_core.cli.backend_probe import probe
from kvevents_core.cli.output import FAILED, OK, console, print_json
from kvevents_core.plugins import installed_backends


def backends(
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="Load each one, in a process of its own, and say what it can."
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> int:
    """List the installed backends: name, provider, version and what keeps one from working.

    Listing imports none of them. With --check the exit code is 1 if one that has all it needs
    cannot be loaded.
    """
    found = [asdict(backend) for backend in installed_backends()]
    for backend in found:
        if check and backend["problem"] is None:
            backend.update(probe(backend["name"]))
        if check:
            backend["is_broken"] = backend["problem"] is not None and not backend["missing"]
    if json_:
        print_json({"backends": found})
    else:
        console().print(_table(found, check=check))
    return FAILED if any(backend.get("is_broken") for backend in found) else OK


def _table(found: list[dict[str, Any]], *, check: bool) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("name", "provider", "version", "state"):
        table.add_column(column, overflow="fold")
    for backend in found:
        table.add_row(
            Text(backend["name"]),
            Text(backend["distribution"]),
            Text(backend["version"]),
            _state(backend, check=check),
        )
    return table


def _state(backend: dict[str, Any], *, check: bool) -> Text:
    if backend["problem"] is not None:
        return Text(backend["problem"], style="yellow" if backend["missing"] else "red")
    if not check:
        return Text("installed", style="green")
    can = [name for name, able in backend["capabilities"].items() if able]
    return Text(f"works: {', '.join(can) or 'no special capabilities'}", style="green")
