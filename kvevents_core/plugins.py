"""Find and load ONE backend by name; every error about a plugin is made here.

Listing reads metadata and imports nothing. Loading imports the one package asked for. Whatever a
package does wrong ends as a ``BackendError`` that names the distribution, the cause and the remedy;
it never takes another backend, or the engine, down (``KeyboardInterrupt`` alone passes).
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import (
    Distribution,
    EntryPoint,
    PackageNotFoundError,
    distribution,
    distributions,
)
from typing import Any, Final, TypeVar

import pluggy

from kvevents_core import hookspecs
from kvevents_core.backend import CONTRACT_VERSION, Backend, BackendSettings, Capabilities
from kvevents_core.errors import BackendError
from kvevents_core.suggestions import nearest

GROUP: Final = "kvevents.backends"
"""Entry-point group; the entry point's name is the ``publisher`` value and the extra."""

OURS: Final = "kvevents"
"""The distribution whose names nobody can take over."""

NULL: Final = "null"
"""The ``publisher`` value that means: none."""

SLOW_IMPORT_S: Final = 1.0
"""Importing a backend that takes longer is worth a warning: engines do it in every process."""

_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InstalledBackend:
    """One entry point of the group, as metadata tells; nothing has been imported."""

    name: str
    """The ``publisher`` value, trimmed and in lower case."""
    distribution: str
    version: str
    entry_point: str
    """What the entry point names: ``module`` or ``module:attribute``."""
    missing: tuple[str, ...] = ()
    """Distributions that the extra of this name requires and that are not installed."""
    problem: str | None = None
    """Why this entry point cannot be used, as far as metadata tells; None if nothing is known."""

    @property
    def provider(self) -> str:
        """Distribution, version and entry point in one phrase for messages."""
        return f"{self.distribution} {self.version} ({self.entry_point})"


def normalise(name: str) -> str:
    """Return the backend's name that an operator meant by ``name``."""
    return name.strip().lower()


def installed_backends() -> list[InstalledBackend]:
    """Return every installed backend by name, those that cannot be used included.

    A distribution that is listed twice, as editable installs are, counts once. Imports nothing.
    """
    found: list[InstalledBackend] = []
    seen: set[str] = set()
    for provider in distributions():
        described = _describe(provider)
        names = {_canonical(each.distribution) for each in described}
        if not names & seen:  # a second copy of a distribution is shadowed, as in an import
            found += described
        seen |= names
    listed = sorted(found, key=lambda each: (each.name, each.provider))
    return [replace(each, problem=_problem(each, listed)) for each in listed]


def load_backend(name: str, *, complete: bool = True) -> Backend[Any]:
    """Import the package of backend ``name``, and no other, and return its backend.

    Args:
        name: The ``publisher`` value, in any case.
        complete: Refuse a backend whose extra is not installed. False serves only to look at
            its settings model and capabilities.

    Raises:
        BackendError: No such backend, two of one name, or the package is broken.
    """
    wanted = normalise(name)
    chosen = _choose(wanted, complete=complete)
    plugin = _plugin(chosen)
    return _checked(chosen, _ask(chosen, plugin))


def _describe(provider: Distribution) -> list[InstalledBackend]:
    """Return the backends of one distribution; broken metadata costs that distribution only."""
    try:
        return [
            InstalledBackend(
                name=normalise(entry.name),
                distribution=provider.metadata["Name"] or "unnamed distribution",
                version=provider.version or "of unknown version",
                entry_point=entry.value,
                missing=tuple(_missing(provider, normalise(entry.name))),
            )
            for entry in provider.entry_points.select(group=GROUP)
        ]
    except Exception as error:
        where = getattr(provider, "_path", provider)
        _log.warning("the metadata in %s cannot be read: %s", where, _cause(error))
        return []


def _missing(provider: Distribution, extra: str) -> Iterator[str]:
    """Yield what the extra requires and is not installed; conditional requirements are skipped."""
    condition = re.compile(rf"""extra\s*==\s*["']{re.escape(extra)}["']""")
    for requirement in provider.requires or ():
        wanted, _, marker = requirement.partition(";")
        if not condition.fullmatch(marker.strip()):
            continue
        name = re.split(r"[^A-Za-z0-9._-]", wanted.strip(), maxsplit=1)[0]
        try:
            distribution(name)
        except PackageNotFoundError:
            yield name


def _problem(backend: InstalledBackend, listed: list[InstalledBackend]) -> str | None:
    if backend.name == NULL:
        return f"{NULL!r} means no publisher; no backend can have that name"
    others = [each for each in listed if each.name == backend.name and each is not backend]
    ours = [each for each in others if _is_ours(each)]
    if ours and not _is_ours(backend):
        return f"ignored: the name {backend.name!r} belongs to {ours[0].provider}"
    rivals = [each.provider for each in others if _is_ours(each) == _is_ours(backend)]
    if rivals:
        both = " and ".join(sorted([backend.provider, *rivals]))
        return f"several backends are named {backend.name!r}: {both}; uninstall all but one"
    if backend.missing:
        return (
            f"it needs {' and '.join(backend.missing)}, not installed; "
            f"run: pip install '{backend.distribution}[{backend.name}]'"
        )
    return None


def _choose(wanted: str, *, complete: bool) -> InstalledBackend:
    listed = installed_backends()
    named = [each for each in listed if each.name == wanted]
    known = sorted({each.name for each in listed if each.name != NULL})
    if not named or wanted == NULL:
        suggestion = nearest(wanted, known)
        meant = f"did you mean {suggestion!r}? " if suggestion else ""
        raise BackendError(
            f"no backend is named {wanted!r}; {meant}installed are: {', '.join(known) or 'none'}. "
            f"A backend is a package with an entry point of that name in group {GROUP!r}",
            name=wanted,
            known=known,
            suggestion=suggestion,
        )
    chosen = next((each for each in named if _is_ours(each)), named[0])
    problem = chosen.problem if complete or not chosen.missing else None
    if problem is not None:
        raise _broken(chosen, problem)
    for each in named:
        if each is not chosen:
            _log.warning("backend %s of %s is %s", each.name, each.provider, each.problem)
    return chosen


def _plugin(chosen: InstalledBackend) -> object:
    """Import what the entry point names; make the plugin object if it is a class or a factory."""
    started = time.monotonic()
    entry = EntryPoint(name=chosen.name, value=chosen.entry_point, group=GROUP)
    target = _guarded(chosen, "importing it failed", entry.load)
    took_s = time.monotonic() - started
    if took_s > SLOW_IMPORT_S:
        _log.warning(
            "importing backend %s of %s took %.1f s", chosen.name, chosen.provider, took_s
        )
    if inspect.isclass(target) or inspect.isroutine(target):
        return _guarded(chosen, "calling what its entry point names failed", target)
    return target


def _ask(chosen: InstalledBackend, plugin: object) -> object:
    """Register the plugin with a manager of its own and return what its hook returns."""
    hook = hookspecs.kvevents_backend.__name__
    if isinstance(plugin, Backend):
        raise _broken(
            chosen,
            "its entry point names a backend; it must name the module (or plugin object) whose "
            f"function {hook}, marked @hookimpl, returns the backend",
        )
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)

    def register() -> None:
        manager.register(plugin, name=chosen.name)
        manager.check_pending()

    _guarded(chosen, "its hooks do not fit", register)
    if not manager.hook.kvevents_backend.get_hookimpls():
        marked = "mark it @hookimpl (from kvevents_core)" if hasattr(plugin, hook) else "define it"
        raise _broken(chosen, f"it has no hook {hook}; {marked}")
    return _guarded(chosen, f"its hook {hook} failed", manager.hook.kvevents_backend)


def _checked(chosen: InstalledBackend, backend: object) -> Backend[Any]:
    """Return ``backend``; refuse what the contract does not allow, each with its own message."""
    if not isinstance(backend, Backend):
        raise _broken(
            chosen, f"its hook returned a {type(backend).__name__}, not a kvevents_core.Backend"
        )
    version = getattr(backend, "contract_version", None)
    if version != CONTRACT_VERSION:
        older = "the backend" if isinstance(version, int) and version < CONTRACT_VERSION else OURS
        remedy = "set contract_version" if version is None else f"upgrade {older}"
        raise _broken(
            chosen,
            f"it was written for version {version} of the contract and this is "
            f"{OURS} with version {CONTRACT_VERSION}; {remedy}",
        )
    name = getattr(backend, "name", None)
    if name != chosen.name:
        raise _broken(chosen, f"its backend is named {name!r}; both names must be equal")
    if not isinstance(getattr(backend, "capabilities", None), Capabilities):
        raise _broken(chosen, "its capabilities are not a kvevents_core.Capabilities")
    model = getattr(backend, "settings_model", None)
    if not (inspect.isclass(model) and issubclass(model, BackendSettings)):
        raise _broken(chosen, "its settings_model is not a subclass of BackendSettings")
    return backend


def _guarded(chosen: InstalledBackend, what: str, call: Callable[[], T]) -> T:
    """Call foreign code; whatever it raises becomes our error, ``SystemExit`` included."""
    try:
        return call()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin must not end the engine
        raise _broken(chosen, f"{what}: {_cause(error)}{_advice(chosen, error)}") from error


def _cause(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _advice(chosen: InstalledBackend, error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"; install what it needs, or reinstall {chosen.distribution}"
    if isinstance(error, pluggy.PluginValidationError):
        hook = hookspecs.kvevents_backend.__name__
        return f"; the one hook is {hook}(), without parameters"
    return ""


def _broken(chosen: InstalledBackend, cause: str) -> BackendError:
    return BackendError(
        f"backend {chosen.name!r} of {chosen.provider} cannot be used: {cause}",
        name=chosen.name,
        distribution=chosen.distribution,
    )


def _is_ours(backend: InstalledBackend) -> bool:
    return _canonical(backend.distribution) == OURS


def _canonical(distribution_name: str) -> str:
    """Return the name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", distribution_name).lower()
