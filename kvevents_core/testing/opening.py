"""Promises about the beginning: construction, settings, unreachable peers, secrets."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import Any, Final

import pytest
from pydantic import SecretStr, ValidationError

from kvevents_core.backend import (
    CONTRACT_VERSION,
    Backend,
    BackendSettings,
    Capabilities,
)
from kvevents_core.errors import KVEventsError
from kvevents_core.testing.resources import held
from kvevents_core.testing.rig import Rig

AT_ONCE_S: Final = 1.0
"""Longest that opening may take; it never waits for a peer."""
_SECRET_NAME: Final = re.compile(
    r"(passw|secret|credential|(^|_)token$|(^|_)seed$)(?!.*_(file|path)$)"
)
_IMPORTED: Final = """
import sys
from kvevents_core.plugins import load_backend
backend = load_backend(sys.argv[1])
assert backend.settings_model is not None
print(*(name for name in sys.argv[2:] if name in sys.modules))
"""


class OpeningPromises:
    """C7, C10, C11, C27, C31, C32, C37."""

    def test_bad_settings_are_refused_alike_on_every_rank(self, rig: Rig) -> None:
        """C7: a bad setting raises the same error on every rank, before anything is opened."""
        if not rig.place.bad_settings:
            pytest.skip("the place names no settings to refuse")
        for bad in rig.place.bad_settings:
            errors = {self._refusal(rig, bad, rank) for rank in range(4)}
            assert len(errors) == 1, f"{bad}: ranks disagree: {errors}"
            assert None not in errors, f"{bad} was accepted"

    def _refusal(self, rig: Rig, bad: Any, rank: int) -> tuple[str, str] | None:
        try:
            rig.settings(**bad).check_ranks(4)
            rig.open(rank, **bad)
        except (ValidationError, KVEventsError, ValueError) as error:
            return type(error).__name__, str(error)
        return None

    def test_construction_opens_nothing(self, rig: Rig) -> None:
        """C10: constructing a backend and its settings opens nothing and starts no thread."""
        type(rig.backend)()
        before = held()
        kept = type(rig.backend)(), rig.settings()
        assert held().beyond(before) == []
        assert kept

    def test_loading_imports_no_client(self, rig: Rig) -> None:
        """C10: loading the backend by its name imports none of its client libraries."""
        clients = rig.place.client_modules
        if not clients:
            pytest.skip("the place names no client library")
        rig.need_installed()
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-c", _IMPORTED, rig.backend.name, *clients],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == []

    def test_settings_survive_the_engines_parser(self, rig: Rig) -> None:
        """C11: settings are flat, JSON-able and none shadows a key of core's."""
        mapping = dict(rig.place.settings)
        assert json.loads(json.dumps(mapping)) == mapping
        assert rig.settings() == rig.settings(**json.loads(json.dumps(mapping)))
        for name, value in mapping.items():
            parts = value if isinstance(value, list) else [value]
            flat = all(isinstance(part, str | int | float | bool | None) for part in parts)
            assert flat, f"{name} is not flat: {value!r}"
        from kvevents_core.settings import KVEventsConfig

        core = set(KVEventsConfig.model_fields)
        assert core & set(rig.backend.settings_model.model_fields) == set()

    def test_unknown_settings_are_refused(self, rig: Rig) -> None:
        """C11: a key the backend does not know is refused, not swallowed."""
        with pytest.raises(ValidationError, match="no_such_key"):
            rig.settings(no_such_key=1)
        assert rig.backend.settings_model.model_config.get("frozen"), "settings can be changed"

    def test_opening_never_waits_for_a_peer(self, rig: Rig) -> None:
        """C27: with an unreachable peer sink and source open at once, and say what is wrong."""
        peer = rig.need_peer()
        peer.stop()
        started = time.monotonic()
        driver = rig.open()
        source = rig.open_source()
        assert time.monotonic() - started < AT_ONCE_S
        sink = driver.sink
        driver.run_until(lambda: sink.status().error is not None, "status tells the trouble")
        assert not sink.status().connected
        source.receive(0.01)
        peer.start()
        driver.send([b"the peer is there now"])
        driver.settle()
        driver.run_until(lambda: sink.status().connected, "connected once the peer is there")

    def test_secrets_are_never_shown(self, rig: Rig) -> None:
        """C31: no secret appears in repr, text, dump, error, status or description."""
        secrets: dict[str, Any] = dict(rig.place.secrets)
        fields = rig.backend.settings_model.model_fields
        for name, field in fields.items():
            if _SECRET_NAME.search(name) and "bool" not in str(field.annotation):
                assert SecretStr.__name__ in str(field.annotation), f"{name} is not a SecretStr"
        if not secrets:
            return
        kept = rig.settings(**secrets)
        shown = [self._shown(kept), str(kept.address_of(rig.place.stream()))]
        with pytest.raises(ValidationError) as refused:
            rig.settings(**secrets, no_such_key="x")
        shown.append(str(refused.value) + repr(refused.value))
        for rank in (0, 1):
            driver = rig.open(rank, **secrets)
            driver.run_for(0.3)
            shown.append(repr(driver.sink.status()) + repr(driver.sink.describe()))
            shown.append(repr(driver.sink) + str(driver.sink))
        for value in secrets.values():
            assert [text for text in shown if value in text] == []

    def _shown(self, settings: BackendSettings) -> str:
        dump = settings.model_dump(mode="json")
        return f"{settings!r} {settings!s} {dump} {settings.model_dump_json()}"

    def test_facts_are_json(self, rig: Rig) -> None:
        """C32: ``describe`` and ``position`` can be written as JSON and read again."""
        driver = rig.open()
        driver.send([b"one"])
        facts = driver.sink.describe()
        assert json.loads(json.dumps(facts)) == facts
        position = rig.open_source().position()
        assert json.loads(json.dumps(position)) == position

    def test_backend_states_what_it_is(self, rig: Rig) -> None:
        """C37: a backend states name, contract version, capabilities and settings model."""
        backend = rig.backend
        assert isinstance(backend, Backend)
        assert re.fullmatch(r"[a-z][a-z0-9_]*", backend.name)
        assert backend.contract_version <= CONTRACT_VERSION
        assert isinstance(backend.capabilities, Capabilities)
        assert issubclass(backend.settings_model, BackendSettings)
