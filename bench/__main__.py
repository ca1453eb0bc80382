"""Every row of the table, written to ``bench/RESULTS.md``: ``python -m bench`` or ``make bench``.

``--only paced,burst`` runs some rows and leaves the file alone. ``--more 3`` triples the rounds. On a
machine that others use, ``--weighty`` gives the runs most of the processors (Linux, as root).
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from bench import engines
from bench.measure import ROOT, Line, show

ROWS = {
    "paced": 5,
    "burst": 3,
    "throughput": 5,
    "starved": 5,
    "starved_brokers": 3,
    "replay": 3,
    "stalled": 1,
    "memory": 1,
    "idle": 2,
    "imports": 7,
    "decode": 5,
    "streams": 3,
    "arrays": 3,
    "callers": 3,
}
"""Row modules and their rounds."""
BROKERS = {
    "JetStream: acknowledged records": ["bench/nats_throughput.py", "--records", "5000"],
    "Kafka: confirmed records": ["bench/kafka_throughput.py", "--records", "5000"],
}
"""Scripts that measure beside plain clients on real brokers and print tables of their own."""
RESULTS = Path(__file__).with_name("RESULTS.md")
INTRODUCTION = """# Results

Made by `make bench` (`python -m bench`); see [performance](../docs/explanation/performance.md) for what
the rows mean. Each figure is the median over the rounds, with the least and the greatest; every round runs
each contender once, in turns, and a ratio is the median of the rounds' ratios. Compare ratios: absolute
figures move with the machine.

"""


def take_weight() -> None:
    """Move to a session of its own, whose scheduling group weighs more than others'."""
    if os.getpid() == os.getsid(0):
        Path("/proc/self/autogroup").write_text("-10")
        return
    again = [sys.executable, "-m", "bench", *sys.argv[1:]]
    sys.exit(subprocess.run(again, start_new_session=True, check=False).returncode)


def machine(*, weighty: bool) -> str:
    """Return what the figures were measured on, as a Markdown list."""
    model = "unknown processor"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0].split(": ")[1] if names else model
    packages = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("kvevents", "msgspec", "pyzmq")
    )
    theirs = ", ".join(engine.requirement.replace("==", " ") for engine in engines.available())
    now = dt.datetime.now(dt.UTC)
    return (
        f"* {now:%Y-%m-%d %H:%M} UTC; {os.cpu_count()} x {model}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}\n"
        f"* {packages}; compared with {theirs or 'nobody'}\n"
        f"* load average before: {os.getloadavg()[0]:.1f} (whatever else ran on these cores counts "
        f"against everybody){'; raised weight' if weighty else ''}\n"
    )


def main() -> None:
    """Run the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(ROWS), help="row modules, separated by commas")
    parser.add_argument("--more", type=float, default=1.0, help="multiplies the rounds")
    parser.add_argument("--weighty", action="store_true", help="take most of a shared machine")
    options = parser.parse_args()
    if options.weighty:
        take_weight()
    about = machine(weighty=options.weighty)
    text = INTRODUCTION + about + "\n"
    print(about)
    missed: list[Line] = []
    began = time.monotonic()
    wanted = [name for name in options.only.split(",") if name]
    for name in wanted:
        row = importlib.import_module(f"bench.{name}")
        lines = row.run(max(1, round(ROWS[name] * options.more)))
        missed += [line for line in lines if line.met is False]
        table = show(row.TITLE, lines)
        print(table, flush=True)
        text += table + "\n"
    if set(wanted) == set(ROWS):
        for title, command in BROKERS.items():
            table = beside_client(title, command, max(1, round(3 * options.more)))
            print(table, flush=True)
            text += table + "\n"
    print(f"{time.monotonic() - began:.0f} s")
    if set(wanted) == set(ROWS):
        RESULTS.write_text(text.rstrip() + "\n")
        draw_all()
    for line in missed:
        print(f"MISSED: {line.what}: {line.ours}, {line.ratio}, target {line.target}")
    sys.exit(bool(missed) and os.environ.get("KVEVENTS_BENCH_STRICT") == "1")


def beside_client(title: str, command: list[str], rounds: int) -> str:
    """Return what a script of ``BROKERS`` printed, or why it could not."""
    whole = [sys.executable, *command, "--rounds", str(rounds)]
    done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"### {title}\n\nNot measured: {reason}\n"
    return f"### {title}\n\n{done.stdout.strip()}\n"


def draw_all() -> None:
    """Draw the pictures, if matplotlib is there."""
    try:
        from bench import pictures
    except ImportError as exc:
        print(f"no pictures: {exc}", file=sys.stderr)
    else:
        pictures.draw()


if __name__ == "__main__":
    main()
