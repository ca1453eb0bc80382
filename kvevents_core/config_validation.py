"""Check values against a settings model; whatever is wrong becomes ONE ``ConfigError``.

pydantic's own error is never raised or chained: it holds the values. Messages name key, value and
origin, but never the value of a secret. JSON values keep their kind: where a number belongs, a
number in quotes, or true for 1, is an error; text from the environment is converted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from kvevents_core.config_environment import variable
from kvevents_core.config_sources import FLAG, Given
from kvevents_core.errors import ConfigError

ModelT = TypeVar("ModelT", bound=BaseSettings)

_SHOWN_CHARACTERS: Final = 80
_SECRET_NAME: Final = re.compile(
    r"(password|passwd|passphrase|secret|token|credentials?|(secret|private)_?key)$", re.IGNORECASE
)
_USERINFO: Final = re.compile(r"((?:\w+://)?)[^\s\"'(]+@")
_SEQUENCES: Final = (list, tuple, set, frozenset)
_KINDS: Final = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def validate(
    model: type[ModelT], given: Mapping[str, Given], backend: str | None = None
) -> ModelT:
    """Return ``model`` made of ``given``, whose keys are all fields of it.

    Args:
        model: Core's own model or that of ``backend``.
        given: Values by key.
        backend: The backend's name, for advice.

    Raises:
        ConfigError: A value is wrong or one is missing; ``key`` is the first one.
    """
    fields = model.model_fields
    values = {
        key: _from_text(key, fields[key], each) if each.is_text else each.value
        for key, each in given.items()
    }
    problems: list[ConfigError] = []
    try:
        made = model(**values)
    except pydantic.ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        problems = [_explain(detail, fields, given, backend) for detail in details]
    else:
        converted = _converted_fields(model)
        for key, each in given.items():
            if each.is_text or key in converted:
                continue
            if kind := _changed_kind(each.value, getattr(made, key)):
                problems.append(_wrong(key, fields[key], each, f"it must be {kind}"))
        if not problems:
            return made
    raise _one(problems)


def is_secret(key: str, field: FieldInfo) -> bool:
    """Return whether the value of this field must never be shown."""
    return bool(_SECRET_NAME.search(key)) or bool(
        _types_in(field.annotation) & {pydantic.SecretStr, pydantic.SecretBytes}
    )


def show(value: Any) -> str:
    """Return ``value`` for a message: as JSON, short, without what may be a secret.

    Left out are user and password of an address, and the values of an object.
    """
    try:
        text = json.dumps(_keys_only(value), ensure_ascii=False)
    except (TypeError, ValueError):
        text = f"a {type(value).__name__}"
    text = _USERINFO.sub(r"\1***@", text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"


def _keys_only(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict.fromkeys(value, "…")
    return [_keys_only(each) for each in value] if isinstance(value, (list, tuple)) else value


def with_origin(
    cause: ConfigError, given: Mapping[str, Given], message: str | None = None
) -> ConfigError:
    """Return ``cause`` anew with the origin of its key; the old one has frames with values."""
    text = str(cause) if message is None else message
    each = given.get(cause.key or "")
    origin = cause.origin or (each.origin if each else None)
    if origin is not None and origin not in text:
        text = f"{text} (from {origin})"
    return ConfigError(text, key=cause.key, origin=origin, suggestion=cause.suggestion)


def _explain(
    detail: Any,
    fields: Mapping[str, FieldInfo],
    given: Mapping[str, Given],
    backend: str | None,
) -> ConfigError:
    """Return one of pydantic's findings in our words."""
    cause = (detail.get("ctx") or {}).get("error")
    if isinstance(cause, ConfigError):  # raised by the model's own validator, in our words already
        return with_origin(cause, given, _without_secrets(str(cause), fields, given))
    message = _without_secrets(detail["msg"], fields, given)
    message = re.sub("^(Value error|Assertion failed), ", "", message)
    message = re.sub("^Input should be", "it must be", message)
    message = re.sub("a valid (tuple|list|set|frozenset)$", "a list", message)
    if not detail["loc"]:
        return _of_several(message, given)
    key = str(detail["loc"][0])
    if key not in fields:
        return ConfigError(message, key=key)
    if detail["type"] == "missing":
        return ConfigError(
            f"{key} is required and not given; give it in {FLAG} or as environment variable "
            f"{variable(key, backend)}",
            key=key,
        )
    if key not in given:
        return ConfigError(f"the default of {key} does not fit: {message}", key=key)
    where = "".join(f"[{part}]" for part in detail["loc"][1:] if isinstance(part, int))
    message = f"item {where}: {message}" if where else message
    return _wrong(key, fields[key], given[key], message)


def _of_several(message: str, given: Mapping[str, Given]) -> ConfigError:
    """Return what a model says of several settings together, with where those named came from."""
    words = re.findall(r"\w+", message)
    named = [key for key in dict.fromkeys(words) if key in given]
    if not named:
        return ConfigError(message)
    origins = ", ".join(f"{key} from {given[key].origin}" for key in named)
    return ConfigError(f"{message} ({origins})", key=named[0], origin=given[named[0]].origin)


def _without_secrets(
    message: str, fields: Mapping[str, FieldInfo], given: Mapping[str, Given]
) -> str:
    for key, each in given.items():
        if is_secret(key, fields[key]) and isinstance(each.value, str) and each.value:
            message = message.replace(each.value, "***")
    return _USERINFO.sub(r"\1***@", message)


def _wrong(key: str, field: FieldInfo, given: Given, reason: str) -> ConfigError:
    value = "(not shown)" if is_secret(key, field) else f"= {show(given.value)}"
    return ConfigError(
        f"{key} {value} from {given.origin} is not valid: {reason}", key=key, origin=given.origin
    )


def _one(problems: list[ConfigError]) -> ConfigError:
    first = problems[0]
    if len(problems) == 1:
        return first
    texts = dict.fromkeys(str(each) for each in problems)
    return ConfigError(
        "; also: ".join(texts), key=first.key, origin=first.origin, suggestion=first.suggestion
    )


def _from_text(key: str, field: FieldInfo, given: Given) -> Any:
    """Return text from the environment as the model takes it; pydantic converts plain numbers."""
    text: str = given.value
    types = _types_in(field.annotation)
    if text.lstrip().startswith(("[", "{")) and types & {*_SEQUENCES, dict}:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            problem = _wrong(key, field, given, "it begins like JSON but is not JSON")
        raise problem
    if types & {*_SEQUENCES} and not types & {str}:
        return [part.strip() for part in text.split(",")]
    return text if is_secret(key, field) else text.strip()


def _types_in(annotation: Any) -> set[Any]:
    """Return the types that a value of ``annotation`` itself can have, without items' types."""
    origin = get_origin(annotation)
    if origin in (*_SEQUENCES, dict):
        return {origin}
    arguments = get_args(annotation)
    if not arguments:
        return {annotation}
    if hasattr(annotation, "__metadata__"):
        return _types_in(arguments[0])
    return set().union(*(_types_in(each) for each in arguments if not _is_plain_value(each)))


def _is_plain_value(each: Any) -> bool:
    return isinstance(each, (str, int, float, bytes)) and not isinstance(each, type)


def _converted_fields(model: type[BaseSettings]) -> set[str]:
    """Return the fields whose own validators take another kind of value on purpose."""
    return {
        key
        for each in model.__pydantic_decorators__.field_validators.values()
        if each.info.mode != "after"
        for key in each.info.fields
    }


def _changed_kind(given: Any, made: Any) -> str | None:
    """Return what belonged there if pydantic turned one kind of JSON value into another."""
    if isinstance(given, (list, tuple)) and isinstance(made, (list, tuple)):
        kinds = (_changed_kind(*pair) for pair in zip(given, made, strict=False))
        return next((f"a list of which each is {kind}" for kind in kinds if kind), None)
    was, became = _kind(given), _kind(made)
    if was is None or became is None or was is became or (was is int and became is float):
        return None
    return _KINDS[became]


def _kind(value: Any) -> type | None:
    return next((kind for kind in _KINDS if isinstance(value, kind)), None)
