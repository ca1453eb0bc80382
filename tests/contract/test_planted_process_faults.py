"""Faults of a whole process: a package that is really found by its name, in processes of its own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.kit_run import broken_promises
from contract.memory_place import MemoryPlace

from kvevents_core.backend import Backend
from kvevents_core.testing.opening import OpeningPromises
from kvevents_core.testing.process import ProcessPromises

PACKAGE = """
import threading, time, os
from kvevents_core import hookimpl
from kvevents_core.memory import MemoryBackend, MemorySink
{top}

class Sink(MemorySink):
    def __init__(self, settings, stream):
        super().__init__(settings, stream)
        {start}

class Faulty(MemoryBackend):
    name = "faulty"
    def open_sink(self, settings, stream):
        return Sink(settings, stream)

@hookimpl
def kvevents_backend():
    return Faulty()
"""

Install = Callable[..., Backend[Any]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a faulty package for this process and those it starts; return its backend."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def install(*, top: str = "", start: str = "pass") -> Backend[Any]:
        info = tmp_path / "faulty-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[kvevents.backends]\nfaulty = faulty_backend\n")
        (tmp_path / "faulty_backend.py").write_text(PACKAGE.format(top=top, start=start))
        backend: Backend[Any] = importlib.import_module("faulty_backend").kvevents_backend()
        return backend

    yield install
    sys.modules.pop("faulty_backend", None)


def broken(backend: Backend[Any], kit: type) -> set[str]:
    """Return the promises of ``kit`` that ``backend`` breaks."""
    return {name.split()[0] for name in broken_promises(backend, MemoryPlace, kit=kit)}


def test_a_sound_package_breaks_nothing(install: Install) -> None:
    """The package without a fault passes, so what the others break is their fault's doing."""
    backend = install()
    assert broken(backend, ProcessPromises) | broken(backend, OpeningPromises) == set()


@pytest.mark.slow
def test_a_thread_that_holds_up_the_exit_is_noticed(install: Install) -> None:
    """A thread that is no daemon and never ends breaks C21, and C24, where a process ends too."""
    backend = install(start="threading.Thread(target=time.sleep, args=(7,), daemon=False).start()")
    assert "C21" in broken(backend, ProcessPromises)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_client_that_hangs_in_a_forked_child_is_noticed(install: Install) -> None:
    """A child that never comes back breaks C24 alone."""
    # A hook cannot be unregistered: this one sleeps only while its package is installed.
    hook = "lambda: 'faulty_backend' in sys.modules and time.sleep(20)"
    backend = install(top=f"import sys; os.register_at_fork(after_in_child={hook})")
    assert broken(backend, ProcessPromises) >= {"C24"}


def test_a_client_imported_too_early_is_noticed(install: Install) -> None:
    """A module that imports its client at the top breaks C10."""
    backend = install(top="import zmq")
    assert broken(backend, OpeningPromises) == {"C10"}
