"""The same keys from environment variables and from a directory of secret files.

``KVEVENTS_TOPIC`` gives key ``topic`` of core or of the chosen backend; ``KVEVENTS_KAFKA_TOPIC``
gives it to backend ``kafka`` alone and wins. ``KVEVENTS_SECRETS_DIR`` names a directory whose files
are named like the variables, in lower case; the environment wins over them. As in
pydantic-settings names are compared without case, empty values count as not given, and a secret
file's text is stripped. No value is ever part of a message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvevents_core.config_sources import Given
from kvevents_core.errors import ConfigError

PREFIX: Final = "KVEVENTS_"
SECRETS_DIR: Final = "SECRETS_DIR"

_NOT_OURS: Final = ("TEST_", "REQUIRE_", "ENGINES_HOME", "REPLACE_ZMQ")
"""Variables of the project's own test runs and of the engine adapters."""

_SERVICE_LINK: Final = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
"""Names that Kubernetes (1.36, enableServiceLinks) injects for a service called ``kvevents-…``;
those ending in ``_PORT`` are told by their value."""

_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://\[?[0-9a-fA-F.:]+\]?:\d+")


def variable(key: str, backend: str | None = None) -> str:
    """Return the environment variable that gives ``key``, to ``backend`` alone if one is named."""
    return PREFIX + _name(key, backend)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Everything that the environment and the secrets directory give, by variable name."""

    environment: Mapping[str, Given] = field(repr=False)
    secrets: Mapping[str, Given] = field(repr=False)

    def find(self, key: str, backend: str | None = None) -> Given | None:
        """Return what is given for ``key``: the environment first, the backend's own name first."""
        names = [_name(key, backend), _name(key)] if backend else [_name(key)]
        for layer in (self.environment, self.secrets):
            for name in names:
                if name in layer:
                    return layer[name]
        return None

    def unused(self, known: Iterable[str]) -> Iterator[tuple[str, Given]]:
        """Yield what is given under names outside ``known``, by name without the prefix."""
        names = set(known)
        for layer in (self.environment, self.secrets):
            for name in sorted(layer.keys() - names):
                yield name, layer[name]


def read_surroundings(environ: Mapping[str, str]) -> Surroundings:
    """Return what ``environ``, and the secrets directory it names, give.

    Raises:
        ConfigError: The secrets directory or a file in it cannot be read.
    """
    environment: dict[str, Given] = {}
    for variable_name in sorted(environ):  # upper case sorts first and wins
        name = variable_name.upper().removeprefix(PREFIX)
        value = environ[variable_name]
        if variable_name.upper() != PREFIX + name or _is_left_alone(name, value):
            continue
        if value.strip():
            given = Given(value, f"environment variable {variable_name}", is_text=True)
            environment.setdefault(name, given)
    directory = environment.pop(SECRETS_DIR, None)
    secrets = {} if directory is None else _read_secrets(directory)
    return Surroundings(environment, secrets)


def names_of(keys: Iterable[str], backend: str | None = None) -> set[str]:
    """Return the variable names, without the prefix, that can give ``keys``."""
    both = [{_name(key), _name(key, backend)} if backend else {_name(key)} for key in keys]
    return set().union(*both)


def _name(key: str, backend: str | None = None) -> str:
    spelt = f"{backend}_{key}" if backend else key
    return re.sub(r"[^A-Z0-9]", "_", spelt.upper())


def _is_left_alone(name: str, value: str) -> bool:
    if name.startswith(_NOT_OURS) or _SERVICE_LINK.fullmatch(name):
        return True
    return name == "PORT" or (name.endswith("_PORT") and bool(_SERVICE_URL.fullmatch(value)))


def _read_secrets(directory: Given) -> dict[str, Given]:
    path = Path(directory.value.strip()).expanduser()
    try:
        files = sorted(each for each in path.iterdir() if each.name.upper().startswith(PREFIX))
        texts = {each: each.read_text(encoding="utf-8").strip() for each in files}
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
    except ValueError:
        problem = f"a file in {path} is not UTF-8 text"
    else:
        return {
            each.name.upper().removeprefix(PREFIX): Given(
                text, f"secret file {each}", is_text=True
            )
            for each, text in texts.items()
            if text
        }
    raise ConfigError(
        f"{directory.origin} names a directory of secret files, but {problem}",
        key="secrets_dir",
        origin=directory.origin,
    )
