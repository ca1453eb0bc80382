"""Which sender the publishers of a test have; ``each_sender`` in ``conftest`` sets it."""

from __future__ import annotations

import os

VARIABLE = "KVEVENTS_SENDER"


def chosen_sender() -> dict[str, str]:
    """Return an environment that says which sender a test asked for, and nothing else."""
    return {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
