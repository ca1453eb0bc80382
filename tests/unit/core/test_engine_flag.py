"""What the engines' adapters say before anything is published; no engine is needed for it."""

from __future__ import annotations

import logging

import pytest

from kvevents_core import KVEventsConfig
from kvevents_core.engines import flag

LOGGER = logging.getLogger("kvevents.engine")


@pytest.mark.parametrize(
    ("publisher", "off_by", "said"),
    [
        ("memory", "disable_radix_cache", True),
        ("memory", None, False),
        ("null", "disable_radix_cache", False),
    ],
)
def test_an_engine_without_prefix_cache_says_that_its_streams_stay_empty(
    publisher: str, off_by: str | None, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Configured, active and silent is explained at the start (ai-dynamo/dynamo#11984)."""
    config = KVEventsConfig.from_mapping({"publisher": publisher})
    with caplog.at_level(logging.WARNING, "kvevents"):
        flag.warn_if_cache_is_off(config, off_by, LOGGER)
    assert ["no_events"] * said == [vars(each)["kvevents_code"] for each in caplog.records]
