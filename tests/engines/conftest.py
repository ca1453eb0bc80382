"""The engines' environments, this tree installed for them, and processes that run in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engines import build_environment
from engines.environments import EngineEnvironment

TREE = Path(__file__).parents[2]


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
