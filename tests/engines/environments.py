"""Programs in an engine's environment, with this tree installed or without it."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any

from engines.drivers.talk import MARK

DRIVERS = Path(__file__).parent / "drivers"
CPU_PLATFORM = Path(__file__).parent / "cpu_platform"
"""A platform plugin for vLLM's GPU wheel, so that it runs in process without a GPU."""


class _BrokenKvevents:
    """A kvevents that stands on both entry-point groups and raises when it is imported."""

    def write(self, folder: Path) -> Path:
        """Write it into ``folder`` and return the folder for PYTHONPATH."""
        package = folder / "broken" / "kvevents_core"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise ImportError('half an upgrade')")
        metadata = folder / "broken" / "kvevents-9.9.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kvevents\nVersion: 9.9\n")
        (metadata / "entry_points.txt").write_text(
            "[sglang.srt.plugins]\nkvevents = kvevents_core.engines.sglang:register\n"
            "[vllm.general_plugins]\nkvevents = kvevents_core.engines.vllm:register\n"
        )
        return folder / "broken"


BROKEN_KVEVENTS = _BrokenKvevents()


class Process:
    """A process in an engine's environment that talks as ``drivers/talk.py`` says."""

    def __init__(self, command: list[str], environ: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command,
            env=environ,
            cwd=folder,  # not the clone: its own metadata would hide the installed one
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything printed so far, stderr included."""
        return "".join(self._lines)

    def hear(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Return what the process says next."""
        try:
            told = self._told.get(timeout=timeout_s)
        except queue.Empty:
            told = None
        if told is None:
            raise AssertionError(f"the driver said nothing more:\n{self.output[-4000:]}")
        return told

    def go_on(self) -> None:
        """Let the process continue after ``wait_for_word``."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def wait(self, timeout_s: float = 60.0) -> int:
        """Return the exit code."""
        code = self._process.wait(timeout_s)
        self._reader.join(timeout_s)
        return code

    def end(self) -> None:
        """Close its input, then end it by force if it does not leave."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        self._reader.join(10)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            if line.startswith(MARK):
                self._told.put(json.loads(line.removeprefix(MARK)))
        self._told.put(None)


class EngineEnvironment:
    """Runs programs in one engine's environment with this tree installed, or without.

    Args:
        python: The environment's interpreter.
        installed: This tree as pip installs it.
        folder: Working and home directory of what runs.
        newer: Python files of another release of the engine, which take precedence.
    """

    drivers = DRIVERS

    def __init__(
        self, python: Path, installed: Path, folder: Path, *, newer: Path | None = None
    ) -> None:
        self.python, self._installed, self.folder = python, installed, folder
        self._newer = [] if newer is None else [str(newer), str(CPU_PLATFORM)]
        self._started: list[Process] = []

    def environ(self, *, with_kvevents: bool = True, **variables: str) -> dict[str, str]:
        """Return an environment of our own: nothing of the caller's KVEVENTS_ variables."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KVEVENTS_", "PYTHON"))
        }
        paths = [*self._newer, str(DRIVERS), *([str(self._installed)] if with_kvevents else [])]
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HOME": str(self.folder),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            **variables,
        }

    def start(self, *arguments: str, with_kvevents: bool = True, **variables: str) -> Process:
        """Start the interpreter with ``arguments``; ended with the test."""
        environ = self.environ(with_kvevents=with_kvevents, **variables)
        process = Process([str(self.python), *arguments], environ, self.folder)
        self._started.append(process)
        return process

    def drive(self, driver: str, facts: dict[str, Any], **variables: str) -> Process:
        """Start one of ``drivers/`` with ``facts``."""
        return self.start(str(DRIVERS / driver), json.dumps(facts), **variables)

    def run(self, code: str, *, with_kvevents: bool = True, **variables: str) -> Process:
        """Run ``code`` to its end and return the finished process."""
        process = self.start("-c", code, with_kvevents=with_kvevents, **variables)
        process.wait()
        return process

    def end(self) -> None:
        for process in self._started:
            process.end()
