"""vLLM's ``KVEventsConfig``, widened: any publisher name, our keys kept, checked by our settings.

Stock (0.32 and 0.33, ``config/kv_events.py``): ``publisher`` is ``null`` or ``zmq``, any other key
is an error, and events are off unless ``enable_kv_cache_events`` says otherwise. Our keys live in
the instance's ``__dict__`` beside vLLM's fields; they travel in pickles to each EngineCore, and are
absent from ``repr`` and ``dataclasses.asdict``, so vLLM neither logs nor serves them.

Depends on pydantic's dataclass internals; ``widen`` checks the result and puts everything back if
it is not what it should be.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NoReturn

from kvevents_core.config_environment import variable
from kvevents_core.config_sources import FLAG
from kvevents_core.engines import flag, versions
from kvevents_core.errors import KVEventsError

if TYPE_CHECKING:
    from kvevents_core.settings import KVEventsConfig

logger = logging.getLogger("vllm.kvevents")

_ENGINE_NAMES: Final = frozenset({"null", "zmq"})


class FlagError(KVEventsError, argparse.ArgumentTypeError):
    """A wrong ``--kv-events-config``, as argparse prints it in one line.

    No ``ValueError``: pydantic would wrap it, and print the flag's values with it.
    """


def widen() -> None:
    """Widen vLLM's configuration type, once per process.

    Raises:
        RuntimeError: This vLLM's type does not take the change; it is as before.
    """
    from vllm.config import VllmConfig
    from vllm.config.kv_events import KVEventsConfig

    before = _snapshot(KVEventsConfig)
    try:
        _open_fields(KVEventsConfig, Any, {"extra": "allow", "hide_input_in_errors": True})
        _rebuild(KVEventsConfig)
        if vars(KVEventsConfig(publisher="probe", key=1)).get("key") != 1:
            _refuse_to_widen()
        KVEventsConfig.__post_init__ = _checked(before["__post_init__"])
        _rebuild(KVEventsConfig)
    except BaseException:
        _restore(KVEventsConfig, before)
        raise
    KVEventsConfig.__reduce__ = _reduce
    VllmConfig.__post_init__ = _completed(VllmConfig.__post_init__)


def _snapshot(cls: Any) -> dict[str, Any]:
    return {
        "__post_init__": cls.__post_init__,
        "__pydantic_config__": cls.__pydantic_config__,
        "type": cls.__annotations__["publisher"],
    }


def _restore(cls: Any, before: dict[str, Any]) -> None:
    cls.__post_init__ = before["__post_init__"]
    _open_fields(cls, before["type"], before["__pydantic_config__"])
    _rebuild(cls)


def _open_fields(cls: Any, publisher_type: Any, config: dict[str, Any]) -> None:
    """Give ``publisher`` another type; pydantic keeps it in three places."""
    cls.__annotations__["publisher"] = publisher_type
    cls.__dataclass_fields__["publisher"].type = publisher_type
    cls.__pydantic_fields__["publisher"].annotation = publisher_type
    cls.__pydantic_config__ = {**cls.__pydantic_config__, **config}


def _rebuild(cls: Any) -> None:
    from pydantic.dataclasses import rebuild_dataclass

    if rebuild_dataclass(cls, force=True) is not True:
        _refuse_to_widen()


def _refuse_to_widen() -> NoReturn:
    raise RuntimeError("its configuration type does not take other publishers and keys")


def _checked(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``KVEventsConfig.__post_init__``: whose publisher is it, and are its keys right?"""

    def __post_init__(self: Any) -> None:  # noqa: N807 - takes its place
        name = flag.publisher_name(vars(self))
        if name in (None, "null") or not flag.is_ours(name, _ENGINE_NAMES):
            _refuse_foreign_keys(self, name)
            self.publisher = None if self.publisher is None else name
            original(self)
            return
        versions.warn_if_untested("vllm", logger)
        self.publisher = name
        self.enable_kv_cache_events = True
        original(self)
        try:
            settings_of(self)
        except KVEventsError as error:
            raise FlagError(str(error)) from None
        from kvevents_core.engines import vllm_publisher

        vllm_publisher.wrap_factory()

    return __post_init__


def _refuse_foreign_keys(config: Any, name: str | None) -> None:
    """Refuse what stock vLLM refuses: keys beside its own, given for its own publishers."""
    known = [field.name for field in dataclasses.fields(config)]
    for key in vars(config):
        if key in known:
            continue
        nearest = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        own = (
            f"set {flag.REPLACE_ZMQ}=1 for that of kvevents"
            if name == "zmq"
            else ('name a publisher of kvevents, for instance "kafka", if the key is meant for it')
        )
        raise FlagError(
            f"vLLM's own publisher {name or 'null'!r} has no key {key!r}{hint} ({own})"
        )


def settings_of(config: Any) -> KVEventsConfig:
    """Return our settings for a vLLM configuration that names one of our publishers.

    A field that still has vLLM's default counts as not given, except for ``zmq``, where vLLM's
    defaults are what the operator expects.

    Raises:
        KVEventsError: A key is wrong or the backend cannot be loaded.
    """
    from kvevents_core.settings import KVEventsConfig

    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    keys = {
        key: value
        for key, value in vars(config).items()
        if key not in defaults or (value is not None and value != defaults[key])
    }
    keys.pop("enable_kv_cache_events", None)  # the publisher's name switches events on
    return KVEventsConfig.from_mapping(keys, environ=flag.environment("vllm"), origin=FLAG)


def _completed(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``VllmConfig.__post_init__``: only there model name and size of the engine are known."""

    def __post_init__(self: Any) -> None:  # noqa: N807 - takes its place
        original(self)
        config = self.kv_events_config
        if config is None or not is_ours(config):
            return
        name = getattr(self.model_config, "served_model_name", None)
        if name and variable("model") not in os.environ:
            vars(config).setdefault("model", str(name))
        try:
            _check_ranks(settings_of(config), self.parallel_config)
        except KVEventsError as error:
            raise FlagError(str(error)) from None

    return __post_init__


def _check_ranks(settings: KVEventsConfig, parallel_config: Any) -> None:
    if settings.backend_settings is not None:
        settings.backend_settings.check_ranks(parallel_config.data_parallel_size)
    if getattr(parallel_config, "nnodes", 1) > 1:
        flag.warn_if_unnamed(settings, logger)


def is_ours(config: Any) -> bool:
    """Return whether kvevents serves the publisher that a vLLM configuration names."""
    name = flag.publisher_name(vars(config))
    return name not in (None, "null") and flag.is_ours(name, _ENGINE_NAMES)


def _reduce(self: Any) -> tuple[Any, ...]:
    return (restore, (dict(vars(self)),))


def restore(state: dict[str, Any]) -> Any:
    """Return the configuration pickled as ``state``, in whatever process it arrives.

    A process that unpickles one of ours is about to publish: its factory is wrapped here, because
    vLLM may have loaded the plugins before it imported the factory.
    """
    from vllm.config.kv_events import KVEventsConfig

    from kvevents_core.engines import vllm_publisher
    from kvevents_core.engines.vllm import register

    register()
    config = object.__new__(KVEventsConfig)
    vars(config).update(state)
    if is_ours(config):
        vllm_publisher.wrap_factory()
    return config
