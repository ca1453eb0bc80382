"""Adopting the kit: what a third party's run says, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

ADOPTION = """
import pytest
from contract.memory_place import MemoryPlace
from kvevents_core.memory import MemoryBackend, MemorySink
from kvevents_core.testing import BackendConformance

pytest_plugins = ["kvevents_core.testing.plugin"]

class Swallows(MemorySink):
    def send(self, records):
        return len(records) if self._closed else super().send(records)

class Faulty(MemoryBackend):
    def open_sink(self, settings, stream):
        return Swallows(settings, stream)

class TestFaulty(BackendConformance):
    backend = Faulty()

    @pytest.fixture
    def place(self):
        return MemoryPlace()
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over ``folder`` with nothing of this project's configuration."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, "-c", "/dev/null", f"--rootdir={folder}", *options, str(folder)],
        env={"PYTHONPATH": str(tests), "PATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_failure_names_the_promise_and_shows_the_values(tmp_path: Path) -> None:
    """The run ends with the number and where to read about it; skips give their reason."""
    (tmp_path / "test_adopted.py").write_text(ADOPTION)
    done = run(tmp_path, "-k", "refuses or replay")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "promise C4 is broken (docs/reference/contract.md): " in done.stdout
    assert "test_closed_sink_refuses" in done.stdout
    assert "memory does not claim `replays`" in done.stdout


def test_a_forgotten_place_is_told(tmp_path: Path) -> None:
    """Who forgets the fixture reads which one, not a stack of internals."""
    text = ADOPTION[: ADOPTION.index("    @pytest.fixture")]
    (tmp_path / "test_adopted.py").write_text(text)
    done = run(tmp_path, "-k", "twice")
    assert "TestFaulty must define the fixture `place`" in done.stdout


def test_the_plugin_is_never_loaded_unasked() -> None:
    """No ``pytest11`` entry point: other people's test runs do not import kvevents."""
    assert [e for e in entry_points(group="pytest11") if "kvevents" in e.value] == []
