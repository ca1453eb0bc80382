"""The demo's verdict: each fault that can be planted is found and named."""

import pytest

from kvevents_core import AllBlocksCleared, Batch, BlockStored, Conflict, Gap, Restarted, StreamId
from kvevents_core.cli.demo_plan import Workload, make_plan, parse_layout
from kvevents_core.cli.demo_verdict import judge
from kvevents_core.cli.demo_watch import DemoWatch

STREAM = StreamId("default", "demo", "demo-1", 0)
HELD = [-(2**62), 5_000_000_000, 7_000_000_000]


def _done(publishes, **changes):
    """The report of a process that has served its requests."""
    return {
        "kind": "done",
        "publishes": publishes,
        "dump": HELD,
        "requests": 9,
        "cached_blocks": 3,
        "recorded_events": 1 if publishes else 0,
        "metrics": {"events": 1 if publishes else 0},
        "published_batches": 2 if publishes else 0,
        "lost": {},
        "next_seq": 2 if publishes else 0,
        "epoch": 1 if publishes else None,
        "superseded_by": None,
        "sockets": 3 if publishes else 0,
        "listening": ["127.0.0.1:5557"] if publishes else [],
        "publisher_threads": 4 if publishes else 0,
        **changes,
    }


def _batch(seq, events, stream=STREAM, **changes):
    return Batch(stream=stream, epoch=None, seq=seq, ts=0.0, events=events, **changes)


@pytest.fixture
def watch():
    """A run of two processes, publisher and silent replica, in which all is well."""
    watch = DemoWatch(make_plan(parse_layout("tp=2"), "zmq", {}, Workload()))
    for index, process in enumerate(watch.processes):
        process.pid = 100 + index
        done = _done(publishes=index == 0)
        watch.take_message(index, {**done, "kind": "ready"})
        watch.take_message(index, done)
    watch.take_item(_batch(0, [AllBlocksCleared()]))
    watch.take_item(_batch(1, [BlockStored(block_hashes=HELD, token_ids=[], block_size=16)]))
    return watch


def _problems(watch):
    verdict = judge(watch)
    assert verdict.is_ok == (not verdict.problems)
    return " | ".join(verdict.problems)


def test_a_run_in_which_all_is_well_has_no_problem(watch):
    """The signed hashes of the dump and the canonical ones of the mirror are the same blocks."""
    assert _problems(watch) == ""
    facts = judge(watch).to_json()
    assert facts["ok"] is True
    assert (facts["streams"], facts["duplicates"], facts["gaps"]) == (1, 0, 0)
    assert facts["mirror_equal"] is True


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"recorded_events": 7}, "must be silent but has recorded events: 7"),
        ({"metrics": {"events": 2}}, "must be silent but has event metrics: 2"),
        ({"sockets": 1}, "must be silent but has open sockets: 1"),
        ({"publisher_threads": 1}, "must be silent but has threads of a publisher: 1"),
        ({"listening": ["127.0.0.1:1"]}, "must be silent but has listening addresses"),
        ({"dump": HELD[:2]}, "differ although they share stream 0"),
    ],
)
def test_a_silent_process_that_is_not_silent_is_named(watch, change, phrase):
    """Recording, counting, sockets, threads, binds: each alone fails the run."""
    watch.take_message(1, _done(publishes=False, **change))
    assert phrase in _problems(watch)
    assert "tp1 (pid 101)" in _problems(watch)


def test_a_second_publisher_is_a_duplicate_even_if_the_reader_noticed_nothing(watch):
    """Both use rank 0 and one content: only the processes' identities show it."""
    watch.processes[1].ready["publishes"] = True
    assert judge(watch).facts["duplicates"] == 1
    assert "stream 0 was published by 2 processes: tp0 (pid 100) and tp1 (pid 101)" in _problems(
        watch
    )


def test_a_stranger_on_the_stream_is_a_duplicate_though_every_process_behaves(watch):
    """The reader's conflict is enough."""
    watch.take_item(Conflict(STREAM, None, 1, "somebody else"))
    assert judge(watch).facts["duplicates"] == 1
    assert "somebody else" in _problems(watch)


def test_a_process_that_was_refused_is_a_duplicate_and_named(watch):
    """Its gate was open: it would have published."""
    process = watch.processes[1]
    process.ready = process.done = None
    watch.take_message(1, {"kind": "failed", "publishes": True, "error": "taken already"})
    assert judge(watch).facts["duplicates"] == 1
    assert "tp1 (pid 101, refused) could not start: taken already" in _problems(watch)


@pytest.mark.parametrize(
    ("item", "phrase"),
    [
        (Gap(STREAM, None, 2, 3, "ring too short"), "stream 0 has a gap, seq 2-3 lost"),
        (Restarted(STREAM, 1, 2), "began a new life 1 times"),
        (_batch(2, [], skipped_events=4), "4 events of stream 0 could not be decoded"),
        (_batch(2, [BlockStored(block_hashes=[9])]), "is not what the cache holds (3 blocks)"),
        (_batch(2, [AllBlocksCleared()]), "mirror of stream 0 (0 blocks)"),
        (_batch(0, [], StreamId("default", "demo", "demo-1", 1)), "does not exist in this layout"),
    ],
)
def test_what_the_reader_must_not_see_is_named(watch, item, phrase):
    """Gaps, restarts, unreadable events, a wrong mirror, a stream too many."""
    watch.take_item(item)
    assert phrase in _problems(watch)


def test_a_batch_the_reader_never_got_is_named(watch):
    """The publisher's own count is the other end of the comparison."""
    watch.take_message(0, _done(publishes=True, next_seq=5))
    assert not watch.has_read_everything()
    assert "sent stream 0 up to seq 4; the reader has 1" in _problems(watch)


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"lost": {"overflow": 3}}, "lost batches: 3 by overflow"),
        ({"superseded_by": 9}, "was told that another process owns stream 0"),
    ],
)
def test_trouble_of_a_publisher_is_named(watch, change, phrase):
    """Loss and losing ownership fail a run although the reader may see a clean stream."""
    watch.take_message(0, _done(publishes=True, **change))
    assert phrase in _problems(watch)


def test_a_publisher_that_listens_nowhere_is_named(watch):
    """In bind mode a publisher without an address reaches nobody."""
    watch.processes[0].ready["listening"] = []
    assert "listens on no address" in _problems(watch)


def test_silence_of_everybody_is_no_success():
    """Without publisher, stream and mirror the run fails for each of them."""
    watch = DemoWatch(make_plan(parse_layout("tp=2"), "zmq", {}, Workload()))
    watch.take_message(0, {"kind": "exited", "code": 1})
    problems = _problems(watch)
    assert "tp0 (pid 0) never started; it ended with exit code 1" in problems
    assert "tp1 (pid 0) never started in time" in problems
    assert "stream 0 has no publisher" in problems
    assert "stream 0 was never seen" in problems
    assert judge(watch).facts["mirror_equal"] is False


def test_a_process_that_died_under_load_is_named(watch):
    """It had started, so its exit code is the news."""
    watch.processes[0].done = None
    watch.take_message(0, {"kind": "exited", "code": -9})
    assert "tp0 (pid 100) did not finish its requests; it ended with exit code -9" in _problems(
        watch
    )
