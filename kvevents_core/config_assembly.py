"""Put together what the flag, the environment and the secret files give.

Decides which value is in force and which backend is meant. Loads that backend's package and opens
nothing.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic_settings import BaseSettings

from kvevents_core.backend import Backend, BackendSettings
from kvevents_core.config_environment import Surroundings, read_surroundings
from kvevents_core.config_names import (
    ENGINE_TRANSPORT,
    Names,
    check_keys,
    check_variables,
    counts_as_not_given,
)
from kvevents_core.config_sources import Given
from kvevents_core.config_validation import validate, with_origin
from kvevents_core.errors import BackendError, ConfigError
from kvevents_core.plugins import NULL, load_backend
from kvevents_core.suggestions import nearest

_log = logging.getLogger(__name__)
_logged: set[str] = set()
"""Warnings said in this process; engines read their flag several times."""

CoreT = TypeVar("CoreT", bound=BaseSettings)


@dataclass(frozen=True, slots=True)
class Assembled(Generic[CoreT]):
    """Everything that is known once a configuration has been read."""

    core: CoreT
    backend: Backend[Any] | None
    """None where nothing is published."""
    backend_settings: BackendSettings | None
    warnings: tuple[str, ...]
    origins: dict[str, str]
    """Where each given key came from."""


def assemble(
    model: type[CoreT], explicit: Mapping[str, Given], environ: Mapping[str, str] | None
) -> Assembled[CoreT]:
    """Return core's ``model`` and the chosen backend's, validated.

    Raises:
        ConfigError: A name or value is wrong.
        BackendError: The package of the backend is broken or incomplete.
    """
    environ = os.environ if environ is None else environ
    around = read_surroundings(environ)
    given = _gather(model.model_fields, explicit, around)
    origins = {key: each.origin for key, each in given.items()}
    given.setdefault("instance", Given(_host_name(environ), "the host's name"))
    core = validate(model, given)
    facts: Any = core
    if facts.publisher == NULL and facts.enable_kv_cache_events and "publisher" not in given:
        facts = core = core.model_copy(update={"publisher": ENGINE_TRANSPORT})
    on = facts.publisher != NULL and facts.enable_kv_cache_events is not False
    backend = _load(facts.publisher, given.get("publisher"), model) if on else None
    names = Names(model.model_fields, backend)
    warnings = (
        *_contradictions(facts.publisher, facts.enable_kv_cache_events),
        *check_keys(explicit, names),
        *check_variables(around, names),
    )
    settings = None
    if backend is not None:
        own = _gather(backend.settings_model.model_fields, explicit, around, backend.name)
        settings = _validate_own(backend, own)
        _check_addresses(
            settings, own, (facts.dp_size or 1, *(rank + 1 for rank in facts.ranks or ()))
        )
        origins |= {key: each.origin for key, each in own.items()}
    for warning in warnings:
        if warning not in _logged:
            _logged.add(warning)
            _log.warning("%s", warning)
    return Assembled(core, backend, settings, warnings, origins)


def _gather(
    keys: Collection[str],
    explicit: Mapping[str, Given],
    around: Surroundings,
    backend: str | None = None,
) -> dict[str, Given]:
    """Return what is in force for each of ``keys``; what is not given is left to the model."""
    found: dict[str, Given] = {}
    for key in keys:
        each = explicit.get(key)
        if each is not None and not counts_as_not_given(key, each.value):
            found[key] = each
        elif (other := around.find(key, backend)) is not None:
            found[key] = other
        elif each is not None and backend == ENGINE_TRANSPORT:
            found[key] = each
    return found


def _host_name(environ: Mapping[str, str]) -> str:
    """Return what names this machine or pod; never a pid, which differs by rank and restart."""
    names = (environ.get("POD_NAME"), environ.get("HOSTNAME"), socket.gethostname())
    return next((name.strip() for name in names if name and name.strip()), "localhost")


def _load(name: str, given: Given | None, core: type[BaseSettings]) -> Backend[Any]:
    origin = given.origin if given is not None else None
    try:
        backend = load_backend(name)
    except BackendError as error:
        if error.distribution is not None:
            raise
        known = error.known
    else:
        if clash := sorted(backend.settings_model.model_fields.keys() & core.model_fields.keys()):
            raise BackendError(
                f"backend {name!r} cannot be used: its settings {', '.join(clash)} have names of "
                "core's own keys; its author must rename them",
                name=name,
            )
        return backend
    suggestion = nearest(name, (*known, NULL))
    meant = f"did you mean {suggestion!r}? " if suggestion else ""
    raise ConfigError(
        f"publisher {name!r} from {origin} is not known; {meant}"
        f"known are: {', '.join((*known, NULL))}",
        key="publisher",
        origin=origin,
        suggestion=suggestion,
    )


def _validate_own(backend: Backend[Any], own: Mapping[str, Given]) -> BackendSettings:
    try:
        return validate(backend.settings_model, own, backend.name)
    except ConfigError:
        raise
    except Exception as error:
        raise BackendError(
            f"the settings model of backend {backend.name!r} failed with {type(error).__name__}: "
            "this is a fault of the backend; report it to its author",
            name=backend.name,
        ) from error


def _check_addresses(
    settings: BackendSettings, own: Mapping[str, Given], stream_ranks: tuple[int, ...]
) -> None:
    """Refuse what leaves some of the ranks without an address, as far as their number is known."""
    try:
        settings.check_ranks(max(stream_ranks))
    except ConfigError as error:
        problem = with_origin(error, own)
    else:
        return
    raise problem


def _contradictions(publisher: str, enable: bool | None) -> Iterator[str]:
    if publisher != NULL and enable is False:
        yield (
            f"publisher is {publisher!r} but enable_kv_cache_events is false, so nothing is "
            'published; add "enable_kv_cache_events": true to --kv-events-config'
        )
    if publisher == NULL and enable:
        yield (
            'enable_kv_cache_events is true but publisher is "null", so nothing is published; '
            f'name one, such as "publisher": "{ENGINE_TRANSPORT}"'
        )
