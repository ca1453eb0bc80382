"""A third party's package: built, installed and found by its entry point; the kit and the demo pass."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvevents_core

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "kvevents-redis"
TUTORIAL = ROOT / "docs" / "tutorial" / "write-a-backend.md"
BLOCK = re.compile(r"<!-- (examples/\S+) -->\n```\w+\n(.*?)\n```\n", re.DOTALL)


def load(path: Path) -> ModuleType:
    """Import one file of the example's tests."""
    spec = util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A real server; absent: skipped, or failed where brokers are required."""
    server = load(EXAMPLE / "tests" / "redis_server.py")
    with server.redis_port() as port:
        yield f"redis://127.0.0.1:{port}/0"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed a copy of the example, built into a wheel as any package is."""
    source = tmp_path_factory.mktemp("source") / "kvevents-redis"
    shutil.copytree(EXAMPLE, source)
    target = tmp_path_factory.mktemp("installed")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(target)]
    subprocess.run([*command, str(source)], check=True, timeout=120)
    return target


def run(installed: Path, redis_url: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the installed package on its path."""
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(installed), "KVEVENTS_REDIS_URL": redis_url},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.timeout(200)
def test_the_kit_passes_on_the_installed_package(installed: Path, redis_url: str) -> None:
    """The example's own tests, with the backend found where pip put it."""
    tests = str(EXAMPLE / "tests")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "--import-mode=prepend"]
    done = run(installed, redis_url, "-m", "pytest", *options, "--rootdir", tests, tests)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 40, done.stdout


def test_the_demo_passes_over_the_installed_package(installed: Path, redis_url: str) -> None:
    """``kvevents demo --publisher redis --layout tp=2,dp=2``: the verdict, over a real server."""
    options = ["--publisher", "redis", "--layout", "tp=2,dp=2", "--seconds", "1.5", "--json"]
    done = run(installed, redis_url, "-m", "kvevents_core.cli", "demo", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict: dict[str, Any] = json.loads(done.stdout)
    assert verdict["ok"] is True
    assert (verdict["streams"], verdict["publisher"]) == (2, "redis")


def test_kvevents_backends_lists_the_installed_package(installed: Path, redis_url: str) -> None:
    """With the distribution that provides it, so that an operator knows whom to ask."""
    done = run(installed, redis_url, "-m", "kvevents_core.cli", "backends")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("redis"))
    assert "kvevents-redis" in line


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    """Every code block of the tutorial stands in the file it names, and every file is shown."""
    shown = set()
    blocks = BLOCK.findall(TUTORIAL.read_text())
    for name, code in blocks:
        assert code in (ROOT / name).read_text(), f"{name} no longer holds:\n{code}"
        shown.add(name)
    files = {str(path.relative_to(ROOT)) for path in (EXAMPLE / "src").rglob("*.py")}
    assert files <= shown
    assert TUTORIAL.read_text().count("```python") == sum(
        "\n" in code for name, code in blocks if name.endswith(".py")
    )


def test_the_example_imports_public_names_only() -> None:
    """What a third party may use: ``kvevents_core``, and its modules errors, naming and testing."""
    modules = {"kvevents_core.errors", "kvevents_core.naming", "kvevents_core.testing"}
    for path in EXAMPLE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or "kvevents_core" not in (node.module or ""):
                continue
            names = {alias.name for alias in node.names}
            assert node.module in modules or (
                node.module == "kvevents_core" and names <= set(kvevents_core.__all__)
            ), f"{path}: from {node.module} import {names}"
