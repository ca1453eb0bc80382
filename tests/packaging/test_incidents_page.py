"""The page of incidents: every test it names exists, and no test of an incident is left out."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/explanation/incidents.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
ROW = re.compile(r"^\| (?!situation|---)(.+) \|$", re.MULTILINE)


def named_in(path: Path) -> set[str]:
    """Return the tests in a file, those in classes as ``Class::test``."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            inner = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}::{each.name}" for each in inner}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


@pytest.mark.parametrize("row", ROW.findall(PAGE.read_text("utf-8")))
def test_each_situation_names_tests_that_exist(row: str) -> None:
    """Three cells; in the last one tests, or why there is none."""
    situation, answer, tests = row.split(" | ")
    assert situation
    assert answer
    named = NAMED.findall(tests)
    assert named or tests.startswith("no test: ")
    assert len(named) == tests.count("::test_")
    for path, name in named:
        assert name in named_in(ROOT / path), f"{path}::{name}"


def test_every_test_of_an_incident_is_on_the_page() -> None:
    """What is tested because it happened to somebody can be looked up."""
    page = set(NAMED.findall(PAGE.read_text("utf-8")))
    for path in sorted((ROOT / "tests/contract").glob("test_incidents_*.py")):
        for name in named_in(path):
            if name.startswith("test_"):
                assert (str(path.relative_to(ROOT)), name) in page
