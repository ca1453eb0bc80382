"""SGLang's plugin: its event publishers by kvevents, with nothing changed in SGLang.

SGLang calls ``register`` in each of its processes before it uses the factory (0.5.23,
``plugins/__init__.py``). Four hooks of its own hook registry are enough: the factory receives the
flag's raw text, so every key reaches us; the flag is parsed by us wherever SGLang parses it; the
start is refused before a process is spawned; and ``/server_info`` describes what is there. What is
not ours goes to SGLang's own code untouched.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from kvevents_core.config_sources import FLAG
from kvevents_core.engines import flag, versions
from kvevents_core.errors import KVEventsError

if TYPE_CHECKING:
    from kvevents_core.settings import KVEventsConfig

logger = logging.getLogger(__name__)

_SHOWN_BY: Final = "SGLang prints the flag in its log and serves it in /server_info"
_EVENTS: Final = "sglang.srt.disaggregation.kv_events."
_registered = False


def register() -> None:
    """Put our hooks into SGLang. Quiet when called again; never raises."""
    global _registered  # noqa: PLW0603 - once per process
    if _registered:
        return
    _registered = True
    try:
        _register_hooks()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        logger.error(  # noqa: TRY400 - one line; SGLang goes on without us
            "kvevents: cannot publish for SGLang %s: %s: %s; SGLang's own publishers work as before",
            versions.installed("sglang"),
            type(error).__name__,
            error,
        )


def _register_hooks() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    hooks = {
        _EVENTS + "EventPublisherFactory.create": _create,
        _EVENTS + "KVEventsConfig.from_cli": _from_cli,
        "sglang.srt.server_args.ServerArgs.resolve_once": _resolve_once,
        "sglang.srt.runtime_context.describe_kv_events_publisher": _describe,
    }
    for target in hooks:  # all or none: half of them would answer for what they do not do
        if not callable(resolve_name(target)):
            raise TypeError(f"{target} is not callable")
    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)
    logger.info(
        "kvevents: plugged into SGLang %s; its publishers are chosen with %s",
        versions.installed("sglang"),
        FLAG,
    )


def _is_ours(text: str) -> bool:
    """Return whether the flag asks for one of our publishers; a flag that cannot be read is ours.

    SGLang's own factory fails on ``null`` and on a missing publisher, so these are ours too.
    """
    from sglang.srt.disaggregation.kv_events import EventPublisherFactory

    keys = flag.read_keys(text)
    if keys is None:
        return True
    return flag.is_ours(flag.publisher_name(keys), EventPublisherFactory._registry)


@lru_cache(maxsize=8)
def _settings(text: str, **names: str) -> KVEventsConfig:
    """Return the settings that the flag, the environment and the secret files make.

    Args:
        text: The flag.
        names: Core keys whose default the engine knows; anything an operator gave wins.

    Raises:
        KVEventsError: The flag is wrong, or holds a secret that SGLang would show.
    """
    from kvevents_core.settings import KVEventsConfig

    if not text.lstrip().startswith("@"):
        flag.refuse_secrets(flag.read_keys(text) or {}, _SHOWN_BY)
    return KVEventsConfig.from_cli(text, environ=flag.environment("sglang", **names))


def _from_cli(original: Callable[..., Any], cls: Any, cli_value: str) -> Any:
    """Hook on ``KVEventsConfig.from_cli``: read ``@file``, and show SGLang only keys it knows."""
    if _is_ours(cli_value):
        from kvevents_core.engines.sglang_publisher import compare_gates, engine_keys

        keys = engine_keys(_settings(cli_value))
        compare_gates(cli_value)
    elif cli_value.lstrip().startswith("@"):
        keys = flag.read_keys(cli_value) or {}
    else:
        return original(cls, cli_value)
    return original(cls, json.dumps(keys))


def _create(
    original: Callable[..., Any], cls: Any, config: str | None, attn_dp_rank: int = 0
) -> Any:
    """Hook on ``EventPublisherFactory.create``, called on publisher ranks only."""
    if not config or not _is_ours(config):
        return original(cls, config, attn_dp_rank)
    from kvevents_core.engines.sglang_publisher import adapt, compare_stream_rank, stream_names
    from kvevents_core.publisher import EventPublisherFactory

    compare_stream_rank(attn_dp_rank)
    settings = _settings(config, **stream_names(_settings(config)))
    publisher = EventPublisherFactory.create(settings, attn_dp_rank)
    logger.info("kvevents: %s", flag.describe(publisher))
    return adapt(publisher)


def _resolve_once(original: Callable[..., Any], server_args: Any) -> None:
    """Hook on ``ServerArgs.resolve_once``: refuse a wrong flag before anything is started."""
    text = getattr(server_args, "kv_events_config", None)
    if not text or not _is_ours(text):
        original(server_args)
        return
    versions.warn_if_untested("sglang", logger)
    try:
        settings = _settings(text)
        original(server_args)
        _check_resolved(settings, server_args)
    except KVEventsError as error:
        raise error.with_traceback(None) from None


def _check_resolved(settings: KVEventsConfig, server_args: Any) -> None:
    """Check what only the resolved arguments tell: number of streams, and whether there is a cache.

    Raises:
        KVEventsError: Some rank cannot have an address.
    """
    try:
        from sglang.srt.arg_groups.overrides import resolving_view
        from sglang.srt.runtime_context import num_dp_ranks_of

        view = resolving_view(server_args)
        ranks = num_dp_ranks_of(view)
    except (ImportError, AttributeError) as error:
        logger.debug("kvevents: this SGLang does not tell its ranks here: %s", error)
        return
    if settings.backend_settings is not None:
        settings.backend_settings.check_ranks(ranks)
    # By its option, or by SGLang itself for some models and attention backends.
    off = getattr(view, "disable_radix_cache", False)
    flag.warn_if_cache_is_off(settings, "disable_radix_cache" if off else None, logger)


def _describe(original: Callable[..., Any], server_args: Any) -> Any:
    """Hook on ``describe_kv_events_publisher``: what ``/server_info`` says under ``kv_events``.

    SGLang's document knows only TCP ports, so it is given for a bound ZMQ socket and for nothing
    else: the default port would be named although nobody bound it.
    """
    text = getattr(server_args, "kv_events_config", None)
    if text and _is_ours(text):
        from kvevents_core.engines.zmq_document import configured_socket

        if configured_socket(_settings(text)) is None:
            return None
    return original(server_args)
