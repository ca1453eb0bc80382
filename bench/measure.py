"""Interleaved trials, their medians and spread, and the lines of the table made of them."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import engines
from bench.contenders import NONE, OURS, PROCESS

ROOT = Path(__file__).parent.parent
TRIAL_TIMEOUT_S = 120.0


@dataclass
class Line:
    """One line of the table."""

    what: str
    ours: str
    theirs: dict[str, str] = field(default_factory=dict)
    ratio: str = ""
    target: str = ""
    met: bool | None = None
    """None where there is nothing to hold it against."""
    at_limit: bool = False
    """Whether ours is as good as a publisher that has nothing to do (``ready_made``)."""

    @property
    def verdict(self) -> str:
        if self.met is False and self.at_limit:
            return "missed, at the limit"
        return {True: "met", False: "MISSED", None: "-"}[self.met]


@dataclass
class Found:
    """Everything the trials of one row and setting told, by contender, in the order of rounds."""

    trials: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def values(self, contender: str, key: str) -> list[float]:
        return [float(trial[key]) for trial in self.trials.get(contender, []) if key in trial]

    def median(self, contender: str, key: str) -> float:
        return statistics.median(self.values(contender, key))

    def curve(self, contender: str, key: str = "curve_us") -> list[float]:
        """Return the median of each percentile over the rounds."""
        curves = [trial[key] for trial in self.trials.get(contender, [])]
        return [statistics.median(points) for points in zip(*curves, strict=True)]

    def others(self) -> list[str]:
        return [name for name in self.trials if name not in (OURS, PROCESS, NONE)]

    def of_process(self) -> Found:
        """Return the same with our sender process in the place of our thread."""
        rest = {n: trials for n, trials in self.trials.items() if n not in (OURS, PROCESS)}
        return Found({OURS: self.trials[PROCESS], **rest})


def run_trial(row: str, contender: str, **settings: Any) -> dict[str, Any]:
    """Run one trial in a process of its own and return what it found.

    Raises:
        RuntimeError: It failed; the text ends with what it printed.
    """
    command = [sys.executable, "-m", "bench.trial", row, contender, json.dumps(settings)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TRIAL_TIMEOUT_S, check=False
    )
    if done.returncode or not done.stdout.strip():
        raise RuntimeError(f"{row} of {contender} failed:\n{done.stdout}{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def everybody() -> list[str]:
    """Return ours, the engines that can be had, and the contender that does nothing."""
    return [OURS, *(engine.name for engine in engines.available()), NONE]


def with_process() -> list[str]:
    """Return who takes part in a row that our sender process is measured in, too."""
    return [OURS, PROCESS, *everybody()[1:-1]]


def interleave(
    row: str, rounds: int, contenders: Sequence[str] | None = None, **settings: Any
) -> Found:
    """Run ``rounds`` rounds, in each every contender once, another one first each time."""
    names = list(contenders or everybody()[:-1])
    found = Found({name: [] for name in names})
    for number in range(rounds):
        turn = number % len(names)
        for name in (*names[turn:], *names[:turn]):
            found.trials[name].append(run_trial(row, name, **settings))
    return found


def spread(values: Sequence[float], unit: str = "", digits: int | None = None) -> str:
    """Return median (min - max)."""
    if not values:
        return "-"
    middle = statistics.median(values)
    many = digits if digits is not None else _digits(middle)
    low, high = f"{min(values):,.{many}f}", f"{max(values):,.{many}f}"
    return f"{middle:,.{many}f}{unit} ({low} - {high})"


def _digits(value: float) -> int:
    return 0 if value >= 100 else 1 if value >= 10 else 2


def compare(
    found: Found,
    what: str,
    key: str,
    *,
    unit: str,
    at_most: float | None = None,
    at_least: float | None = None,
    of: Callable[[float], float] = lambda value: value,
) -> Line:
    """Return the line that holds our ``key`` against each other contender's as a ratio.

    The ratio is the median over the rounds of ours / theirs, so that what slows down a whole round
    cancels; the limit must hold against every contender.
    """
    ours = [of(value) for value in found.values(OURS, key)]
    theirs = {n: [of(value) for value in found.values(n, key)] for n in found.others()}
    ratios = {
        name: statistics.median(
            a / b if b else float("inf")
            for a, b in zip(ours, values, strict=False)  # a round may have failed
        )
        for name, values in theirs.items()
        if values
    }
    met: bool | None = None
    target = ""
    if at_most is not None:
        target = f"<= {at_most:g} x theirs"
        met = all(ratio <= at_most for ratio in ratios.values()) if ratios else None
    if at_least is not None:
        target = f">= {at_least:g} x theirs"
        met = all(ratio >= at_least for ratio in ratios.values()) if ratios else None
    return Line(
        what,
        spread(ours, unit),
        {name: spread(values, unit) for name, values in theirs.items()},
        " / ".join(f"{ratio:.3g}" for ratio in ratios.values()),
        target,
        met,
    )


def limit(what: str, values: Sequence[float], *, unit: str, at_most: float) -> Line:
    """Return the line that holds the median of ``values`` against a limit of its own."""
    return Line(
        what,
        spread(values, unit),
        target=f"<= {at_most:g}{unit}",
        met=statistics.median(values) <= at_most,
    )


def show(title: str, lines: Sequence[Line]) -> str:
    """Return the lines as a Markdown table."""
    names = list(dict.fromkeys(name for line in lines for name in line.theirs))
    head = ["what", "kvevents", *names, "ours / theirs", "target", "verdict"]
    rows = [
        [
            line.what,
            line.ours,
            *(line.theirs.get(name, "") for name in names),
            line.ratio,
            line.target,
            line.verdict,
        ]
        for line in lines
    ]
    text = [f"### {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return "\n".join([*text, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def main(title: str, run: Callable[[int], Sequence[Line]], rounds: int) -> None:
    """Run one row from the command line."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--rounds", type=int, default=rounds)
    options = parser.parse_args()
    print(show(title, run(options.rounds)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
