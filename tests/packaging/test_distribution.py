"""What is shipped: a wheel with every module and its types, and entry points that lead somewhere."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import EntryPoint, distribution
from pathlib import Path

import pytest

from kvevents_core.plugins import load_backend

ROOT = Path(__file__).parents[2]
PACKAGES = ("kvevents_core", "kvevents_kafka", "kvevents_nats", "kvevents_zmq")


def entry_points() -> list[EntryPoint]:
    """Return the entry points of the installed distribution, each once."""
    found = {(e.group, e.name): e for e in distribution("kvevents").entry_points}
    return list(found.values())


@pytest.mark.parametrize("entry", entry_points(), ids=lambda e: f"{e.group}:{e.name}")
def test_an_entry_point_leads_to_something(entry: EntryPoint) -> None:
    """It can be loaded without an engine, and is a module with the hook or something to call."""
    target = entry.load()
    assert callable(target) or callable(target.kvevents_backend)


def test_entry_point_publisher_and_extra_share_one_name() -> None:
    """What an operator types, installs and sees is one word."""
    names = {e.name for e in entry_points() if e.group == "kvevents.backends"}
    assert names == {"kafka", "memory", "nats", "zmq"}
    assert {load_backend(name).name for name in names} == names
    extras = set(distribution("kvevents").metadata.get_all("Provides-Extra") or ())
    assert names - {"memory"} <= extras


def test_the_wheel_holds_every_module_and_its_types(tmp_path: Path) -> None:
    """All four packages with ``py.typed``, and neither tests nor examples."""
    source = tmp_path / "source"
    source.mkdir()
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "wheel", *options, "-w", str(tmp_path), str(source)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    (wheel,) = tmp_path.glob("kvevents-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {
        str(path.relative_to(ROOT))
        for name in PACKAGES
        for path in (ROOT / name).rglob("*")
        if path.suffix == ".py" or path.name == "py.typed"
    }
    assert modules <= shipped
    assert {name.partition("/")[0] for name in shipped} == set(PACKAGES)
    assert {f"{name}/py.typed" for name in PACKAGES} <= shipped
