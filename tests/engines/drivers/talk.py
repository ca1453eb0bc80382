"""How a driver and its test talk: JSON lines on stdout behind a mark, one line on stdin to go on."""

from __future__ import annotations

import json
import sys
from typing import Any

MARK = "@@kvevents "


def say(**facts: Any) -> None:
    """Tell the test something."""
    print(MARK + json.dumps(facts), flush=True)


def wait_for_word() -> str:
    """Wait for the test's next line; an empty one means that the test is gone."""
    return sys.stdin.readline().strip()
