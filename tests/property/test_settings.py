"""Whatever is typed, the answer is a configuration or one error of ours that hides secrets."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvevents_core.config_validation import show
from kvevents_core.errors import ConfigError
from kvevents_core.settings import CoreSettings, KVEventsConfig

SECRET = "s3cr3t"
BACKEND_KEYS = ("endpoint", "bind", "replay_endpoint", "topic", "hwm", "ipv6", "curve_secret_key")
KEYS = st.sampled_from([*CoreSettings.model_fields, *BACKEND_KEYS]) | st.text(max_size=8)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(
        ["zmq", "memory", "null", "tcp://*:5557", "tcp://[::1]:65535", "block", "latest"]
    )
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)


@pytest.fixture(autouse=True, scope="module")
def quiet():
    """Thousands of odd configurations would log as many warnings."""
    logging.getLogger("kvevents_core.config_assembly").setLevel(logging.ERROR)
    yield
    logging.getLogger("kvevents_core.config_assembly").setLevel(logging.NOTSET)


def outcome(text: str | None, **environ: str) -> KVEventsConfig | ConfigError:
    """Return the configuration or its one error; anything else fails the test."""
    try:
        return KVEventsConfig.from_cli(text, environ={"HOSTNAME": "h", **environ})
    except ConfigError as error:
        refusal = error
    assert refusal.__cause__ is None
    assert refusal.__context__ is None
    return refusal


@given(st.text(max_size=40).filter(lambda text: not text.lstrip().startswith("@")))
def test_any_text_is_answered(text):
    """No text makes the parser raise anything but ConfigError."""
    outcome(text)


@settings(max_examples=40)
@given(OBJECTS, st.sampled_from(["zmq", "memory", "null"]))
def test_any_object_is_answered_and_the_same_twice(keys, publisher):
    """Known and unknown keys with any values; every rank gets the same answer."""
    text = json.dumps({"publisher": publisher, **keys})
    first, second = outcome(text), outcome(text)
    assert str(first) == str(second)
    assert type(first) is type(second)


@given(st.sampled_from([*CoreSettings.model_fields, *BACKEND_KEYS]), st.text(max_size=12))
def test_any_variable_is_answered(key, text):
    """An error names the variable it came from."""
    name = f"KVEVENTS_{key.upper()}"
    answer = outcome('{"publisher":"zmq"}', **{name: text})
    if isinstance(answer, ConfigError):
        assert name in str(answer)


@settings(max_examples=40)
@given(OBJECTS)
def test_no_answer_shows_the_secret(keys):
    """Whatever else is wrong beside it."""
    answer = outcome(json.dumps({**keys, "publisher": "zmq", "curve_secret_key": SECRET * 7}))
    assert SECRET not in repr(answer)
    assert SECRET not in str(answer)


@given(VALUES)
def test_values_are_shown_short_and_without_user_information(value):
    """Messages stay one readable line."""
    assert len(show(value)) <= 80
    assert "\n" not in show(value)
    shown = show(["nats://me:pass@word@host:4222", "me:password@host", value])
    assert "pass" not in shown
