"""Bad values: each one error at parse time that names key, value and origin."""

import pytest

from kvevents_core.errors import ConfigError
from kvevents_core.settings import KVEventsConfig

FLAG = "--kv-events-config"


def refusal(text: str | None, **environ: str) -> ConfigError:
    """Return the error of ``text``."""
    with pytest.raises(ConfigError) as caught:
        KVEventsConfig.from_cli(text, environ=environ)
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("nonsense", "not JSON"),
        ("{'publisher': 'zmq'}", "use double quotes inside and single quotes around it"),
        ("{publisher: zmq}", "not JSON"),
        ('{"publisher":"zmq"', "not JSON"),
        ('{"publisher":"zmq"} x', "not JSON: Extra data"),
        ('{"omit_token_ids": True}', "write true, false and null in lower case"),
        ("kv.json", "put @ before it"),
        ("[]", "is a list; it must be a JSON object"),
        ('"zmq"', "is a string"),
        ("null", "is null"),
        ("true", "is true or false"),
        ("5", "is a number"),
        ("[" * 100_000, "nesting too deep"),
        ('{"buffer_steps":' + "9" * 5000 + "}", "too long"),
    ],
)
def test_text_that_is_not_one_object_is_refused(text, phrase):
    """The message says what is wrong with the text without repeating it."""
    error = refusal(text)
    assert phrase in str(error)
    assert error.origin == FLAG
    assert len(str(error)) < 250


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('{"publisher":"zmq","publisher":"null"}', "publisher"),
        ('{"a":1,"topic":"x","topic":"x"}', "topic"),
        ('{"start":{"a":1,"a":2}}', "a"),
    ],
)
def test_a_key_given_twice_is_refused(text, key):
    """Which one was meant cannot be told, even if both are equal."""
    error = refusal(text)
    assert error.key == key
    assert "more than once" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "phrase"),
    [
        ("publisher", "5", "a valid string"),
        ("publisher", "true", "a valid string"),
        ("enable_kv_cache_events", '"yes"', "true or false"),
        ("enable_kv_cache_events", "1", "true or false"),
        ("tenant", "null", "a valid string"),
        ("tenant", '""', "at least 1 character"),
        ("model", "7", "a valid string"),
        ("instance", "7", "a valid string"),
        ("dialect", '"msgpack"', "'native' or 'array'"),
        ("overflow", '"drop"', "'drop_newest', 'drop_oldest' or 'block'"),
        ("format", '"json"', "'default' or 'dynamo'"),
        ("omit_token_ids", '"false"', "true or false"),
        ("max_queue_size", "0", "greater than 0"),
        ("max_queue_size", "-1", "greater than 0"),
        ("max_queue_size", "true", "an integer"),
        ("max_queue_size", '"10"', "an integer"),
        ("max_queue_size", "10.0", "an integer"),
        ("max_queue_size", "10.5", "a valid integer"),
        ("max_queue_size", "null", "a valid integer"),
        ("max_queue_size", "1e30", "as an integer"),
        ("max_queue_size", "9007199254740992", "less than"),
        ("max_queue_bytes", "0", "greater than 0"),
        ("buffer_steps", "-10000", "greater than 0"),
        ("buffer_bytes", "[]", "a valid integer"),
        ("max_in_flight_batches", "{}", "a valid integer"),
        ("max_in_flight_bytes", "false", "greater than 0"),
        ("heartbeat_s", "-1", "greater than or equal to 0"),
        ("heartbeat_s", "true", "a number"),
        ("heartbeat_s", '"1"', "a number"),
        ("heartbeat_s", "NaN", "finite"),
        ("heartbeat_s", "-Infinity", "finite"),
        ("shutdown_timeout_s", "1e999", "finite"),
        ("shutdown_timeout_s", "1e9", "less than"),
        ("ranks", "[]", "at least one rank"),
        ("ranks", "[1,1]", "only once"),
        ("ranks", "[-1]", "item [0]: it must be greater"),
        ("ranks", "[0,true]", "each is an integer"),
        ("ranks", "0", "it must be a list"),
        ("dp_size", "0", "greater than 0"),
        ("host", '""', "at least 1 character"),
        ("start", '"yesterday"', "earliest, latest, an ISO time"),
        ("start", "5", "a valid string"),
        ("silent_after_s", "-0.5", "greater than or equal to 0"),
    ],
)
def test_a_wrong_value_names_key_value_and_origin(key, value, phrase):
    """One error per value; the value stands in the message as it was written."""
    error = refusal(f'{{"{key}":{value}}}')
    assert (error.key, error.origin) == (key, FLAG)
    assert key in str(error)
    assert phrase in str(error)
    assert FLAG in str(error)


def test_several_wrong_values_are_one_error():
    """All are named; the first is the key."""
    error = refusal('{"tenant":5,"buffer_steps":0}')
    assert error.key == "tenant"
    assert "tenant = 5" in str(error)
    assert "buffer_steps = 0" in str(error)


@pytest.mark.parametrize(
    ("key", "value", "phrase"),
    [
        ("topic", "5", "a valid string"),
        ("topic", "null", "a valid string"),
        ("endpoint", "null", "a valid string"),
        ("endpoint", '"tcp://*:70000"', "70000"),
        ("endpoint", '"http://*:5557"', "http"),
        ("hwm", "-3", "greater than or equal to"),
        ("hwm", "true", "an integer"),
        ("bind", '"yes"', "true or false"),
    ],
)
def test_the_backends_keys_are_checked_alike(key, value, phrase):
    """The chosen backend's own model, in the same words and with the origin."""
    error = refusal(f'{{"publisher":"zmq","{key}":{value}}}')
    assert (error.key, error.origin) == (key, FLAG)
    assert phrase in str(error)
    assert FLAG in str(error)


def test_settings_that_do_not_fit_together_each_say_where_they_came_from() -> None:
    """What a backend's model says of several settings names the origin of those given."""
    error = refusal(
        '{"publisher":"kafka","linger_ms":5000,"request_timeout_ms":1000}',
        KVEVENTS_KAFKA_DELIVERY_TIMEOUT_MS="5500",
    )
    assert error.key == "delivery_timeout_ms"
    assert error.origin == "environment variable KVEVENTS_KAFKA_DELIVERY_TIMEOUT_MS"
    assert str(error).startswith("delivery_timeout_ms must not be below linger_ms + ")
    assert f"linger_ms from {FLAG}, request_timeout_ms from {FLAG}" in str(error)
    assert "(delivery_timeout_ms from environment variable KVEVENTS_KAFKA_" in str(error)


@pytest.mark.parametrize(
    ("name", "value", "phrase"),
    [
        ("KVEVENTS_BUFFER_STEPS", "many", "a valid integer"),
        ("KVEVENTS_BUFFER_STEPS", "0", "greater than 0"),
        ("KVEVENTS_OMIT_TOKEN_IDS", "perhaps", "boolean"),
        ("KVEVENTS_HEARTBEAT_S", "nan", "a finite number"),
        ("KVEVENTS_RANKS", "0,x", "item [1]"),
        ("KVEVENTS_RANKS", "[0,", "begins like JSON but is not JSON"),
        ("KVEVENTS_DIALECT", "msgpack", "'native' or 'array'"),
    ],
)
def test_a_wrong_variable_names_itself(name, value, phrase):
    """The origin is the variable."""
    error = refusal("{}", **{name: value})
    assert error.origin == f"environment variable {name}"
    assert error.key == name.removeprefix("KVEVENTS_").lower()
    assert phrase in str(error)


@pytest.mark.parametrize(
    ("name", "value", "made"),
    [
        ("buffer_steps", " 7 ", 7),
        ("omit_token_ids", "true", True),
        ("omit_token_ids", "0", False),
        ("heartbeat_s", "1.5", 1.5),
        ("overflow", "Block ", "block"),
        ("ranks", "0, 2", (0, 2)),
        ("ranks", "[0,2]", (0, 2)),
        ("start", '{"offset":5}', {"offset": 5}),
        ("start", "2026-01-31T12:00:00Z", "2026-01-31T12:00:00Z"),
        ("tenant", "5", "5"),
        ("dp_size", "", None),
    ],
)
def test_text_of_a_variable_is_converted(name, value, made):
    """Where JSON must have the right kind, a variable is text; empty counts as not given."""
    config = KVEventsConfig.from_cli("{}", environ={f"KVEVENTS_{name.upper()}": value})
    assert getattr(config, name) == made
    assert type(getattr(config, name)) is type(made)


def test_whole_numbers_are_seconds_too():
    """JSON has one kind of number; 1 is a good number of seconds."""
    assert KVEventsConfig.from_cli('{"heartbeat_s":1}', environ={}).heartbeat_s == 1.0


def test_choices_are_normalised():
    """Case and spaces do not matter in a choice."""
    assert KVEventsConfig.from_cli('{"overflow":" BLOCK"}', environ={}).overflow == "block"


@pytest.mark.parametrize(
    ("name", "content", "phrase"),
    [
        ("absent.json", None, "cannot be read: No such file"),
        ("folder.json", "", "cannot be read"),
        ("kv.yaml", "a: 1", "must end in .json or .toml"),
        ("kv.json", "{'a'", "is not JSON"),
        ("kv.json", "[]", "is a list"),
        ("kv.json", "\udcff", "not UTF-8"),
        ("kv.toml", "tenant = 'a'\ntenant = 'b'", "is not TOML"),
        ("kv.toml", "heartbeat_s = nan", "finite"),
        ("kv.toml", "tenant = 1979-05-27", "a valid string"),
        ("kv.toml", "[kafka]\ntopic = 'x'", "'kafka' from file"),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, phrase):
    """The file is named, whether it cannot be read or holds something wrong."""
    path = tmp_path / name
    if name == "folder.json":
        path.mkdir()
    elif content is not None:
        path.write_text(content, "utf-8", "surrogateescape")
    error = refusal(f"@{path}")
    assert phrase in str(error)
    assert str(path) in str(error)


def test_something_that_is_no_text_is_refused():
    """A parsed object given where the flag's text belongs."""
    with pytest.raises(ConfigError, match="is a dict; it must be JSON text"):
        KVEventsConfig.from_cli({"publisher": "zmq"}, environ={})  # type: ignore[arg-type]


def test_a_key_that_is_no_text_is_refused():
    """In a mapping, and a number as a key."""
    with pytest.raises(ConfigError, match="keys must be text"):
        KVEventsConfig.from_mapping({5: "x"}, environ={})  # type: ignore[dict-item]
