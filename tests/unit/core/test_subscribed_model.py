"""Which model's streams a reader follows that was given the publisher's own configuration."""

from __future__ import annotations

from typing import Any

import pytest

from kvevents_core import KVEventsConfig
from kvevents_core.subscriber import _model_of


@pytest.mark.parametrize(
    ("keys", "all_instances", "model"),
    [
        ({"publisher": "kafka"}, True, ""),
        ({"publisher": "nats"}, True, ""),
        ({"publisher": "kafka", "model": "tiny"}, True, "tiny"),
        ({"publisher": "kafka"}, False, "default"),
        ({"publisher": "zmq"}, True, "default"),
    ],
)
def test_unnamed_model_means_every_model_where_records_tell(
    keys: dict[str, Any], all_instances: bool, model: str
) -> None:
    """An engine names the stream after the model it serves; its own configuration need not."""
    config = KVEventsConfig.from_mapping(keys, environ={})
    assert _model_of(config, all_instances=all_instances) == model
