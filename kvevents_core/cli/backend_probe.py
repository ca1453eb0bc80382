"""Loads one backend and says what it can do: ``python -m kvevents_core.cli.backend_probe NAME``.

A process of its own, so that a package that hangs, prints or dies at import disturbs nobody.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

from kvevents_core.errors import BackendError
from kvevents_core.plugins import load_backend

_TIMEOUT_S: Final = 30.0
_MARK: Final = "kvevents-probe:"
"""Begins the one line that is the answer; whatever else a package prints is ignored."""


def probe(name: str) -> dict[str, Any]:
    """Return ``{"capabilities": {...}}`` of backend ``name`` or ``{"problem": "..."}``."""
    command = [sys.executable, "-m", "kvevents_core.cli.backend_probe", name]
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"importing it did not end within {_TIMEOUT_S:g} s"}
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return answer
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    return {"problem": f"importing it ended the process (exit code {done.returncode}): {last}"}


def main(name: str) -> None:
    """Print the answer for backend ``name``."""
    try:
        backend = load_backend(name)
        answer: dict[str, Any] = {
            "contract_version": backend.contract_version,
            "capabilities": asdict(backend.capabilities),
        }
    except BackendError as exc:
        answer = {"problem": str(exc)}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
