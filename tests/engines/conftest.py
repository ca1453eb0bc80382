"""The engines' environments, this tree installed for them, and the transports to try."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.kafka_fixtures import kafka_bootstrap, kafka_broker, kafka_installation, topic
from broker.nats_fixtures import nats_url, tenant
from engines import build_environment
from engines.environments import EngineEnvironment

TREE = Path(__file__).parents[2]

__all__ = [
    "kafka_bootstrap",
    "kafka_broker",
    "kafka_installation",
    "nats_url",
    "tenant",
    "topic",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the real servers to ``make engines``: they take minutes."""
    if os.environ.get("KVEVENTS_REQUIRE_ENGINES") == "1":
        return
    for item in items:
        if item.get_closest_marker("engines") and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="real servers: run make engines"))


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
        shutil.copy(TREE / name, source)
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


@pytest.fixture
def newer_vllm(vllm_python: Path, installed: Path, tmp_path: Path) -> Iterator[EngineEnvironment]:
    """The same with the Python files of the newest vLLM that we know."""
    newer = build_environment.newer_files("vllm")
    environment = EngineEnvironment(vllm_python, installed, tmp_path, newer=newer)
    yield environment
    environment.end()


@dataclass(frozen=True)
class Transport:
    """One way from an engine to a reader."""

    flag: dict[str, Any]
    """What engine and reader are given."""
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def is_zmq(self) -> bool:
        """Whether the engine's discovery documents can describe it."""
        return self.flag["publisher"] == "zmq"


@pytest.fixture(params=["zmq", "nats", "kafka"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Each transport, with a broker of the run where it needs one."""
    if request.param == "zmq":
        # No TCP port could be taken by another program while the engine is imported.
        with tempfile.TemporaryDirectory(prefix="kv-") as folder:
            flag = {
                "publisher": "zmq",
                "endpoint": f"ipc://{folder}/events",
                "replay_endpoint": f"ipc://{folder}/replay",
                "topic": "kv-events",
            }
            yield Transport(flag, {"KVEVENTS_REPLACE_ZMQ": "1"})
        return
    common = {"publisher": request.param, "tenant": request.getfixturevalue("tenant")}
    if request.param == "nats":
        yield Transport({**common, "servers": [request.getfixturevalue("nats_url")]})
        return
    bootstrap = request.getfixturevalue("kafka_bootstrap")
    name = request.getfixturevalue("topic")
    yield Transport({**common, "bootstrap_servers": [bootstrap], "topic": name})
