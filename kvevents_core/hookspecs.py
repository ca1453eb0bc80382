"""The hooks of kvevents: what a package that brings a backend implements. There is one.

A backend package is a module, named by an entry point in group ``kvevents.backends`` whose name is
the ``publisher`` value::

    [project.entry-points."kvevents.backends"]
    redis = "kvevents_redis"

and the module holds::

    from kvevents_core import hookimpl

    @hookimpl
    def kvevents_backend() -> Backend:
        return RedisBackend()

The entry point may also name a class, or a function without parameters, that gives such a plugin
object. pluggy registers and validates; it is never called per batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pluggy

if TYPE_CHECKING:
    from kvevents_core.backend import Backend

PROJECT: Final = "kvevents"
"""pluggy's project name, which marks our hooks among those of other projects."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def kvevents_backend() -> Backend[Any]:  # type: ignore[empty-body]
    """Return the backend of this package.

    Called on the engine's thread whenever a configuration names the backend, perhaps several
    times in a process. Must open nothing, start no thread and import no client library.
    """
