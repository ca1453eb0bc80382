"""Rows of a Mooncake trace file turned into requests.

A row is one JSON object a line: ``timestamp`` (milliseconds), ``input_length`` and
``output_length`` (tokens) and ``hash_ids``, one per block of 512 input tokens, the last one partly
filled (kvcache-ai/Mooncake, ``FAST25-release/traces``). Equal ids mean equal tokens, so tokens are
made from the ids, the same in every process and on every machine. Never invents timing or reuse
that the trace does not have.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from kvevents_core.errors import KVEventsError
from kvevents_core.simulation.traffic import Request

TRACE_BLOCK_TOKENS: Final = 512
"""Tokens that one hash id of Mooncake's traces stands for."""


class TraceError(KVEventsError, ValueError):
    """A trace file cannot be read; the message names file, line and what was expected.

    Args:
        message: What is wrong, in one line.
        line: Number of the line at fault, from 1, or None if the file itself is.
    """

    def __init__(self, message: str, *, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request of a trace."""

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path, block_tokens: int = TRACE_BLOCK_TOKENS) -> Iterator[TraceRow]:
    """Yield the rows of the trace file at ``path`` in file order; empty lines are skipped.

    Raises:
        TraceError: The file cannot be read, or a line is not such a row.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield parse_row(line, block_tokens)
                    except ValueError as exc:
                        raise TraceError(
                            f"{path}, line {number}: {exc}; expected one object per line with "
                            "timestamp, input_length, output_length and hash_ids",
                            line=number,
                        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        raise TraceError(f"trace file {path} cannot be read: {reason}") from exc


def parse_row(line: str, block_tokens: int = TRACE_BLOCK_TOKENS) -> TraceRow:
    """Return the row that ``line`` holds; keys beside the four are ignored.

    Raises:
        ValueError: It is not a row, or its ids do not cover exactly its input.
    """
    try:
        row = json.loads(line)
    except ValueError as exc:
        raise ValueError("not JSON") from exc
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - the one error of a bad row
    hash_ids = row.get("hash_ids")
    if not isinstance(hash_ids, list) or not all(_is_count(name) for name in hash_ids):
        raise ValueError(f"hash_ids is {hash_ids!r:.60}, not a list of integers from 0")
    timestamp = row.get("timestamp")
    if isinstance(timestamp, bool) or not isinstance(timestamp, int | float) or timestamp < 0:
        raise ValueError(f"timestamp is {timestamp!r:.60}, not a number of milliseconds from 0")
    input_length, output_length = _length(row, "input_length"), _length(row, "output_length")
    if len(hash_ids) != -(-input_length // block_tokens):
        raise ValueError(
            f"{len(hash_ids)} hash_ids for {input_length} input tokens; with {block_tokens} "
            f"tokens per id there are {-(-input_length // block_tokens)}"
        )
    return TraceRow(timestamp, input_length, output_length, tuple(hash_ids))


def trace_requests(
    rows: Iterable[TraceRow], *, speed: float = 1.0, block_tokens: int = TRACE_BLOCK_TOKENS
) -> Iterator[Request]:
    """Yield one request per row, ``speed`` times as fast as the trace was recorded."""
    first_ms: float | None = None
    for index, row in enumerate(rows):
        first_ms = row.timestamp_ms if first_ms is None else first_ms
        prompt: list[int] = []
        for hash_id in row.hash_ids:
            prompt.extend(_made_up(f"input {hash_id}", block_tokens))
        output = _make_up(f"output {index}", row.output_length)
        arrival_s = (row.timestamp_ms - first_ms) / 1000 / speed
        yield Request(arrival_s, tuple(prompt[: row.input_length]), output)


def _make_up(name: str, tokens: int) -> tuple[int, ...]:
    """Return ``tokens`` token ids that depend on ``name`` alone, each below 65536."""
    raw = hashlib.shake_128(name.encode()).digest(2 * tokens)
    return struct.unpack(f"<{tokens}H", raw)


_made_up = lru_cache(maxsize=512)(_make_up)
"""Remembers the blocks that many requests share."""


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _length(row: dict[str, Any], key: str) -> int:
    value = row.get(key)
    if not _is_count(value):
        raise ValueError(f"{key} is {value!r:.60}, not a whole number of tokens")
    assert isinstance(value, int)
    return value
