"""Fetch Apache Kafka's jars with Maven, once per machine; the cache is a convenience only."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POM = Path(__file__).with_name("kafka_pom.xml")
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
MAVEN_TIMEOUT_S = 180
MAVEN_TRIES = 3
LEAST_JAVA = 17


class KafkaUnavailableError(Exception):
    """No broker can be had here; the message says what is missing."""


def find_java() -> str:
    """Return the path of a Java that can run Kafka 4 (Java 17 or later)."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if java is None:
        raise KafkaUnavailableError(f"Java {LEAST_JAVA} or later is not installed")
    told = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=30, check=False
    )
    found = re.search(r'version "(\d+)', told.stderr)
    if found is None or int(found[1]) < LEAST_JAVA:
        raise KafkaUnavailableError(
            f"{java} is not Java {LEAST_JAVA} or later: {told.stderr[:80]!r}"
        )
    return java


@contextmanager
def kafka_jars() -> Iterator[Path]:
    """Yield a folder holding Kafka's jars: the cached one, or a new one if there is no cache."""
    cache = _cache_folder()
    if cache is not None and cache.is_dir():
        yield cache
        return
    with tempfile.TemporaryDirectory(
        prefix="kvevents-kafka-", dir=cache.parent if cache else None, ignore_cleanup_errors=True
    ) as folder:
        jars = Path(folder) / "jars"
        _run_maven(jars)
        if cache is not None:
            jars = _keep(jars, cache)
        yield jars


def _cache_folder() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("KVEVENTS_CACHE") or Path(base) / "kvevents")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    return folder / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"


def _keep(jars: Path, cache: Path) -> Path:
    try:
        return jars.rename(cache)
    except OSError:  # somebody else was quicker
        return cache if cache.is_dir() else jars


def _run_maven(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError("Maven (mvn) is not installed")
    command = [maven, "-q", "-B", "-f", str(POM), DEPENDENCY_PLUGIN]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    told = ""
    for _ in range(MAVEN_TRIES):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            told = f"no answer within {MAVEN_TIMEOUT_S} s"
            continue
        if done.returncode == 0 and any(jars.glob("kafka_2.13-*.jar")):
            return
        told = (done.stdout + done.stderr)[-500:]
    raise KafkaUnavailableError(f"Maven could not fetch Kafka's jars: {told}")
