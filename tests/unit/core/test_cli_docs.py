"""docs/reference/cli.md says what the program says."""

import re
from pathlib import Path

import pytest
import typer

from kvevents_core.cli.app import app, run
from kvevents_core.cli.demo_plan import Workload, make_plan, parse_layout
from kvevents_core.cli.demo_verdict import judge
from kvevents_core.cli.demo_watch import DemoWatch

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"
COMMANDS = typer.main.get_command(app).commands


def _section(name):
    """Return the page's section about command ``name``."""
    (found,) = re.findall(
        rf"^## kvevents {name}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    return found


def _table(text, heading):
    """Return the rows, as tuples of cells, of the table whose first column is ``heading``."""
    rows = []
    for line in text.partition(f"| {heading} |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip() for cell in line.strip("|").split("|")))
    return rows


def _documented(parameter):
    """Return the row that belongs on the page for one parameter of a command."""
    is_option = parameter.param_type_name == "option"
    names = ", ".join(parameter.opts) if is_option else parameter.name.upper()
    default = parameter.default
    shown = f"`{default}`" if isinstance(default, str | int | float) else ""
    return (f"`{names}`", parameter.help, "" if isinstance(default, bool) else shown)


def test_every_command_has_a_section_and_every_section_a_command():
    """Nothing is missing and nothing is left over."""
    sections = re.findall(r"^## kvevents (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sections == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_option_table_is_the_programs(name):
    """Names, help texts and defaults, in the program's order."""
    expected = [_documented(each) for each in COMMANDS[name].params if each.name != "help"]
    assert _table(_section(name), "option") == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_that_people_see_names_exactly_the_options_of_the_page(name, capsys, monkeypatch):
    """The real ``--help``, whatever typer makes of the definitions."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    assert run([name, "--help"]) == 0
    options = re.findall(r"^\W*(--[a-z-]+)\s", capsys.readouterr().out, re.MULTILINE)
    page = re.findall(r"^\| `(--[a-z-]+)`", _section(name), re.MULTILINE)
    assert options == [*page, "--help"]


def test_the_verdicts_keys_are_on_the_page():
    """Every key of the demo's JSON is explained, those of processes and publishers included."""
    facts = judge(DemoWatch(make_plan(parse_layout("tp=2"), "zmq", {}, Workload()))).to_json()
    rows = _table(_section("demo"), "key")
    explained = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert explained == set(facts)
    of_process = next(row[1] for row in rows if row[0] == "`processes`")
    assert set(facts["processes"][0]) == set(re.findall(r"`(\w+)`", of_process))
