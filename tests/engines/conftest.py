"""The engines' environments, this tree installed for them, and processes that run in them."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines import build_environment
from engines.drivers.talk import MARK

TREE = Path(__file__).parents[2]
DRIVERS = Path(__file__).parent / "drivers"


def _require(engine: str) -> Path:
    """Return the engine's interpreter; skip, or fail where skipping is forbidden, if not built."""
    reason = build_environment.missing(engine)
    if reason is not None and os.environ.get("KVEVENTS_REQUIRE_ENGINES") == "1":
        pytest.fail(reason)
    if reason is not None:
        pytest.skip(reason)
    return build_environment.python_of(engine)


@pytest.fixture(scope="session")
def sglang_python() -> Path:
    """The interpreter of SGLang's environment."""
    return _require("sglang")


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment."""
    return _require("vllm")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with this tree as pip installs it, entry points included."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (TREE / name).exists():
            shutil.copy(TREE / name, source)
        else:
            (source / name).write_text("")
    for package in TREE.glob("kvevents_*"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, source / package.name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    subprocess.run(
        [*command, "--disable-pip-version-check", "--target", str(target), str(source)],
        check=True,
        env=environ,
    )
    return target


class Process:
    """A process in an engine's environment that talks as ``drivers/talk.py`` says."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environ,
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
    """Runs programs in one engine's environment with this tree installed, or without."""

    def __init__(self, python: Path, installed: Path, folder: Path) -> None:
        self._python, self._installed, self._folder = python, installed, folder
        self._started: list[Process] = []

    def environ(self, *, with_kvevents: bool = True, **variables: str) -> dict[str, str]:
        """Return an environment of our own: nothing of the caller's KVEVENTS_ variables."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KVEVENTS_", "PYTHON"))
        }
        paths = [str(DRIVERS), *([str(self._installed)] if with_kvevents else [])]
        return {
            **inherited,
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HOME": str(self._folder),
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "OMP_NUM_THREADS": "1",
            **variables,
        }

    def start(self, *arguments: str, with_kvevents: bool = True, **variables: str) -> Process:
        """Start the interpreter with ``arguments``; ended with the test."""
        environ = self.environ(with_kvevents=with_kvevents, **variables)
        process = Process([str(self._python), *arguments], environ)
        self._started.append(process)
        return process

    def drive(self, driver: str, facts: dict[str, Any], **variables: str) -> Process:
        """Start one of ``drivers/`` with ``facts``."""
        return self.start(str(DRIVERS / driver), json.dumps(facts), **variables)

    def run(self, code: str, **variables: str) -> Process:
        """Run ``code`` to its end and return the finished process."""
        process = self.start("-c", code, **variables)
        process.wait()
        return process

    def end(self) -> None:
        for process in self._started:
            process.end()


@pytest.fixture
def sglang(sglang_python: Path, installed: Path, tmp_path: Path) -> Iterator[EngineEnvironment]:
    """SGLang's environment; what a test starts in it ends with the test."""
    environment = EngineEnvironment(sglang_python, installed, tmp_path)
    yield environment
    environment.end()


@pytest.fixture
def vllm(vllm_python: Path, installed: Path, tmp_path: Path) -> Iterator[EngineEnvironment]:
    """VLLM's environment; what a test starts in it ends with the test."""
    environment = EngineEnvironment(vllm_python, installed, tmp_path)
    yield environment
    environment.end()
