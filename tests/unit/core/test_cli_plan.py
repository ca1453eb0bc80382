"""What a demo decides before it starts anything."""

import pytest

from kvevents_core import Layout
from kvevents_core.cli.demo_plan import (
    BREAKS,
    Workload,
    blind,
    free_ports,
    make_plan,
    parse_layout,
    place_name,
)
from kvevents_core.cli.output import UsageError
from kvevents_core.errors import LayoutError
from kvevents_core.simulation.job import Job

SHORT = Workload(seconds=1)


def _plan(layout, publisher="zmq", **options):
    return make_plan(parse_layout(layout), publisher, options.pop("given", {}), SHORT, **options)


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("", Layout()),
        ("tp=2", Layout(tp_size=2)),
        ("tp=8, cp=2,attn_dp=2,pp=2", Layout(8, 2, 2, 2)),
        ("dp=3", Layout(dp_size=3)),
    ],
)
def test_a_layout_names_sizes_and_the_rest_is_one(text, layout):
    """The short names stand for the engines' sizes."""
    assert parse_layout(text) == layout


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("atn_dp=2", "did you mean 'attn_dp'"),
        ("tp", "is not a size; write for instance tp=2"),
        ("tp=two", "is not a size"),
        ("tp=-1", "is not a size"),
        ("tp=2,tp=4", "given twice"),
        ("banana=2", "known are tp, cp, pp, dp, attn_dp"),
    ],
)
def test_a_layout_that_cannot_be_read_is_explained(text, phrase):
    """The message quotes what was typed and says what to type."""
    with pytest.raises(UsageError, match=phrase) as caught:
        parse_layout(text)
    assert repr(text) in str(caught.value)


def test_sizes_that_do_not_fit_together_are_refused_with_the_arithmetic():
    """The layout's own check speaks."""
    with pytest.raises(LayoutError, match="whole number"):
        parse_layout("tp=2,cp=3")


def test_every_placement_of_a_layout_has_a_name_of_its_own():
    """Names are short, since sizes of 1 are left out, and never shared."""
    places = Layout(tp_size=4, pp_size=2, attn_cp_size=2).placements()
    names = [place_name(place) for place in places]
    assert len(set(names)) == len(names) == 8
    assert names[0] == "pp0.tp0"
    assert place_name(Layout().placements()[0]) == "tp0"


@pytest.mark.parametrize(
    ("layout", "dimension", "publishers"),
    [
        ("tp=4,cp=2", "tp", ["tp0", "tp1"]),
        ("tp=4,cp=2", "cp", ["tp0", "tp2"]),
        ("tp=2,pp=2", "pp", ["pp0.tp0", "pp1.tp0"]),
        ("tp=4,attn_dp=2", "dp", ["tp0", "tp2"]),
        ("dp=2,tp=2", "dp", ["dp0.tp0", "dp1.tp0"]),
    ],
)
def test_a_blind_process_overlooks_one_dimension_and_no_other(layout, dimension, publishers):
    """Each break adds exactly the publishers that forgetting that dimension adds, on stream 0."""
    found = [
        (place_name(place), blind(place, dimension).stream_rank)
        for place in parse_layout(layout).placements()
        if blind(place, dimension).is_publisher
    ]
    assert found == [(name, 0) for name in publishers]


@pytest.mark.parametrize("broken", BREAKS)
def test_a_break_that_changes_no_publisher_is_refused(broken):
    """In a layout without that dimension nothing would be shown, so the plan says so."""
    with pytest.raises(UsageError, match="changes no publisher in this layout"):
        _plan("", broken=broken)


def test_forgetting_tp_in_a_layout_where_cp_takes_all_of_it_is_refused():
    """TP2 x CP2 leaves an attention TP group of one: the tp part of the rule plays no role."""
    with pytest.raises(UsageError, match="attention TP size is 1"):
        _plan("tp=2,cp=2", broken="tp")


def test_all_processes_share_the_configuration_and_each_stream_its_traffic():
    """Ranks of one stream get one seed, other data-parallel ranks another."""
    plan = _plan("dp=2,tp=2,pp=2")
    assert len(plan.jobs) == 8
    seeds = {}
    for job in plan.jobs:
        assert job.config is plan.config
        assert job.claimed == job.placement
        seeds.setdefault(job.placement.stream_rank, set()).add(job.seed)
    assert seeds == {0: {0}, 1: {1}}


def test_two_runs_never_share_a_stream_name():
    """Old records of a broker cannot disturb a run."""
    first, second = _plan("tp=2"), _plan("tp=2")
    assert first.config["instance"] != second.config["instance"]


def test_a_given_key_wins_over_what_the_demo_would_choose():
    """An endpoint of the operator's own comes without a replay endpoint he did not ask for."""
    plan = _plan("tp=2", given={"endpoint": "tcp://127.0.0.1:7000", "heartbeat_s": 3})
    assert plan.config["endpoint"] == "tcp://127.0.0.1:7000"
    assert plan.config["heartbeat_s"] == 3
    assert "replay_endpoint" not in plan.config


def test_zmq_addresses_of_all_ranks_are_apart():
    """Event and replay ports of a run do not overlap."""
    plan = _plan("dp=3")
    event = int(plan.config["endpoint"].rpartition(":")[2])
    replay = int(plan.config["replay_endpoint"].rpartition(":")[2])
    assert replay == event + 3


def test_a_broker_gets_no_zmq_keys():
    """Other backends are configured by their own defaults and --config alone."""
    config = _plan("dp=2", publisher="kafka", given={"bootstrap_servers": "b:9092"}).config
    assert config["bootstrap_servers"] == "b:9092"
    assert not {"endpoint", "bind", "replay_endpoint"} & set(config)


@pytest.mark.parametrize("publisher", ["memory", "null"])
def test_what_cannot_cross_processes_is_refused(publisher):
    """The demo's ranks are processes."""
    with pytest.raises(UsageError, match="between processes"):
        _plan("tp=2", publisher=publisher)


def test_connect_mode_is_zmqs():
    """With a broker there is nothing to turn round."""
    with pytest.raises(UsageError, match="--connect is for zmq"):
        _plan("tp=2", publisher="nats", connect=True)
    assert _plan("tp=2", connect=True).config["bind"] is False


def test_free_ports_are_outside_the_range_of_outgoing_connections():
    """No connection of another program can take one by chance."""
    first = free_ports(4)
    assert 15_000 <= first < 32_000 - 3


def test_a_job_survives_its_way_through_a_pipe():
    """What the child reads is what the parent planned, placements included."""
    for job in _plan("tp=2,pp=2", broken="pp").jobs:
        assert Job.from_line(job.to_line()) == job
