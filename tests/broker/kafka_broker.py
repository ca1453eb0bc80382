"""A real Apache Kafka broker (KRaft, one process) on free loopback ports, for tests."""

from __future__ import annotations

import atexit
import base64
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from string import Template

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

HERE = Path(__file__).parent
LISTENERS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
USERS = {"alice": "alice-secret", "bob": "bob-secret", "nobody": "nobody-secret"}
"""SASL users and their passwords. None of them may do anything before an ACL says so."""
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
JVM_OPTIONS = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)


class KafkaBroker:
    """One broker with PLAINTEXT, TLS, SASL and SASL over TLS listeners and Kafka's authorizer.

    Ports and data stay the same through ``stop``/``kill`` and ``start``; ``close`` removes all.
    """

    def __init__(self, java: str, jars: Path, properties: Mapping[str, str] | None = None) -> None:
        self._java = java
        self._classpath = f"{jars}/*"
        self.folder = Path(tempfile.mkdtemp(prefix="kvevents-kafka-"))
        self.ports = dict(zip((*LISTENERS, "controller"), _free_ports(5), strict=True))
        self.authority = trustme.CA()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_path = self.folder / "broker.log"
        atexit.register(self.close)
        try:
            self._write_files(properties or {})
            self._format()
        except BaseException:
            self.close()
            raise

    def bootstrap(self, listener: str = "plaintext") -> str:
        """Return ``host:port`` of a listener, by the name that its certificate carries."""
        host = "localhost" if listener.endswith("ssl") else "127.0.0.1"
        return f"{host}:{self.ports[listener]}"

    @property
    def ca_file(self) -> Path:
        """Return the PEM file of the authority that signed the broker's certificate."""
        return self.folder / "ca.pem"

    @property
    def is_running(self) -> bool:
        """Return whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process and wait until the broker serves."""
        if self.is_running:
            return
        before = self._log_path.stat().st_size if self._log_path.exists() else 0
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self._java,
                    *JVM_OPTIONS,
                    f"-Dlog4j2.configurationFile={HERE / 'kafka_log4j2.properties'}",
                    "-cp",
                    self._classpath,
                    "kafka.Kafka",
                    str(self._properties_path),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
            )
        self._wait_started(before)

    def stop(self) -> None:
        """End the broker as an operator would (SIGTERM); SIGKILL if it does not listen."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once (SIGKILL); what it wrote stays."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open and nothing answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process run on (SIGCONT)."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the broker and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)

    def log_tail(self, characters: int = 2000) -> str:
        """Return the end of the broker's log, for failure messages."""
        if not self._log_path.exists():
            return ""
        return self._log_path.read_text(errors="replace")[-characters:]

    @property
    def _properties_path(self) -> Path:
        return self.folder / "server.properties"

    def _write_files(self, properties: Mapping[str, str]) -> None:
        certificate = self.authority.issue_cert("localhost", "127.0.0.1")
        key = load_pem_private_key(certificate.private_key_pem.bytes(), password=None)
        chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
        # Kafka reads PKCS#8 only; trustme writes the older form.
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (self.folder / "keystore.pem").write_bytes(pem + chain)
        self.authority.cert_pem.write_to_path(str(self.ca_file))
        template = Template((HERE / "kafka_server.properties").read_text())
        lines = [template.substitute(self.ports, folder=self.folder), *_jaas_lines()]
        self._properties_path.write_text("\n".join(lines) + "\n")
        self.configure(properties)

    def configure(self, properties: Mapping[str, str]) -> None:
        """Set ``properties`` for the next ``start``; the last value of a key counts."""
        with self._properties_path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in properties.items())

    def advertise(self, port: int) -> None:
        """Tell PLAINTEXT clients to come by ``port`` (a relay's) from the next ``start`` on."""
        known = {**self.ports, "plaintext": port}
        listeners = [f"{name.upper()}://127.0.0.1:{known[name]}" for name in known]
        # The certificate's name is what TLS clients check.
        value = ",".join(each.replace("SSL://127.0.0.1", "SSL://localhost") for each in listeners)
        self.configure({"advertised.listeners": value})

    def _format(self) -> None:
        # A cluster id that begins with '-' would be taken for an option.
        raw = b"\x01" + uuid.uuid4().bytes[1:]
        cluster = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        command = [self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", self._classpath]
        command += ["kafka.tools.StorageTool", "format", "--standalone", "-t", cluster]
        command += ["-c", str(self._properties_path)]
        for mechanism in MECHANISMS[1:]:
            for user, password in USERS.items():
                command += ["--add-scram", f"{mechanism}=[name={user},password={password}]"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"formatting the broker's storage failed: {done.stderr[-2000:]}")

    def _wait_started(self, log_offset: int) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with self._log_path.open("rb") as log:
                log.seek(log_offset)
                if b"Kafka Server started" in log.read():
                    return
            time.sleep(0.05)
        self.kill()
        raise RuntimeError(f"the Kafka broker did not start: {self.log_tail()}")

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if how is signal.SIGTERM:
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


def _jaas_lines() -> list[str]:
    module = "org.apache.kafka.common.security"
    users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
    lines = []
    for listener in ("sasl_plaintext", "sasl_ssl"):
        for mechanism in MECHANISMS:
            login = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
            known = f" {users}" if mechanism == "PLAIN" else ""
            key = f"listener.name.{listener}.{mechanism.lower()}.sasl.jaas.config"
            lines.append(f"{key}={module}.{login} required{known};")
    return lines


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
