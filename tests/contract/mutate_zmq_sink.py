"""Deletes the statements of the ZMQ sink one by one and says which promise notices, or which test.

Run by hand: ``python tests/contract/mutate_zmq_sink.py [LINE ...]``. Each mutant lives in a copy of
the packages, in a process of its own; a mutant that no test notices is reported as a survivor.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SINK = ROOT / "kvevents_zmq" / "sink.py"
PACKAGES = ("kvevents_core", "kvevents_zmq", "kvevents_nats", "kvevents_kafka", "tests")
LIMIT_S = 120
QUICK = "(Ipc or Dialling) and not process and not forked and not imports"


def mutants() -> Iterator[tuple[int, str, str]]:
    """Yield line, the statement deleted there, and the module without it."""
    source = SINK.read_text()
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            for statement in _statements(node):
                yield statement.lineno, ast.unparse(statement), _without(source, statement)


def _statements(node: ast.AST) -> Iterator[ast.stmt]:
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(node, field, None)
        if isinstance(inner, list):
            yield from (s for s in inner if isinstance(s, ast.stmt) and not _is_text(s))
    for handler in getattr(node, "handlers", []):
        yield from (s for s in handler.body if not _is_text(s))


def _is_text(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom)


def _without(source: str, statement: ast.stmt) -> str:
    lines = source.splitlines(keepends=True)
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
    return "".join([*lines[:first], f"{indent}pass\n", *lines[last:]])


def judge(folder: Path, module: str) -> str:
    """Return who notices ``module`` as the ZMQ sink: the kit (quick tests first), or ZMQ's own."""
    (folder / "kvevents_zmq" / "sink.py").write_text(module)
    tests = folder / "tests" / "contract"
    kit = str(tests / "test_zmq.py")
    own = [str(path) for path in tests.glob("test_zmq_*.py")]
    for options in (["-x", "-k", QUICK, kit], ["-k", f"not ({QUICK})", kit], ["-x", *own]):
        verdict = _ask(folder, *options)
        if verdict is not None:
            return verdict
    return "SURVIVES"


def _ask(folder: Path, *options: str) -> str | None:
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
    places = ["--rootdir", str(folder), "-c", str(folder / "pyproject.toml")]
    try:
        done = subprocess.run(
            [*command, *places, *options],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "noticed: the run hangs"
    if done.returncode == 0:
        return None
    broken = re.findall(r"promise (C\d+) is broken", done.stdout)
    return ", ".join(broken) or ", ".join(re.findall(r"::(test_\w+)", done.stdout)) or "an error"


def main(only: set[int]) -> int:
    """Judge every mutant; return how many survive."""
    survivors = 0
    seen = set()
    with tempfile.TemporaryDirectory(prefix="kvevents-mutants-") as name:
        folder = Path(name)
        for package in PACKAGES:
            ignored = shutil.ignore_patterns("__pycache__", "broker", "engines", "interop")
            shutil.copytree(ROOT / package, folder / package, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for line, statement, module in mutants():
            key = (line, statement)
            if key in seen or (only and line not in only):
                continue
            seen.add(key)
            verdict = judge(folder, module)
            survivors += verdict == "SURVIVES"
            print(f"{line:4} {statement.splitlines()[0][:70]:70} {verdict}", flush=True)
    print(f"{len(seen)} mutants, {survivors} survive")
    return survivors


if __name__ == "__main__":
    sys.exit(bool(main({int(argument) for argument in sys.argv[1:]})))
