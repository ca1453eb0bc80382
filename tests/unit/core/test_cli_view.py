"""What people see of a demo: tables while it runs, a verdict in words at the end."""

import io

import pytest
from rich.console import Console

from kvevents_core import AllBlocksCleared, Batch, StreamId
from kvevents_core.cli import demo_view
from kvevents_core.cli.demo_plan import Workload, make_plan, parse_layout
from kvevents_core.cli.demo_verdict import judge
from kvevents_core.cli.demo_view import DemoView, print_verdict
from kvevents_core.cli.demo_watch import DemoWatch


def _progress(requests):
    return {
        "kind": "progress",
        "requests": requests,
        "hit_blocks": 3,
        "prompt_blocks": 4,
        "cached_blocks": 600,
        "published_batches": 10 * requests,
        "published_events": 20 * requests,
        "recorded_events": 0,
    }


@pytest.fixture
def watch():
    """A publisher, a silent process, a refused one and one that has not started."""
    watch = DemoWatch(make_plan(parse_layout("tp=4"), "zmq", {}, Workload()))
    watch.take_message(0, {"kind": "ready", "publishes": True, "listening": ["127.0.0.1:1"]})
    watch.take_message(1, {"kind": "ready", "publishes": False, "listening": []})
    watch.take_message(2, {"kind": "failed", "publishes": True, "error": "taken"})
    watch.take_message(0, _progress(10))
    watch.take_item(
        Batch(
            stream=StreamId("default", "demo", "d", 0),
            epoch=None,
            seq=0,
            ts=0.0,
            events=[AllBlocksCleared()],
        )
    )
    return watch


def _text(renderable):
    console = Console(width=160, file=io.StringIO())
    console.print(renderable)
    return console.file.getvalue()


def _line(text, beginning):
    return next(line for line in text.splitlines() if line.startswith(beginning))


def test_each_process_has_a_row_with_its_role(watch):
    """Publishing, silent, refused and starting are told apart."""
    text = _text(DemoView().draw(watch))
    assert "publishes stream 0" in _line(text, "tp0")
    assert "silent" in _line(text, "tp1")
    assert "refused" in _line(text, "tp2")
    assert "starting" in _line(text, "tp3")
    assert "4 processes, 1 streams over zmq" in text


def test_occupancy_and_hit_rate_are_those_reported(watch):
    """Half full is half a bar."""
    row = _line(_text(DemoView().draw(watch)), "tp0")
    assert "600/1200" in row
    assert "██████░░░░░░" in row
    assert "75%" in row


def test_rates_are_counts_over_the_time_between_two_reports(watch, monkeypatch):
    """Twenty requests more in two seconds are ten a second, with their batches and events."""
    now_s = [100.0]
    monkeypatch.setattr(demo_view.time, "monotonic", lambda: now_s[0])
    view = DemoView()
    view.draw(watch)
    now_s[0] += 2
    watch.take_message(0, _progress(30))
    assert _line(_text(view.draw(watch)), "tp0").split()[4:7] == ["10", "100", "200"]


def test_the_readers_side_is_shown_per_stream(watch):
    """Seq, batches, events and the size of the mirror."""
    text = _text(DemoView().draw(watch))
    row = text.splitlines()[-1].split()
    assert row == ["0", "0", "1", "1", "0", "0", "0", "0", "blocks"]


def test_the_verdict_names_what_failed_and_who_published(watch):
    """Each problem is one line that begins with FAILED; logs of the processes come along."""
    watch.take_message(1, {"kind": "log", "level": "WARNING", "message": "something odd"})
    console = Console(width=200, file=io.StringIO())
    verdict = judge(watch)
    print_verdict(console, watch, verdict)
    text = console.file.getvalue()
    assert text.count("FAILED  ") == len(verdict.problems)
    assert "tp1: something odd" in text
    assert "stream 0   published by tp0 (pid 0) on 127.0.0.1:1; tp2 (pid 0, refused)" in text
