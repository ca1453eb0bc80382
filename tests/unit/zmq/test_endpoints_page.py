"""The tables of ``docs/reference/endpoints.md`` say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from kvevents_zmq import ZmqSettings, endpoints, frames
from kvevents_zmq.endpoints import parse_endpoint

PAGE = (Path(__file__).parents[3] / "docs/reference/endpoints.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under ``heading``, without its first two lines."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def code(cell: str) -> list[str]:
    """Return the pieces of code in ``cell``."""
    return re.findall(r"`([^`]*)`", cell)


def test_the_keys_and_their_defaults_are_those_of_the_settings() -> None:
    """None missing, none invented."""
    told: dict[str, str] = {}
    for names, default, _ in rows("Keys"):
        told |= dict.fromkeys(code(names), default)
    fields = ZmqSettings.model_fields
    assert set(told) == set(fields)
    for name, default in told.items():
        value = fields[name].default
        expected = "not given" if value is None else f'`"{value}"`' if value == "" else str(value)
        assert default.strip("`") == expected.strip("`"), name


def test_each_address_of_a_rank_is_as_told() -> None:
    """The page's own examples."""
    for endpoint, rank, address in rows("Each stream rank its own address"):
        assert str(parse_endpoint(code(endpoint)[0]).for_rank(int(rank))) == code(address)[0]


def test_who_binds_is_as_told() -> None:
    """The rows without ``bind``."""
    for cell, bind, does in rows("Who binds"):
        for endpoint in code(cell):
            assert bind == "not given"
            assert endpoints.binds(parse_endpoint(endpoint), None) is (does == "binds")


def test_where_a_reader_goes_is_as_told() -> None:
    """Dialled or bound."""
    for endpoint, host, does in rows("Where a reader goes"):
        there = parse_endpoint(code(endpoint)[0])
        if does.startswith("binds"):
            found = endpoints.listen(there)
        else:
            found = endpoints.dial(there, code(host)[0] if host else None)
        assert [str(found)] == code(does)


def test_what_is_told_to_be_an_endpoint_is_one() -> None:
    """And the example of a head reply can be read."""
    for written, _ in rows("What is an endpoint"):
        assert str(parse_endpoint(code(written)[0])) == code(written)[0]
    body = PAGE.split("```json\n")[1].split("\n```")[0]
    reply = frames.parse_reply([b"", frames.HEAD_REQUEST, body.encode()])
    assert isinstance(reply, frames.HeadReply)
    assert reply.stream is not None
    assert reply.stream.model == "Qwen/Qwen3-0.6B"
