"""The public API is frozen: its names, its types, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from api_listing import api

import kvevents_core

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def test_the_public_api_is_as_listed() -> None:
    """A change of the API is a change of ``public_api.txt``, so that nobody makes one unawares."""
    assert api() == (HERE / "public_api.txt").read_text()


def test_the_type_checker_agrees_with_the_public_types() -> None:
    """What users write type-checks, and the types are those they were promised."""
    pytest.importorskip("mypy", reason="mypy is in the lint group")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", str(HERE / "public_api.py")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_public_name_can_be_imported() -> None:
    """Lazy exports hide no typing error: each name is found where it is said to be."""
    for name in kvevents_core.__all__:
        assert getattr(kvevents_core, name) is not None
    assert dir(kvevents_core) == sorted(kvevents_core.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        kvevents_core.no_such_name  # noqa: B018
