"""The reference page of the configuration says what the program does."""

import json
import re
import shlex
from pathlib import Path

import pytest

from kvevents_core.config_names import ENGINE_DEFAULTS
from kvevents_core.errors import ConfigError
from kvevents_core.settings import KVEventsConfig

PAGE = (Path(__file__).parents[2] / "docs/reference/configuration.md").read_text("utf-8")
ERRORS, WARNINGS = PAGE.split("\n## Errors\n")[1].split("\n## Warnings\n")
EXAMPLE = re.compile(r"```sh\n(.*?)\n```\n```text\n(.*?)\n```", re.DOTALL)
ROWS = re.findall(r"^\| `(\w+)` \| (.*?) \| ?(.*?) ?\| .+ \|$", PAGE, re.MULTILINE)
UNITS = {"_s": "s", "_bytes": "bytes", "_batches": "batches"}


def split(command: str) -> tuple[str, dict[str, str]]:
    """Return the flag's text and the variables of a command line on the page."""
    *variables, flag, text = shlex.split(command)
    assert flag == "--kv-events-config"
    return text, dict(each.split("=", 1) for each in variables)


def test_the_table_lists_exactly_the_keys_of_the_model_in_its_order():
    """No key without a line, no line without a key."""
    assert [key for key, _, _ in ROWS] == list(KVEventsConfig.model_fields)


@pytest.mark.parametrize(("key", "default", "unit"), ROWS)
def test_the_table_gives_the_default_and_the_unit(key, default, unit):
    """Defaults as JSON; units as the names of the keys have them."""
    value = KVEventsConfig.model_fields[key].default
    if key != "instance":
        assert default == ("not given" if value is None else f"`{json.dumps(value)}`")
    for suffix, name in UNITS.items():
        assert not key.endswith(suffix) or unit.startswith(name)


def test_the_page_names_every_default_of_the_engines():
    """What counts as not given stands on the page as it is in the code."""
    for key, value in ENGINE_DEFAULTS.items():
        assert f"`{json.dumps({key: value})[1:-1]}`" in PAGE.replace("\n", " ")


@pytest.mark.parametrize(("command", "text"), EXAMPLE.findall(ERRORS))
def test_each_error_on_the_page_is_the_programs(command, text):
    """Word for word."""
    flag, environ = split(command)
    with pytest.raises(ConfigError) as caught:
        KVEventsConfig.from_cli(flag, environ=environ)
    assert str(caught.value) == text


@pytest.mark.parametrize(("command", "text"), EXAMPLE.findall(WARNINGS))
def test_each_warning_on_the_page_is_the_programs(command, text):
    """Word for word, and the only one."""
    flag, environ = split(command)
    assert KVEventsConfig.from_cli(flag, environ=environ).warnings == (text,)


def test_the_page_has_its_examples():
    """The tests above look at something."""
    assert len(EXAMPLE.findall(ERRORS)) >= 8
    assert len(EXAMPLE.findall(WARNINGS)) >= 3
