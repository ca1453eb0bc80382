"""Reads a ``--kv-events-config`` that a command adds keys of its own to, and shows a finished one.

Never shows a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic_settings import BaseSettings

from kvevents_core import KVEventsConfig
from kvevents_core.config_sources import read_flag
from kvevents_core.config_validation import is_secret, show

_HIDDEN: Final = "(not shown)"


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting, fit to be shown."""

    key: str
    value: str
    """JSON text; secrets are replaced."""
    origin: str
    """Where it came from, ``default`` if nobody gave it."""
    owner: str
    """``kvevents``, or the name of the backend whose key it is."""


def read_object(text: str | None) -> dict[str, Any]:
    """Return the keys that ``text``, JSON or ``@FILE``, gives; none for None.

    Raises:
        ConfigError: It is not one object of distinct keys.
    """
    return {key: given.value for key, given in read_flag(text).items()}


def effective_settings(config: KVEventsConfig) -> list[Setting]:
    """Return every setting of ``config``: core's in the order of its model, then the backend's."""
    found = _settings(config, config, "kvevents")
    if config.backend is not None and config.backend_settings is not None:
        found += _settings(config.backend_settings, config, config.backend.name)
    return found


def _settings(model: BaseSettings, config: KVEventsConfig, owner: str) -> list[Setting]:
    dumped = model.model_dump(mode="json")
    found = []
    for key, field in type(model).model_fields.items():
        hidden = is_secret(key, field) and dumped[key] is not None
        value = _HIDDEN if hidden else show(dumped[key])
        found.append(Setting(key, value, config.origin_of(key) or "default", owner))
    return found
