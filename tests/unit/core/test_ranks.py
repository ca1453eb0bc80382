"""Who publishes: the cases that went wrong in public, and the sizes that cannot be."""

import dataclasses
import subprocess
import sys

import pytest

from kvevents_core import ranks
from kvevents_core.errors import LayoutError
from kvevents_core.ranks import Layout, Placement


def publishers(layout: Layout) -> list[tuple[int, int, int, int]]:
    """Return (stream rank, dp_rank, pp_rank, tp_rank) of each publisher."""
    return [
        (place.stream_rank, place.dp_rank or 0, place.pp_rank, place.tp_rank)
        for place in layout.publishers()
    ]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        pytest.param(Layout(), [(0, 0, 0, 0)], id="one process"),
        pytest.param(Layout(tp_size=2), [(0, 0, 0, 0)], id="tp2"),
        pytest.param(Layout(tp_size=2, attn_cp_size=2), [(0, 0, 0, 0)], id="tp2cp2"),
        pytest.param(Layout(tp_size=4, attn_cp_size=2), [(0, 0, 0, 0)], id="tp4cp2"),
        pytest.param(Layout(pp_size=2), [(0, 0, 0, 0)], id="pp2"),
        pytest.param(Layout(tp_size=4, pp_size=2), [(0, 0, 0, 0)], id="tp4pp2"),
        pytest.param(Layout(dp_size=2), [(0, 0, 0, 0), (1, 1, 0, 0)], id="pure dp2"),
        pytest.param(Layout(tp_size=2, dp_size=2), [(0, 0, 0, 0), (1, 1, 0, 0)], id="tp2dp2"),
        pytest.param(
            Layout(tp_size=8, attn_dp_size=2), [(0, 0, 0, 0), (1, 0, 0, 4)], id="tp8adp2"
        ),
        pytest.param(
            Layout(tp_size=8, attn_dp_size=4), [(r, 0, 0, 2 * r) for r in range(4)], id="tp8adp4"
        ),
        pytest.param(
            Layout(tp_size=8, attn_dp_size=8), [(r, 0, 0, r) for r in range(8)], id="tp8adp8"
        ),
        pytest.param(
            Layout(tp_size=8, pp_size=2, attn_cp_size=2, attn_dp_size=2),
            [(0, 0, 0, 0), (1, 0, 0, 4)],
            id="tp8pp2adp2cp2",
        ),
        pytest.param(
            Layout(tp_size=16, pp_size=2, attn_cp_size=2, attn_dp_size=4),
            [(r, 0, 0, 4 * r) for r in range(4)],
            id="tp16pp2adp4cp2",
        ),
    ],
)
def test_exactly_the_named_processes_publish(layout, expected):
    """One publisher per stream rank: the layouts of the incidents and of the engines' wheels."""
    assert publishers(layout) == expected
    assert layout.stream_ranks == len(expected)
    assert sum(place.is_publisher for place in layout.placements()) == len(expected)


def test_context_parallel_replicas_are_silent_and_say_why():
    """TP 2 x CP 2: both processes have attn_tp_rank 0, only CP rank 0 publishes."""
    first, second = Layout(tp_size=2, attn_cp_size=2).placements()
    assert (first.attn_tp_rank, second.attn_tp_rank) == (0, 0)
    assert (first.attn_cp_rank, second.attn_cp_rank) == (0, 1)
    assert (first.is_publisher, second.is_publisher) == (True, False)
    assert "attn_cp_rank is 1" in second.explain()
    assert first.explain().startswith("publishes stream 0 of 1")


def test_pure_data_parallel_replicas_take_their_stream_rank_from_dp_rank():
    """Pure DP 2: attn_dp_rank is 0 in every replica and must not be used."""
    places = Layout(dp_size=2).placements()
    assert [place.attn_dp_rank for place in places] == [0, 0]
    assert [place.stream_rank for place in places] == [0, 1]


def test_attention_dp_ignores_dp_rank():
    """Under attention DP SGLang passes the attention rank as dp_rank; it plays no part."""
    place = Placement(tp_rank=4, tp_size=8, attn_dp_size=2, dp_rank=1, dp_size=1)
    assert (place.stream_rank, place.is_publisher) == (1, True)


def test_no_data_parallelism_may_leave_dp_rank_out():
    """None, as SGLang passes it without a DP controller, is stream 0 of 1."""
    assert Placement(dp_rank=None).stream_rank == 0


def test_every_derived_rank_of_the_worked_example():
    """With tp 8, attn_dp 2, attn_cp 2: attention TP varies fastest, then CP, then DP."""
    places = Layout(tp_size=8, attn_dp_size=2, attn_cp_size=2).placements()
    derived = [(p.attn_dp_rank, p.attn_cp_rank, p.attn_tp_rank) for p in places]
    assert derived == [(d, c, t) for d in range(2) for c in range(2) for t in range(2)]
    assert {place.attn_tp_size for place in places} == {2}


def test_engine_cores_publish_one_stream_each():
    """vLLM: every EngineCore publishes, as its data_parallel_index."""
    cores = [Placement.for_engine_core(index, 3) for index in range(3)]
    assert [core.stream_rank for core in cores] == [0, 1, 2]
    assert all(core.is_publisher and core.stream_ranks == 3 for core in cores)


def test_moe_and_dcp_sizes_change_nothing():
    """MoE and DCP sizes are accepted and ignored."""
    with_moe = Layout(
        tp_size=8, attn_dp_size=2, ep_size=8, moe_dp_size=4, moe_tp_size=2, dcp_size=2
    )
    assert with_moe == Layout(tp_size=8, attn_dp_size=2)
    assert dataclasses.replace(with_moe, tp_size=4).processes == 4


def test_sixteen_placements_are_listed_in_rank_order():
    """With tp 8, cp 2, attention DP 2, pp 2 there are 16 processes, each once."""
    layout = Layout(tp_size=8, pp_size=2, attn_cp_size=2, attn_dp_size=2)
    places = layout.placements()
    assert [(p.pp_rank, p.tp_rank) for p in places] == [(s, t) for s in range(2) for t in range(8)]
    assert layout.processes == len(places) == 16


@pytest.mark.parametrize(
    ("sizes", "arithmetic"),
    [
        ({"tp_size": 6, "attn_dp_size": 4}, "6 / 4 / 1 is not a whole number"),
        ({"tp_size": 4, "attn_dp_size": 2, "attn_cp_size": 4}, "2 x 4 = 8"),
        ({"tp_size": 8, "attn_dp_size": 2, "dp_size": 2}, "only one kind"),
        ({"attn_cp_size": 2}, "1 / 1 / 2"),
        ({"tp_size": 0}, "tp_size is 0"),
        ({"pp_size": -1}, "pp_size is -1"),
        ({"dp_size": True}, "dp_size is True"),
        ({"attn_cp_size": 1.0}, "attn_cp_size is 1.0"),
        ({"attn_dp_size": "2"}, "attn_dp_size is '2'"),
    ],
)
@pytest.mark.parametrize("kind", [Layout, Placement])
def test_impossible_sizes_are_refused_with_the_arithmetic(kind, sizes, arithmetic):
    """Layout and Placement refuse the same sizes with the same reason."""
    with pytest.raises(LayoutError) as caught:
        kind(**sizes)
    assert arithmetic in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank is 2; with tp_size 2 it is 0..1"),
        ({"pp_rank": -1, "pp_size": 2}, "pp_rank is -1"),
        ({"dp_rank": 2, "dp_size": 2}, "dp_rank is 2"),
        ({"tp_rank": True, "tp_size": 2}, "tp_rank is True"),
        ({"dp_rank": None, "dp_size": 2}, "every replica would publish as stream 0"),
    ],
)
def test_impossible_ranks_are_refused(fields, reason):
    """A rank outside its size, or a replica that cannot be told from the others."""
    with pytest.raises(LayoutError, match=reason):
        Placement(**fields)


def test_engine_core_index_outside_its_size_is_refused():
    """for_engine_core checks like every other placement."""
    with pytest.raises(LayoutError):
        Placement.for_engine_core(2, 2)


def test_the_rule_is_one_function_that_every_answer_goes_through(monkeypatch):
    """Replacing the predicate changes Placement and Layout alike: there is no second copy."""
    monkeypatch.setattr(ranks, "publishes", lambda pp_rank, attn_tp_rank, attn_cp_rank: True)
    layout = Layout(tp_size=2, pp_size=2)
    assert len(layout.publishers()) == 4
    monkeypatch.setattr(ranks, "stream_rank_of", lambda attn_dp_size, attn_dp_rank, dp_rank: 7)
    assert {place.stream_rank for place in layout.placements()} == {7}


def test_importing_ranks_is_cheap():
    """Engines import the rule in every process: no pydantic, no pluggy, no client library."""
    heavy = {"pydantic", "pydantic_settings", "pluggy", "zmq", "nats", "kafka", "msgspec"}
    program = f"import sys, kvevents_core.ranks; print(sorted({heavy!r} & set(sys.modules)))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30
    )
    assert ran.stdout.strip() == "[]"
