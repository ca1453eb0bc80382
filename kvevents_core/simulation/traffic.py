"""Requests shaped like production traffic: shared system prompts and conversations of many turns.

Everything follows from the seed: all processes that hold one KV cache make the same requests for
themselves, as the ranks of a real engine get the same ones. Reads no clock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

VOCABULARY: Final = 128_000
"""Token ids are below this."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what the engine reads and what it will answer."""

    arrival_s: float
    """Seconds after the first request of its traffic."""
    prompt: tuple[int, ...]
    output: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TrafficShape:
    """What the traffic looks like; lengths in tokens."""

    rate_per_s: float = 20.0
    """Mean arrivals per second (Poisson)."""
    system_prompts: int = 6
    """How many applications share the engine; the first is the most popular (Zipf)."""
    system_prompt_tokens: tuple[int, int] = (96, 640)
    conversations: int = 24
    """Conversations open at one time."""
    mean_turns: float = 5.0
    user_tokens: tuple[int, int] = (8, 160)
    output_tokens: tuple[int, int] = (16, 256)
    context_tokens: int = 4096
    """A conversation ends before it grows beyond this."""


def make_requests(seed: int, shape: TrafficShape | None = None) -> Iterator[Request]:
    """Yield requests for ever, in order of arrival; the same for the same seed and shape."""
    shape = shape or TrafficShape()
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    systems = [_tokens(rng, shape.system_prompt_tokens) for _ in range(shape.system_prompts)]
    popularity = [1 / (place + 1) for place in range(shape.system_prompts)]
    conversations: list[tuple[int, ...]] = []
    now_s = 0.0
    while True:
        room = len(conversations) < shape.conversations
        if not conversations or (room and rng.random() < 1 / shape.mean_turns):
            conversations.append(rng.choices(systems, popularity)[0])
        turn = rng.randrange(len(conversations))
        prompt = conversations[turn] + _tokens(rng, shape.user_tokens)
        output = _tokens(rng, shape.output_tokens)
        yield Request(now_s, prompt, output)
        now_s += rng.expovariate(shape.rate_per_s)
        conversations[turn] = prompt + output
        longest = len(prompt) + len(output) + shape.user_tokens[1] + shape.output_tokens[1]
        if longest > shape.context_tokens or rng.random() < 1 / shape.mean_turns:
            del conversations[turn]


def _tokens(rng: random.Random, between: tuple[int, int]) -> tuple[int, ...]:
    return tuple(rng.choices(range(VOCABULARY), k=rng.randint(*between)))
