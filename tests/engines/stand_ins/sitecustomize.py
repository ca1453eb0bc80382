"""Inert modules in place of GPU libraries, in every process of a server under test.

Python imports this file at start because its folder is on PYTHONPATH. SGLang's CPU path wants
``sgl_kernel``, of which no build for CPUs is to be had as a package; with the ``torch_native``
attention backend none of its functions is called. The names are in KVEVENTS_TEST_STAND_INS.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
from typing import Any

_NAMES = frozenset(os.environ.get("KVEVENTS_TEST_STAND_INS", "").split(",")) - {""}


class _Absent:
    """Stands for whatever a library would have held: any attribute and any call give it again."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_arguments: object, **_options: object) -> Any:
        return self


class _Inert(types.ModuleType):
    __path__ = ()  # a package: whatever is imported from it is inert too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in _NAMES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Inert(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


if _NAMES:
    sys.meta_path.insert(0, _Finder())
