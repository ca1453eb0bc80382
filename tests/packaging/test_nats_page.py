"""The how-to of NATS says what the settings are."""

from __future__ import annotations

import re
from pathlib import Path

from kvevents_core import KVEventsConfig
from kvevents_nats import NatsSettings

PAGE = (Path(__file__).parents[2] / "docs/how-to/nats.md").read_text("utf-8")
ROWS = re.findall(r"^\| `([a-z_]+)` \| (.*?) ?\|", PAGE, re.MULTILINE)


def test_the_table_of_the_stream_gives_names_and_defaults() -> None:
    """Every key of the stream, with the default that the program has."""
    shown = {"1 GiB": 1024**3, "": ""}
    fields = NatsSettings.model_fields
    for key, default in ROWS:
        expected = fields[key].default
        given = shown.get(default, default.strip("`"))
        assert given == expected or float(given) == expected, key
    assert {key for key, _ in ROWS} >= {key for key in fields if key.startswith("stream")}


def test_every_configuration_on_the_page_is_valid() -> None:
    """Flags and keys alike."""
    flags = re.findall(r"--kv-events-config '(.*?)'", PAGE)
    assert len(flags) == 3
    for flag in [*flags, *re.findall(r"from_cli\('(.*?)'\)", PAGE)]:
        assert KVEventsConfig.from_cli(flag, environ={}).publisher == "nats"


def test_every_key_and_variable_named_exists() -> None:
    """No key of an earlier draft is left."""
    keys = {*NatsSettings.model_fields, *KVEventsConfig.model_fields}
    for variable in re.findall(r"KVEVENTS_NATS_([A-Z_]+)", PAGE):
        assert variable.lower() in keys
    for key in re.findall(r'`?"([a-z_]+)": ', PAGE):
        assert key in keys
