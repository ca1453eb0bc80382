"""The commands and programs of docs/tutorial/first-stream.md do what the page says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvevents_core.cli.demo_plan import free_ports

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "first-stream.md").read_text()


def _blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _commands(beginning):
    """Return the commands of the page that begin so, split into words."""
    lines = [line for block in _blocks("console") for line in block.splitlines()]
    found = [shlex.split(line[2:]) for line in lines if line.startswith(f"$ {beginning}")]
    assert found, beginning
    return found


def _run(words, cwd):
    program = [sys.executable, "-m", "kvevents_core.cli", *words[1:]]
    return subprocess.run(
        program, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def folder(tmp_path):
    """The files that the page asks to save, on ports of their own."""
    first = free_ports(2)
    (stream,) = _blocks("json")
    stream = stream.replace("20557", str(first)).replace("20558", str(first + 1))
    (tmp_path / "stream.json").write_text(stream)
    publish, read = _blocks("python")
    (tmp_path / "publish.py").write_text(publish)
    (tmp_path / "read.py").write_text(read)
    return tmp_path


def test_the_demos_of_the_page_end_as_it_says(tmp_path):
    """The whole rule passes with the words printed there; both breaks exit 1 and name two."""
    whole, bound, connected = (_run(words, tmp_path) for words in _commands("kvevents demo"))
    assert whole.returncode == 0, whole.stdout + whole.stderr
    promised = re.search(r"^OK  .*$", PAGE, re.MULTILINE).group()
    assert promised in whole.stdout
    for broken in (bound, connected):
        assert broken.returncode == 1
        assert "stream 0 was published by 2 processes: pp0.tp0" in broken.stdout


def test_the_programs_of_the_page_publish_and_read(folder):
    """Check, publish, tail and read, in the order of the page, with the output it promises."""
    (check,) = _commands("kvevents check")
    (tail,) = _commands("kvevents tail")
    checked = _run(check, folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    with subprocess.Popen(
        [sys.executable, "publish.py"],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as publisher:
        try:
            assert publisher.stdout.readline() == "press Enter to end\n"
            tailed = _run(tail, folder)
            read = subprocess.run(
                [sys.executable, "read.py"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
            publisher.communicate("\n", timeout=20)
        finally:
            publisher.kill()
    assert publisher.returncode == 0
    assert tailed.returncode == 0, tailed.stderr
    assert "cleared" in tailed.stdout.splitlines()[0]
    assert "stored GPU 2" in tailed.stdout
    assert read.stderr == ""
    assert f"It prints `{read.stdout.strip()}`" in PAGE
