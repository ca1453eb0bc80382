"""What ``--kv-events-config`` holds: JSON text, ``@file.json`` or ``@file.toml``, as one mapping.

Strict where the standard parsers are lenient: a key given twice, NaN and Infinity are errors. No
error shows the text or is chained to one that holds it, because a password may stand in it.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvevents_core.errors import ConfigError

FLAG: Final = "--kv-events-config"
"""Origin of what stands in the JSON itself."""

_EXAMPLE: Final = """'{"publisher":"zmq"}'"""


@dataclass(frozen=True, slots=True)
class Given:
    """One value as an operator gave it, and where."""

    value: Any
    origin: str
    """``--kv-events-config``, ``file F``, ``environment variable X``, ``secret file F``."""
    is_text: bool = False
    """The value is text that stands for a value of another kind (environment, secret file)."""


def read_flag(text: str | None) -> dict[str, Given]:
    """Return what the flag gives; nothing for None and for blank text.

    Raises:
        ConfigError: The text, or the file it names, is not one object of distinct keys.
    """
    if text is None:
        return {}
    if not isinstance(text, str):
        raise ConfigError(
            f"{FLAG} is a {type(text).__name__}; it must be JSON text such as {_EXAMPLE}",
            origin=FLAG,
        )
    stripped = text.strip()
    if not stripped:
        return {}
    if stripped.startswith("@"):
        return _read_file(Path(stripped[1:].strip()).expanduser())
    return from_mapping(_parse_json(stripped, FLAG), FLAG)


def from_mapping(mapping: Mapping[Any, Any], origin: str) -> dict[str, Given]:
    """Return ``mapping`` with ``origin`` as the place where each value came from.

    Raises:
        ConfigError: A key is not text or a number is not finite.
    """
    for key, value in mapping.items():
        if not isinstance(key, str):
            raise ConfigError(f"{origin} has the key {key!r}; keys must be text", origin=origin)
        if not _is_finite(value):
            raise ConfigError(
                f"{key} in {origin} is not a finite number; NaN and infinity are not allowed",
                key=key,
                origin=origin,
            )
    return {key: Given(value, origin) for key, value in mapping.items()}


def _read_file(path: Path) -> dict[str, Given]:
    origin = f"file {path}"
    parsers: dict[str, Callable[[str, str], dict[str, Any]]] = {
        ".json": _parse_json,
        ".toml": _parse_toml,
    }
    parse = parsers.get(path.suffix.lower())
    if parse is None:
        raise ConfigError(
            f"{FLAG} names the {origin}; its name must end in .json or .toml", origin=FLAG
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    else:
        return from_mapping(parse(text, origin), origin)
    raise ConfigError(f"{FLAG} names the {origin}, which cannot be read: {reason}", origin=FLAG)


def _parse_json(text: str, origin: str) -> dict[str, Any]:
    twice: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            twice.extend(key for key in found if keys.count(key) > 1)
        return found

    try:
        parsed = json.loads(text, object_pairs_hook=collect, parse_constant=float)
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at line {error.lineno} column {error.colno}"
    except (ValueError, RecursionError):
        problem = "a number is too long, or the nesting too deep"
    else:
        return _object(parsed, twice, origin)
    raise ConfigError(f"{origin} is not JSON: {problem}; {_json_advice(text)}", origin=origin)


def _object(parsed: Any, twice: list[str], origin: str) -> dict[str, Any]:
    if not isinstance(parsed, dict):
        kind = {list: "a list", str: "a string", type(None): "null", bool: "true or false"}.get(
            type(parsed), "a number"
        )
        raise ConfigError(
            f"{origin} is {kind}; it must be a JSON object such as {_EXAMPLE}", origin=origin
        )
    if twice:
        names = ", ".join(twice)
        raise ConfigError(
            f"{origin} gives {names} more than once; keep one of them", key=twice[0], origin=origin
        )
    return parsed


def _json_advice(text: str) -> str:
    if re.search(r"[{,]\s*'|'\s*:", text):
        return f"use double quotes inside and single quotes around it: {_EXAMPLE}"
    if text.endswith((".json", ".toml")):
        return "to name a file, put @ before it"
    if re.search(r":\s*(True|False|None)\b", text):
        return "write true, false and null in lower case"
    return f"it must be a JSON object such as {_EXAMPLE}, or @file.json or @file.toml"


def _parse_toml(text: str, origin: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = str(error)
    raise ConfigError(f"{origin} is not TOML: {problem}", origin=origin)


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(_is_finite(each) for each in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite(each) for each in value)
    return True
