"""What an adapter must know of ``--kv-events-config`` before it loads the settings, or instead.

The adapters ask here whose publisher is meant. They never interpret further keys: that is the
settings' task. Imports neither pydantic nor an engine.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from kvevents_core.config_environment import SECRETS_DIR, variable
from kvevents_core.config_sources import FLAG, read_flag
from kvevents_core.errors import BackendError, ConfigError

if TYPE_CHECKING:
    from kvevents_core.publisher import EventPublisher, NullEventPublisher
    from kvevents_core.settings import KVEventsConfig

REPLACE_ZMQ: Final = "KVEVENTS_REPLACE_ZMQ"
"""Set to 1, it makes ours serve the publisher name ``zmq``, which else stays the engine's own."""
_USER_AND_PASSWORD: Final = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def read_keys(text: str) -> dict[str, Any] | None:
    """Return the keys of the flag, from its file if it is ``@file``; None if it is unreadable.

    ``KVEventsConfig.from_cli`` then says what is wrong with it.
    """
    try:
        return {key: given.value for key, given in read_flag(text).items()}
    except ConfigError:
        return None


def publisher_name(keys: Mapping[str, Any]) -> str | None:
    """Return the publisher that ``keys``, else the environment, ask for; None if neither does."""
    name = keys.get("publisher")
    if name is None:
        name = os.environ.get("KVEVENTS_PUBLISHER") or None
    return None if name is None else str(name).strip().lower()


def is_ours(name: str | None, engine_names: Collection[str]) -> bool:
    """Return whether kvevents serves the publisher ``name``.

    Args:
        name: As ``publisher_name`` returns it; None and ``null`` count as ours.
        engine_names: What the engine's own registry knows, other plugins' names included. Those
            stay theirs, except ``zmq`` on request.
    """
    if name in (None, "null"):
        return True
    if name == "zmq":
        return os.environ.get(REPLACE_ZMQ, "").strip().lower() in ("1", "true", "yes", "on")
    return name not in engine_names


def environment(engine: str, **defaults: str) -> dict[str, str]:
    """Return the environment for the settings: below what the operator set, the engine's defaults.

    Args:
        engine: The engine's name, for the records' headers.
        defaults: Core keys the engine knows better than we do (``model``).
    """
    known = {variable(key): value for key, value in defaults.items()}
    return {"KVEVENTS_ENGINE": engine, **known, **os.environ}


def refuse_secrets(keys: Mapping[str, Any], shown_by: str) -> None:
    """Refuse a secret that stands in the flag itself.

    Args:
        keys: The flag's own keys (not those of an ``@file``).
        shown_by: Who shows the flag to others, for the message.

    Raises:
        ConfigError: A secret key has a value there, or an address holds a password.
    """
    from kvevents_core.config_validation import is_secret
    from kvevents_core.plugins import load_backend

    name = publisher_name(keys)
    try:
        fields = load_backend(name).settings_model.model_fields if name else {}
    except BackendError:
        return  # the settings say it better
    for key, value in keys.items():
        secret = key in fields and is_secret(key, fields[key])
        if value is None or not (secret or _USER_AND_PASSWORD.search(json.dumps(value))):
            continue
        by_environment = variable(key, name)
        raise ConfigError(
            f"{key!r} must not carry a secret in {FLAG}: {shown_by}; set the environment variable "
            f"{by_environment} instead, or put it in a file {by_environment.lower()} in the folder "
            f"that {variable(SECRETS_DIR)} names",
            key=key,
            origin=FLAG,
        )


def warn_if_unnamed(config: KVEventsConfig, logger: logging.Logger) -> None:
    """Warn that an engine on several nodes has no name that all of them share."""
    if config.enabled and config.origin_of("instance") is None:
        logger.warning(
            "kvevents: the engine spans several nodes and has no name, so each node publishes under "
            "a name of its own; set instance in %s, or %s, to the same name everywhere",
            FLAG,
            variable("instance"),
        )


def warn_if_cache_is_off(
    config: KVEventsConfig, off_by: str | None, logger: logging.Logger
) -> None:
    """Warn that an engine whose prefix cache is off has nothing to report.

    Args:
        config: The settings.
        off_by: The engine's option that switched the cache off, or None.
        logger: Where the engine's operator reads.
    """
    if config.enabled and off_by is not None:
        logger.warning(
            "kvevents: [no_events] prefix caching is off (%s), so the streams will stay empty",
            off_by,
            extra={"kvevents_code": "no_events"},
        )


def describe(publisher: EventPublisher | NullEventPublisher) -> str:
    """Return one line for the engine's log: which stream this process publishes, and where."""
    facts = publisher.describe()
    if publisher.stream is None:
        return "this process publishes no events"
    where = next((facts[key] for key in ("endpoint", "subject", "topic") if facts.get(key)), "")
    return f"publishes stream {publisher.stream} over {facts['publisher']} {where}".rstrip()
