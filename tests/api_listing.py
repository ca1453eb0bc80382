"""Lists the public API as text: ``python tests/api_listing.py > tests/packaging/public_api.txt``."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec

import kvevents_core

MODULES = {
    "kvevents_core": kvevents_core.__all__,
    "kvevents_core.errors": None,
    "kvevents_core.naming": None,
    "kvevents_core.testing": None,
    "kvevents_core.testing.strategies": None,
}
"""Public modules; None: ``__all__``, or what the module itself defines."""


def api() -> str:
    """Return the whole listing."""
    lines = []
    for module, names in MODULES.items():
        home = importlib.import_module(module)
        for name in sorted(names or getattr(home, "__all__", None) or _own(home)):
            lines += _describe(f"{module}.{name}", getattr(home, name))
    return "\n".join(lines) + "\n"


def _own(module: Any) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]


def _describe(path: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        text = _signature(value) if callable(value) else f" = {value!r}"
        yield f"{path}{text}"
        return
    bases = [base.__name__ for base in value.__bases__ if base is not object]
    yield f"class {path}({', '.join(bases)})"
    fields = list(_fields(value))
    yield from (f"    {field}" for field in fields)
    if not fields and "__init__" in vars(value):
        yield f"    __init__{_signature(value.__init__)}"
    for name, member in sorted(vars(value).items()):
        if name.startswith(("_", "test_", "model_")):
            continue
        if isinstance(member, property):
            yield f"    {name} -> {member.fget.__annotations__.get('return')}"
        elif isinstance(member, classmethod | staticmethod):
            yield f"    {name}{_signature(member.__func__)}"
        elif inspect.isfunction(member):
            yield f"    {name}{_signature(member)}"


def _fields(cls: type) -> Iterator[str]:
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            default = field.default is not dataclasses.MISSING
            yield f"{field.name}: {field.type}" + (f" = {field.default!r}" if default else "")
    elif issubclass(cls, msgspec.Struct):
        for name in cls.__struct_fields__:
            yield f"{name}: {_annotation(cls, name)}"
    elif hasattr(cls, "_fields") or hasattr(cls, "model_fields"):
        for name in getattr(cls, "_fields", None) or cls.model_fields:  # type: ignore[attr-defined]
            yield f"{name}: {_annotation(cls, name)}"
    else:
        for name, found in vars(cls).get("__annotations__", {}).items():
            if not name.startswith("_"):
                yield f"{name}: {found}"


def _annotation(cls: type, name: str) -> str:
    for base in cls.__mro__:
        if name in vars(base).get("__annotations__", {}):
            found = base.__annotations__[name]
            return str(getattr(found, "__forward_arg__", found))
    raise KeyError(name)


def _signature(function: Any) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return f" = {function!r}"
    kept = [
        p.replace(default=...)
        if "object at" in repr(p.default) or "lambda" in repr(p.default)
        else p
        for p in signature.parameters.values()
    ]
    return str(signature.replace(parameters=kept)).replace("'", "")


if __name__ == "__main__":
    print(api(), end="")
