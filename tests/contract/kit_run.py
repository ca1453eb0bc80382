"""Runs the conformance kit in this process, without pytest, and says which promises broke."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvevents_core.backend import Backend
from kvevents_core.testing import BackendConformance, Place, Rig
from kvevents_core.testing.plugin import promise_of


def broken_promises(
    backend: Backend[Any],
    make_place: Callable[[], Place],
    *,
    kit: type = BackendConformance,
    patience_s: float = 0.4,
) -> dict[str, str]:
    """Return the tests of ``kit`` that fail for ``backend``: promise and test name, and why."""
    broken: dict[str, str] = {}
    for name in dir(kit):
        if not name.startswith("test_") or getattr(kit, name) is None:
            continue
        place = make_place()
        place.patience_s = patience_s
        why = _run(getattr(kit(), name), Rig(backend, place))
        if why is not None:
            promise = promise_of(getattr(kit, name).__doc__)
            broken[f"{promise} {name}"] = why
    return broken


def _run(test: Callable[[Rig], None], rig: Rig) -> str | None:
    try:
        test(rig)
    except pytest.skip.Exception:
        return None
    except (Exception, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        try:
            rig.close()
        except Exception as error:
            print("closing the rig:", error)
    return None
