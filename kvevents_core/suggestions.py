"""The nearest known name, for errors about names that are not known. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

_SHORT: Final = 4
"""Names up to this length count as misspelt at one edit, longer ones at two."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` most resembles, or None if none is near.

    Case and dashes do not count, so ``Max-Queue-Size`` is near ``max_queue_size``.
    """
    spelt = {_plain(candidate): candidate for candidate in sorted(known, reverse=True)}
    plain = _plain(name)
    if plain in spelt:
        return spelt[plain]
    misspelt = sorted((distance(plain, other), other) for other in spelt)
    if misspelt and misspelt[0][0] <= _tolerance(plain):
        return spelt[misspelt[0][1]]
    close = difflib.get_close_matches(plain, sorted(spelt), n=1, cutoff=0.7)
    return spelt[close[0]] if close else None


def misspelling_of(name: str, known: Iterable[str]) -> str | None:
    """Return the known name of which ``name`` is evidently a misspelling, or None.

    Stricter than ``nearest``: one edit for short names, two for longer ones.
    """
    plain = _plain(name)
    found = min(
        ((distance(plain, _plain(candidate)), candidate) for candidate in known), default=None
    )
    return found[1] if found is not None and found[0] <= _tolerance(plain) else None


def distance(first: str, second: str) -> int:
    """Return how many letters must be added, dropped, replaced or swapped with a neighbour."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, letter in enumerate(first, 1):
        before, last, row = row, before, [i]
        for j, other in enumerate(second, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, last[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _tolerance(plain: str) -> int:
    return 1 if len(plain) <= _SHORT else 2


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")
