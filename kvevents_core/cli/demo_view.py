"""Draws a demo: live tables while it runs, a verdict in words at the end."""

from __future__ import annotations

import time
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvevents_core.cli.demo_verdict import Verdict
from kvevents_core.cli.demo_watch import DemoWatch, ProcessWatch

_RATED: Final = ("requests", "published_batches", "published_events")
_BAR: Final = 12


class DemoView:
    """Turns what was seen into tables; remembers earlier counts to work out rates."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self._earlier: dict[int, tuple[float, dict[str, Any]]] = {}
        self._rates: dict[int, dict[str, float]] = {}

    def draw(self, watch: DemoWatch) -> RenderableType:
        """Return the tables for now."""
        processes = Table(title="engine processes", title_justify="left", box=None, pad_edge=False)
        for column in ("process", "role", "requests/s", "batches/s", "events/s", "hit", "cache"):
            right = column.endswith("/s") or column == "hit"
            processes.add_column(column, justify="right" if right else "left", no_wrap=True)
        for index, process in enumerate(watch.processes):
            processes.add_row(*self._process_row(index, process))
        headline = (
            f"{len(watch.processes)} processes, {watch.plan.layout.stream_ranks} streams over "
            f"{watch.plan.config['publisher']}, {time.monotonic() - self._started_s:.0f} s"
        )
        return Group(Text(headline), Text(""), processes, Text(""), _streams_table(watch))

    def _process_row(self, index: int, process: ProcessWatch) -> list[str | Text]:
        self._measure(index, process)
        rates = self._rates.get(index, {})
        progress = process.progress
        looked_up = progress.get("prompt_blocks", 0)
        hit = f"{progress['hit_blocks'] / looked_up:.0%}" if looked_up else ""
        quiet = process.ready is not None and not process.wants_to_publish
        return [
            process.name,
            _role(process),
            f"{rates.get('requests', 0):.0f}",
            "-" if quiet else f"{rates.get('published_batches', 0):.0f}",
            "-" if quiet else f"{rates.get('published_events', 0):.0f}",
            hit,
            _bar(progress.get("cached_blocks", 0), process.job.capacity_blocks),
        ]

    def _measure(self, index: int, process: ProcessWatch) -> None:
        """Work out rates whenever at least half a second of new counts has come."""
        if not process.progress:
            return
        now_s = time.monotonic()
        before_s, before = self._earlier.get(index, (0.0, {}))
        if before is process.progress or now_s - before_s < 0.5:
            return
        if before:
            self._rates[index] = {
                name: (process.progress[name] - before[name]) / (now_s - before_s)
                for name in _RATED
            }
        self._earlier[index] = (now_s, process.progress)


def print_verdict(console: Console, watch: DemoWatch, verdict: Verdict) -> None:
    """Print the outcome in words."""
    facts = verdict.facts
    console.print()
    for log in [line for process in watch.processes for line in process.logs][:8]:
        console.print(Text(log, style="yellow"))
    console.print(f"streams      {facts['streams']} seen, {facts['expected_streams']} expected")
    for rank in range(facts["expected_streams"]):
        names = [_publisher_line(each) for each in facts["publishers"][str(rank)]] or ["nobody"]
        console.print(f"  stream {rank:<4}published by {'; '.join(names)}")
    silent = [process for process in watch.processes if not process.wants_to_publish]
    recorded = sum(process.progress.get("recorded_events", 0) for process in silent)
    console.print(f"silent       {len(silent)} processes, {recorded} events recorded by them")
    console.print(
        f"read         {facts['batches']} batches, {facts['events']} events, "
        f"{facts['duplicates']} duplicates, {facts['gaps']} gaps"
    )
    equal = "equal to" if facts["mirror_equal"] else "NOT equal to"
    console.print(f"mirror       {facts['mirrored_blocks']} blocks, {equal} the caches' own dumps")
    console.print()
    for problem in verdict.problems:
        console.print(Text(f"FAILED  {problem}", style="bold red"))
    if verdict.is_ok:
        passed = "exactly one stream per data-parallel rank, whole and true to the cache"
        console.print(Text(f"OK  {passed}", style="bold green"))


def _publisher_line(publisher: dict[str, Any]) -> str:
    refused = ", refused" if publisher["refused"] else ""
    name = f"{publisher['process']} (pid {publisher['pid']}{refused})"
    where = ", ".join(publisher["listening"] or ())
    return f"{name} on {where}" if where else name


def _role(process: ProcessWatch) -> Text:
    if process.failed is not None:
        return Text("refused", style="bold red")
    if process.ready is None:
        return Text("starting", style="dim")
    if process.wants_to_publish:
        return Text(f"publishes stream {process.stream_rank}", style="green")
    return Text("silent", style="dim")


def _bar(used: int, capacity: int) -> str:
    filled = round(_BAR * used / capacity)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {used}/{capacity}"


def _streams_table(watch: DemoWatch) -> Table:
    table = Table(title="what the reader sees", title_justify="left", box=None, pad_edge=False)
    for column in (
        "stream",
        "seq",
        "batches",
        "events",
        "replayed",
        "gaps",
        "conflicts",
        "mirror",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for rank, stream in sorted(watch.streams.items()):
        table.add_row(
            str(rank),
            str(stream.last_seq),
            str(stream.batches),
            str(stream.events),
            str(stream.replayed),
            str(len(stream.gaps)),
            str(len(stream.conflicts)),
            f"{len(watch.mirrored_blocks(rank))} blocks",
        )
    return table
