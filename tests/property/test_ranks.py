"""Every legal layout up to 64 processes: one publisher per stream rank, none elsewhere."""

from collections import Counter
from itertools import product

import pytest

from kvevents_core.errors import LayoutError
from kvevents_core.ranks import Layout, Placement

MOST_PROCESSES = 64


def legal_layouts() -> list[Layout]:
    """Enumerate without asking Layout: the divisors are the definition of legal here."""
    layouts = []
    for tp_size in range(1, MOST_PROCESSES + 1):
        for pp_size in range(1, MOST_PROCESSES // tp_size + 1):
            for attn_dp_size, attn_cp_size in product(range(1, tp_size + 1), repeat=2):
                if tp_size % (attn_dp_size * attn_cp_size):
                    continue
                most = MOST_PROCESSES // (tp_size * pp_size) if attn_dp_size == 1 else 1
                layouts += [
                    Layout(tp_size, pp_size, attn_cp_size, attn_dp_size, dp_size)
                    for dp_size in range(1, most + 1)
                ]
    return layouts


LAYOUTS = legal_layouts()


def test_every_stream_rank_has_exactly_one_publisher():
    """Publishers' stream ranks are exactly 0..dp-1, each once, whatever the layout."""
    assert len(LAYOUTS) > 1000
    for layout in LAYOUTS:
        places = layout.placements()
        ranks = [place.stream_rank for place in places if place.is_publisher]
        assert sorted(ranks) == list(range(layout.dp_size * layout.attn_dp_size)), layout
        assert layout.stream_ranks == len(ranks)
        assert [place.stream_rank for place in layout.publishers()] == sorted(ranks)


def test_every_process_belongs_to_a_stream_that_somebody_publishes():
    """The caches are equally large groups; a silent process shares its stream with a publisher."""
    for layout in LAYOUTS:
        sharing = Counter(place.stream_rank for place in layout.placements())
        assert set(sharing) == set(range(layout.stream_ranks)), layout
        assert set(sharing.values()) == {layout.processes // layout.stream_ranks}, layout


def test_the_derived_ranks_place_each_process_once():
    """The inverse formula gives tp_rank back, so no two processes have the same coordinates."""
    for layout in LAYOUTS:
        for place in layout.placements():
            group = place.attn_dp_rank * place.attn_cp_size + place.attn_cp_rank
            assert group * place.attn_tp_size + place.attn_tp_rank == place.tp_rank
            assert 0 <= place.attn_dp_rank < place.attn_dp_size
            assert 0 <= place.attn_cp_rank < place.attn_cp_size


def test_a_placement_never_depends_on_how_it_was_made():
    """An engine that builds its own Placement decides as the layout does."""
    for layout in LAYOUTS:
        for place in layout.placements():
            alone = Placement(
                tp_rank=place.tp_rank,
                tp_size=layout.tp_size,
                pp_rank=place.pp_rank,
                pp_size=layout.pp_size,
                attn_cp_size=layout.attn_cp_size,
                attn_dp_size=layout.attn_dp_size,
                dp_rank=place.dp_rank,
                dp_size=layout.dp_size,
            )
            assert (alone.is_publisher, alone.stream_rank) == (
                place.is_publisher,
                place.stream_rank,
            )
            assert alone.explain().startswith("publishes" if alone.is_publisher else "silent")


@pytest.mark.parametrize("tp_size", range(1, 17))
def test_sizes_that_do_not_divide_are_always_refused(tp_size):
    """Nothing between legal and refused: a remainder never becomes a guess."""
    for attn_dp_size, attn_cp_size in product(range(1, 18), repeat=2):
        if tp_size % (attn_dp_size * attn_cp_size):
            with pytest.raises(LayoutError, match="is not a whole number"):
                Layout(tp_size, attn_dp_size=attn_dp_size, attn_cp_size=attn_cp_size)
