"""Who publishes, and as which stream: the one rule, written once.

An engine is many processes, but each data-parallel rank has one KV cache that its TP, CP and PP
processes hold together. Exactly one of them may tell the world what is in it. Every question about
that is answered by two pure functions, ``publishes`` and ``stream_rank_of``; nothing else in the
project may repeat their conditions. Pure: no I/O, no environment, no engine.

The arithmetic is SGLang's (0.5.23, ``runtime_context.py``:73-106 and
``disaggregation/kv_events.py``:44-66). MoE ranks and DCP play no part: they shard inside a cache.
In vLLM (0.33, ``v1/core/sched/scheduler.py``:205) the EngineCore of each data-parallel rank
publishes and its workers never do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import InitVar, dataclass

from kvevents_core.errors import LayoutError


def publishes(pp_rank: int, attn_tp_rank: int, attn_cp_rank: int) -> bool:
    """Return whether the process at these ranks publishes the cache it shares with others."""
    return pp_rank == 0 and attn_tp_rank == 0 and attn_cp_rank == 0


def stream_rank_of(attn_dp_size: int, attn_dp_rank: int, dp_rank: int | None) -> int:
    """Return the data-parallel rank whose cache a process holds, under either kind of DP."""
    return attn_dp_rank if attn_dp_size > 1 else (dp_rank or 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one engine process sits. The names and the arithmetic are SGLang's.

    Raises:
        LayoutError: A size or rank is impossible; the message gives the arithmetic.
    """

    tp_rank: int = 0
    tp_size: int = 1
    """Processes of one pipeline stage, attention CP and attention DP included."""
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_size: int = 1
    attn_dp_size: int = 1
    """Data parallelism inside the TP group (``--attn-dp-size``)."""
    dp_rank: int | None = 0
    """Replica under pure data parallelism; None where the engine has none. Under attention DP it
    plays no part and is not checked: SGLang passes the attention-DP rank here."""
    dp_size: int = 1
    """Replicas under pure data parallelism, each of ``tp_size * pp_size`` processes."""

    def __post_init__(self) -> None:
        _check_sizes(
            self.tp_size, self.pp_size, self.attn_cp_size, self.attn_dp_size, self.dp_size
        )
        _check_rank("tp", self.tp_rank, self.tp_size)
        _check_rank("pp", self.pp_rank, self.pp_size)
        if self.attn_dp_size > 1:
            return
        if self.dp_rank is not None:
            _check_rank("dp", self.dp_rank, self.dp_size)
        elif self.dp_size > 1:
            raise LayoutError(
                f"dp_size is {self.dp_size} but dp_rank is None: every replica would publish as "
                "stream 0; pass the rank of this replica"
            )

    @classmethod
    def for_engine_core(cls, index: int, size: int) -> Placement:
        """Return the placement of a vLLM EngineCore.

        Args:
            index: ``parallel_config.data_parallel_index``; not ``data_parallel_rank``, which is
                reset to 0 for dense models.
            size: Number of data-parallel ranks over all nodes.
        """
        return cls(dp_rank=index, dp_size=size)

    @property
    def attn_tp_size(self) -> int:
        """Processes that share one attention shard group."""
        return self.tp_size // self.attn_dp_size // self.attn_cp_size

    @property
    def attn_tp_rank(self) -> int:
        """Rank in the attention TP group."""
        return self.tp_rank % self.attn_tp_size

    @property
    def attn_cp_rank(self) -> int:
        """Rank in the attention context-parallel group."""
        return self.tp_rank // self.attn_tp_size % self.attn_cp_size

    @property
    def attn_dp_rank(self) -> int:
        """Rank among the attention data-parallel groups."""
        return self.tp_rank // (self.attn_tp_size * self.attn_cp_size)

    @property
    def is_publisher(self) -> bool:
        """Whether this process publishes its stream; every other holder of the cache is silent."""
        return publishes(self.pp_rank, self.attn_tp_rank, self.attn_cp_rank)

    @property
    def stream_rank(self) -> int:
        """Data-parallel rank of this process, 0..``stream_ranks`` - 1, publisher or not."""
        return stream_rank_of(self.attn_dp_size, self.attn_dp_rank, self.dp_rank)

    @property
    def stream_ranks(self) -> int:
        """Number of streams of the whole engine."""
        return self.dp_size * self.attn_dp_size

    def explain(self) -> str:
        """Return one line for people: the decision and the ranks that made it."""
        stream = f"stream {self.stream_rank} of {self.stream_ranks}"
        if self.is_publisher:
            return f"publishes {stream}: pp_rank, attn_tp_rank and attn_cp_rank are all 0"
        ranks = {
            "pp_rank": self.pp_rank,
            "attn_tp_rank": self.attn_tp_rank,
            "attn_cp_rank": self.attn_cp_rank,
        }
        causes = " and ".join(f"{name} is {rank}" for name, rank in ranks.items() if rank)
        return f"silent: {causes}; {stream} is published where all three are 0"


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes of one engine. Sizes as in ``Placement``.

    ``ep_size``, ``moe_dp_size``, ``moe_tp_size`` and ``dcp_size`` are accepted and ignored: they
    shard experts or blocks inside a cache and change neither publishers nor streams.

    Raises:
        LayoutError: The sizes are impossible together; the message gives the arithmetic.
    """

    tp_size: int = 1
    pp_size: int = 1
    attn_cp_size: int = 1
    attn_dp_size: int = 1
    dp_size: int = 1
    ep_size: InitVar[int] = 1
    moe_dp_size: InitVar[int] = 1
    moe_tp_size: InitVar[int] = 1
    dcp_size: InitVar[int] = 1

    def __post_init__(self, *_ignored: int) -> None:
        _check_sizes(
            self.tp_size, self.pp_size, self.attn_cp_size, self.attn_dp_size, self.dp_size
        )

    @property
    def processes(self) -> int:
        """Number of engine processes."""
        return self.dp_size * self.pp_size * self.tp_size

    @property
    def stream_ranks(self) -> int:
        """Number of streams, which is the number of data-parallel ranks of either kind."""
        return self.dp_size * self.attn_dp_size

    def placements(self) -> tuple[Placement, ...]:
        """Return every process, by dp_rank, then pp_rank, then tp_rank."""
        return tuple(self._enumerate())

    def publishers(self) -> tuple[Placement, ...]:
        """Return the publisher of each stream, in order of stream rank."""
        chosen = (place for place in self._enumerate() if place.is_publisher)
        return tuple(sorted(chosen, key=lambda place: place.stream_rank))

    def _enumerate(self) -> Iterator[Placement]:
        for dp_rank in range(self.dp_size):
            for pp_rank in range(self.pp_size):
                for tp_rank in range(self.tp_size):
                    yield Placement(
                        tp_rank,
                        self.tp_size,
                        pp_rank,
                        self.pp_size,
                        self.attn_cp_size,
                        self.attn_dp_size,
                        dp_rank,
                        self.dp_size,
                    )


def _check_sizes(
    tp_size: int, pp_size: int, attn_cp_size: int, attn_dp_size: int, dp_size: int
) -> None:
    sizes = {
        "tp_size": tp_size,
        "pp_size": pp_size,
        "attn_cp_size": attn_cp_size,
        "attn_dp_size": attn_dp_size,
        "dp_size": dp_size,
    }
    for name, size in sizes.items():
        if not _is_integer(size) or size < 1:
            raise LayoutError(f"{name} is {size!r}; it must be an integer of at least 1")
    if dp_size > 1 and attn_dp_size > 1:
        raise LayoutError(
            f"dp_size is {dp_size} and attn_dp_size is {attn_dp_size}; only one kind of data "
            "parallelism can be in use, so one of them must be 1"
        )
    if tp_size % (attn_dp_size * attn_cp_size):
        raise LayoutError(
            f"attn_tp_size = tp_size / attn_dp_size / attn_cp_size = "
            f"{tp_size} / {attn_dp_size} / {attn_cp_size} is not a whole number; tp_size must be "
            f"a multiple of {attn_dp_size} x {attn_cp_size} = {attn_dp_size * attn_cp_size}"
        )


def _check_rank(kind: str, rank: int, size: int) -> None:
    if not _is_integer(rank) or not 0 <= rank < size:
        raise LayoutError(f"{kind}_rank is {rank!r}; with {kind}_size {size} it is 0..{size - 1}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
