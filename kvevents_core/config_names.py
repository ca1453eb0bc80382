"""What to do about keys and variables that neither core nor the chosen backend knows.

A key of another transport is ignored with a warning, an engine's own default in silence, and a name
that nobody knows is refused with the nearest that is. Other backends' packages are loaded only when
a name is unknown, to tell whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from pydantic.fields import FieldInfo

from kvevents_core.backend import Backend
from kvevents_core.config_environment import PREFIX, SECRETS_DIR, Surroundings, names_of
from kvevents_core.config_sources import Given
from kvevents_core.errors import BackendError, ConfigError
from kvevents_core.plugins import installed_backends, load_backend
from kvevents_core.suggestions import misspelling_of, nearest

ENGINE_TRANSPORT: Final = "zmq"
"""The engines' own transport: meant when events are enabled and no publisher is named."""

ENGINE_DEFAULTS: Final[Mapping[str, Any]] = {
    "endpoint": "tcp://*:5557",
    "bind": None,
    "replay_endpoint": None,
    "buffer_steps": 10_000,
    "hwm": 100_000,
    "max_queue_size": 100_000,
    "topic": "",
    "format": "default",
}
"""What SGLang 0.5.23 (``disaggregation/kv_events.py``:684) and vLLM 0.33 (``config/kv_events.py``)
pass along for keys that nobody gave."""


def counts_as_not_given(key: str, value: Any) -> bool:
    """Return whether an engine, and not an operator, may have given ``value``."""
    if key in ("publisher", "instance"):
        return value is None or (isinstance(value, str) and not value.strip())
    if key not in ENGINE_DEFAULTS:
        return False
    default = ENGINE_DEFAULTS[key]
    return type(value) is type(default) and bool(value == default)


class Names:
    """Whose name is it: core's, the chosen backend's, the engines' own transport's, another's."""

    def __init__(self, core: Mapping[str, FieldInfo], backend: Backend[Any] | None) -> None:
        own = {} if backend is None else backend.settings_model.model_fields
        self.publisher = None if backend is None else backend.name
        self.keys = {*core, *own}
        self.core_variables = names_of(core)
        self.variables = self.core_variables | names_of(own, self.publisher)

    @cached_property
    def others(self) -> dict[str, tuple[str, FieldInfo]]:
        """Keys of other installed backends, each with its owner and field."""
        found: dict[str, tuple[str, FieldInfo]] = {}
        for other in dict.fromkeys(each.name for each in installed_backends()):
            if other == self.publisher:
                continue
            try:
                fields = load_backend(other, complete=False).settings_model.model_fields
            except BackendError:  # reported where somebody uses it
                continue
            for key, field in fields.items():
                found.setdefault(key, (other, field))
        return found

    def warn(self, text: str) -> Iterator[str]:
        """Yield ``text``; nothing where nothing is published, so that silence stays quiet."""
        if self.publisher is not None:
            yield f"{text}; publisher {self.publisher!r} ignores it"


def check_keys(explicit: Mapping[str, Given], names: Names) -> Iterator[str]:
    """Yield a warning for each key of another transport; refuse keys that nobody knows.

    Raises:
        ConfigError: A key is unknown; the message names all that are.
    """
    unknown: list[tuple[str, Given]] = []
    for key, each in explicit.items():
        if key in names.keys:
            continue
        if key in ENGINE_DEFAULTS:
            if not counts_as_not_given(key, each.value):
                yield from names.warn(f"{key} from {each.origin} belongs to {ENGINE_TRANSPORT!r}")
        elif key in names.others:
            owner, field = names.others[key]
            if each.value != field.get_default(call_default_factory=True, validated_data={}):
                yield from names.warn(f"{key} from {each.origin} belongs to {owner!r}")
        else:
            unknown.append((key, each))
    if unknown:
        raise _unknown_keys(unknown, names)


def check_variables(around: Surroundings, names: Names) -> Iterator[str]:
    """Yield a warning for each variable that nobody uses; refuse evident misspellings.

    Raises:
        ConfigError: A name is nearly a known one: what was meant would silently not be in force.
    """
    unused = list(around.unused(names.variables))
    if not unused:
        return
    installed = {each.name for each in installed_backends()} - {names.publisher}
    others = tuple(prefix for name in installed for prefix in names_of([""], name) if prefix)
    for name, given in unused:
        if name.startswith(others):
            continue
        meant = _meant_variable(name, names)
        if meant is not None:
            raise _misspelt(given, PREFIX + meant)
        yield from names.warn(f"{given.origin} is not known")


def _meant_variable(name: str, names: Names) -> str | None:
    if names.publisher is not None:
        own_prefix = f"{names.publisher.upper()}_"
        rest = name.removeprefix(own_prefix)
        if rest != name and rest in names.core_variables:
            return rest
    meant = misspelling_of(name, {*names.variables, SECRETS_DIR})
    if meant is None or name in names_of(ENGINE_DEFAULTS) or name in names_of(names.others):
        return None
    return meant


def _misspelt(given: Given, suggestion: str) -> ConfigError:
    if given.origin.startswith("secret file"):
        suggestion = suggestion.lower()
    return ConfigError(
        f"{given.origin} is not known; did you mean {suggestion}?",
        origin=given.origin,
        suggestion=suggestion,
    )


def _unknown_keys(unknown: list[tuple[str, Given]], names: Names) -> ConfigError:
    texts: list[str] = []
    suggestions: list[str | None] = []
    for key, each in unknown:
        meant = nearest(key, {*names.keys, *ENGINE_DEFAULTS}) or nearest(key, names.others)
        advice = f"did you mean {meant!r}?" if meant else f"known are {_listing(names.keys)}"
        texts.append(f"{key!r} from {each.origin} is not a known key; {advice}")
        suggestions.append(meant)
    first, given = unknown[0]
    return ConfigError(
        "; also: ".join(texts), key=first, origin=given.origin, suggestion=suggestions[0]
    )


def _listing(names: set[str]) -> str:
    return ", ".join(sorted(names))
