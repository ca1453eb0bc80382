"""Packages that bring backends, written into a temporary folder on ``sys.path``."""

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

BACKEND = """
from kvevents_core.backend import Backend, BackendSettings, Capabilities
from kvevents_core import hookimpl
from pydantic import SecretStr

class Settings(BackendSettings):
    address: str = "nowhere"
    password: SecretStr | None = None

class Fake(Backend):
    name = "{name}"
    contract_version = 1
    capabilities = Capabilities()
    settings_model = Settings
    def open_sink(self, settings, stream):
        raise AssertionError("a test opened a sink")
    def open_source(self, settings, reader):
        raise AssertionError("a test opened a source")
"""

HOOK = """
@hookimpl
def kvevents_backend():
    return Fake()
"""


class FakePackages:
    """A folder of importable modules with the metadata of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: list[str] = []

    def add(
        self,
        distribution: str,
        entries: dict[str, str],
        *,
        module: str | None = None,
        source: str = "",
        metadata: str = "",
        version: str = "0.1",
    ) -> None:
        """Install ``distribution`` whose entry points are ``entries``, perhaps with a module."""
        info = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
            + textwrap.dedent(metadata)
        )
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[kvevents.backends]", *lines, ""]))
        if module is not None:
            self.modules.append(module)
            (self.folder / f"{module}.py").write_text(textwrap.dedent(source))

    def add_backend(
        self, name: str, *, source: str | None = None, metadata: str = "", attribute: str = ""
    ) -> None:
        """Install distribution ``kvevents-NAME`` with module ``fake_NAME``; ``source`` sees Fake."""
        module = f"fake_{name}"
        text = BACKEND.format(name=name) + textwrap.dedent(HOOK if source is None else source)
        self.add(
            f"kvevents-{name}",
            {name: module + attribute},
            module=module,
            source=text,
            metadata=metadata,
        )

    def imported(self) -> set[str]:
        """Return which of the fake modules have been imported."""
        return set(self.modules) & set(sys.modules)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakePackages]:
    """An empty folder of fake packages on ``sys.path``; what was imported is forgotten after."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    fake = FakePackages(tmp_path)
    yield fake
    for module in fake.modules:
        sys.modules.pop(module, None)
