"""Where a source may start."""

from __future__ import annotations

from typing import Any

import pytest

from kvevents_core import ConfigError
from kvevents_nats.source import _read_start


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("earliest", {"deliver_policy": "all"}),
        ("latest", {"deliver_policy": "new"}),
        ({"stream": "s", "seq": 5, "created": ""}, {"deliver_policy": "all"}),
        (
            "2026-12-01T10:00:00+02:00",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-12-01T08:00:00Z"},
        ),
        (
            "2026-12-01T10:00:00.25Z",
            {"deliver_policy": "by_start_time", "opt_start_time": "2026-12-01T10:00:00.250000Z"},
        ),
    ],
)
def test_a_start_becomes_a_consumers_configuration(start: Any, expected: dict[str, str]) -> None:
    """Names, times with any offset, and positions (whose seq is added later)."""
    assert _read_start(start) == expected


def test_a_time_without_offset_is_local() -> None:
    """As people type it."""
    assert _read_start("2026-12-01T10:00:00")["opt_start_time"].endswith("Z")


@pytest.mark.parametrize(
    "start", ["yesterday", "", {}, {"seq": "5"}, {"seq": -1}, {"partitions": {"0": 1}}]
)
def test_a_wrong_start_is_named(start: Any) -> None:
    """Another transport's position, too."""
    with pytest.raises(ConfigError, match="start") as caught:
        _read_start(start)
    assert caught.value.key == "start"
