"""A backend's package is loaded in a process of its own: whatever it does, the list goes on."""

import json
import sys

import pytest

from kvevents_core.cli import backend_probe
from kvevents_core.cli.app import run
from kvevents_core.cli.backend_probe import probe


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """Installs a backend ``broken`` whose package runs the given code at import."""

    def install(code):
        info = tmp_path / "broken_backend-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: broken-backend\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text("[kvevents.backends]\nbroken = broken_backend\n")
        (tmp_path / "broken_backend.py").write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.syspath_prepend(str(tmp_path))

    return install


@pytest.mark.parametrize(
    ("code", "phrase"),
    [
        ("raise RuntimeError('boom')", "boom"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("import os; os._exit(7)", "ended the process (exit code 7)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "exit code -11"),
        ("print('kvevents-probe:{}')", "no hook"),
    ],
)
def test_a_package_that_fails_at_import_is_described(broken_package, code, phrase):
    """An exception, an exit, a crash, noise on standard output: each becomes one line."""
    broken_package(code)
    answer = probe("broken")
    assert phrase in answer["problem"]
    assert "\n" not in answer["problem"]


def test_a_package_that_hangs_at_import_is_given_up(broken_package, monkeypatch):
    """The list does not wait for ever."""
    broken_package("import threading; threading.Event().wait()")
    monkeypatch.setattr(backend_probe, "_TIMEOUT_S", 2.0)
    assert "did not end within 2 s" in probe("broken")["problem"]


def test_one_broken_package_fails_the_check_and_disturbs_no_other(broken_package, capsys):
    """The list names its distribution and the cause; ours are described beside it."""
    broken_package("raise RuntimeError('boom')")
    assert run(["backends", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["backends"]
    assert run(["backends", "--check", "--json"]) == 1
    checked = {each["name"]: each for each in json.loads(capsys.readouterr().out)["backends"]}
    assert "broken" in [each["name"] for each in listed]
    assert "broken_backend" not in sys.modules
    assert checked["broken"]["is_broken"] is True
    assert checked["broken"]["distribution"] == "broken-backend"
    assert "boom" in checked["broken"]["problem"]
    assert checked["memory"]["is_broken"] is False
    assert checked["memory"]["capabilities"]["confirms"] is True
    assert run(["backends", "--check"]) == 1
    assert "boom" in capsys.readouterr().out


def test_a_backend_that_works_tells_its_capabilities():
    """The answer is the backend's own flags."""
    answer = probe("memory")
    assert answer["capabilities"]["confirms"] is True
    assert "kvevents_core.memory" not in sys.modules or answer["contract_version"] == 1
