"""What ``import kvevents_core`` adds to an engine that does not use it: ``python -m bench.imports``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from bench.measure import ROOT, Line, limit, main, spread

TITLE = "Import time"
ENGINE_HAS = (
    "import asyncio, importlib.metadata, json, logging, msgspec, pydantic, urllib.request, zmq"
)
"""What both engines import long before."""
CASES = {
    "import kvevents_core": ("import kvevents_core", 30.0),
    "the plugin that SGLang imports": ("import kvevents_core.engines.sglang", 30.0),
    "the plugin that vLLM imports": ("import kvevents_core.engines.vllm", 30.0),
    "a publisher over ZMQ, when one is wanted": (
        'import kvevents_core as k; k.KVEventsConfig.from_cli(\'{"publisher": "zmq"}\')',
        None,
    ),
}
"""What is timed, and its limit in milliseconds of CPU."""


def milliseconds(code: str) -> float:
    """Return how long ``code`` takes in a fresh interpreter that has what an engine has."""
    timed = (
        f"{ENGINE_HAS}\nimport time\nbegan = time.process_time()\n{code}\n"
        "print(1000 * (time.process_time() - began))"
    )
    command = [sys.executable, "-c", timed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(rounds: int) -> Sequence[Line]:
    """Measure and return the lines."""
    lines = []
    for what, (code, at_most) in CASES.items():
        values = [milliseconds(code) for _ in range(rounds)]
        if at_most is None:
            lines.append(Line(what, spread(values, " ms")))
        else:
            lines.append(limit(what, values, unit=" ms", at_most=at_most))
    return lines


if __name__ == "__main__":
    main(TITLE, run, rounds=9)
