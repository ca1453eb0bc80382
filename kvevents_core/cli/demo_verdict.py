"""Judges what a demo saw: exactly one stream per data-parallel rank, whole, and true to the cache.

Pure. Every check that fails adds one sentence that names processes, so that nobody has to guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvevents_core.cli.demo_watch import DemoWatch, ProcessWatch, StreamWatch
from kvevents_core.wire import normalise_hash


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one demo."""

    problems: tuple[str, ...]
    """One sentence for each thing that is not as it must be; empty if all is well."""
    facts: dict[str, Any]
    """JSON-able counts and names; see ``docs/reference/cli.md``."""

    @property
    def is_ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as one object."""
        return {**self.facts, "ok": self.is_ok, "problems": list(self.problems)}


def judge(watch: DemoWatch) -> Verdict:
    """Return the verdict on everything seen."""
    problems = [
        *_check_lives(watch),
        *_check_publishers(watch),
        *_check_silent(watch),
        *_check_streams(watch),
        *_check_mirrors(watch),
    ]
    return Verdict(tuple(problems), _facts(watch))


def identity(process: ProcessWatch) -> str:
    """Return which process it is, for people."""
    refused = ", refused" if process.failed is not None else ""
    return f"{process.name} (pid {process.pid}{refused})"


def count_duplicates(watch: DemoWatch) -> int:
    """Return how many publishers there were beyond one per stream, refused ones included.

    A stranger that publishes one of the streams shows only by the reader's conflicts.
    """
    extra = sum(max(0, len(watch.publishers(rank)) - 1) for rank in _ranks(watch))
    return max(extra, sum(bool(stream.conflicts) for stream in watch.streams.values()))


def _ranks(watch: DemoWatch) -> range:
    return range(watch.plan.layout.stream_ranks)


def _check_lives(watch: DemoWatch) -> Iterator[str]:
    for process in watch.processes:
        if process.failed is not None:
            yield f"{identity(process)} could not start: {process.failed['error']}"
        elif process.ready is None:
            yield f"{identity(process)} never started{_ending(process)}"
        elif process.done is None:
            yield f"{identity(process)} did not finish its requests{_ending(process)}"
        elif process.done["lost"]:
            lost = ", ".join(f"{n} by {why}" for why, n in process.done["lost"].items())
            yield f"{identity(process)} lost batches: {lost}"


def _ending(process: ProcessWatch) -> str:
    if process.exit_code is None:
        return " in time"
    return f"; it ended with exit code {process.exit_code}"


def _check_publishers(watch: DemoWatch) -> Iterator[str]:
    for rank in _ranks(watch):
        publishers = watch.publishers(rank)
        if not publishers:
            yield f"stream {rank} has no publisher"
        elif len(publishers) > 1:
            names = " and ".join(map(identity, publishers))
            yield f"stream {rank} was published by {len(publishers)} processes: {names}"
        for process in publishers:
            holdings = process.ready
            if watch.plan.publishers_bind and holdings and holdings["listening"] == []:
                yield f"{identity(process)} publishes stream {rank} but listens on no address"
            if process.progress.get("superseded_by") is not None:
                yield f"{identity(process)} was told that another process owns stream {rank}"


def _check_silent(watch: DemoWatch) -> Iterator[str]:
    for process in watch.processes:
        if process.wants_to_publish or process.done is None:
            continue
        done = process.done
        found = {
            "recorded events": done["recorded_events"],
            "event metrics": sum(done["metrics"].values()),
            "published batches": done["published_batches"],
            "open sockets": done["sockets"],
            "threads of a publisher": done["publisher_threads"],
            "listening addresses": done["listening"],
        }
        for what, value in found.items():
            if value:
                yield f"{identity(process)} must be silent but has {what}: {value}"


def _check_streams(watch: DemoWatch) -> Iterator[str]:
    for rank in _ranks(watch):
        if rank not in watch.streams:
            yield f"stream {rank} was never seen by the reader"
    for rank, stream in sorted(watch.streams.items()):
        if rank not in _ranks(watch):
            yield f"stream {rank} was seen but does not exist in this layout"
        yield from _check_stream(watch, rank, stream)


def _check_stream(watch: DemoWatch, rank: int, stream: StreamWatch) -> Iterator[str]:
    yield from (f"stream {rank} has a gap, {gap}" for gap in stream.gaps)
    if stream.conflicts:
        yield f"the reader saw a second publisher of stream {rank}: {stream.conflicts[0]}"
    if stream.restarts:
        yield (
            f"stream {rank} began a new life {stream.restarts} times, although no process was "
            "restarted: another publisher took it over"
        )
    if stream.skipped_events:
        yield f"{stream.skipped_events} events of stream {rank} could not be decoded"
    for process in watch.publishers(rank):
        if process.done and stream.last_seq < process.done["next_seq"] - 1:
            yield (
                f"{identity(process)} sent stream {rank} up to seq "
                f"{process.done['next_seq'] - 1}; the reader has {stream.last_seq}"
            )


def _check_mirrors(watch: DemoWatch) -> Iterator[str]:
    for rank in _ranks(watch):
        dumps = {
            identity(process): _canonical(process)
            for process in watch.processes
            if process.done is not None and process.job.placement.stream_rank == rank
        }
        if len(set(dumps.values())) > 1:
            yield f"the caches of {', '.join(dumps)} differ although they share stream {rank}"
        if dumps and not _is_mirrored(watch, rank):
            held = max(len(dump) for dump in dumps.values())
            yield (
                f"the reader's mirror of stream {rank} ({len(watch.mirrored_blocks(rank))} "
                f"blocks) is not what the cache holds ({held} blocks)"
            )


def _canonical(process: ProcessWatch) -> frozenset[Any]:
    assert process.done is not None
    return frozenset(map(normalise_hash, process.done["dump"]))


def _is_mirrored(watch: DemoWatch, rank: int) -> bool:
    """Return whether the mirror of ``rank`` equals the dump of the cache, block by block."""
    dumps = [_canonical(process) for process in watch.publishers(rank) if process.done]
    return bool(dumps) and watch.mirrored_blocks(rank) in dumps


def _facts(watch: DemoWatch) -> dict[str, Any]:
    streams = watch.streams.values()
    return {
        "streams": len(watch.streams),
        "expected_streams": len(_ranks(watch)),
        "duplicates": count_duplicates(watch),
        "gaps": sum(len(stream.gaps) for stream in streams),
        "mirror_equal": all(_is_mirrored(watch, rank) for rank in _ranks(watch)),
        "batches": sum(stream.batches for stream in streams),
        "heartbeats": sum(stream.heartbeats for stream in streams),
        "events": sum(stream.events for stream in streams),
        "replayed": sum(stream.replayed for stream in streams),
        "conflicts": sum(len(stream.conflicts) for stream in streams),
        "restarts": sum(stream.restarts for stream in streams),
        "skipped_events": sum(stream.skipped_events for stream in streams),
        "mirrored_blocks": sum(len(watch.mirrored_blocks(rank)) for rank in _ranks(watch)),
        "publisher": watch.plan.config["publisher"],
        "broken": watch.plan.broken,
        "publishers": {
            str(rank): [_publisher(process) for process in watch.publishers(rank)]
            for rank in _ranks(watch)
        },
        "processes": [_process(process) for process in watch.processes],
    }


def _publisher(process: ProcessWatch) -> dict[str, Any]:
    holdings = process.done or process.ready or {}
    return {
        "process": process.name,
        "pid": process.pid,
        "refused": process.failed["error"] if process.failed else None,
        "listening": holdings.get("listening"),
        "epoch": process.progress.get("epoch"),
    }


def _process(process: ProcessWatch) -> dict[str, Any]:
    holdings = process.done or process.ready or {}
    return {
        "process": process.name,
        "pid": process.pid,
        "publishes": process.wants_to_publish,
        "stream_rank": process.stream_rank,
        "requests": process.progress.get("requests", 0),
        "cached_blocks": process.progress.get("cached_blocks", 0),
        "recorded_events": process.progress.get("recorded_events", 0),
        "event_metrics": sum(process.progress.get("metrics", {}).values()),
        "published_batches": process.progress.get("published_batches", 0),
        "sockets": holdings.get("sockets"),
        "publisher_threads": holdings.get("publisher_threads"),
    }
