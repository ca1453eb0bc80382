"""The engines' real HTTP servers on a CPU, with a model of 148 000 random weights."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

from engines.build_environment import engines_home
from engines.environments import DRIVERS, EngineEnvironment
from engines.reading import free_ports

STAND_INS = Path(__file__).parent / "stand_ins"

SGLANG_FLAGS = [
    "--device",
    "cpu",
    "--attention-backend",
    "torch_native",
    "--sampling-backend",
    "pytorch",
    "--dtype",
    "float32",
    "--grammar-backend",
    "none",
    "--page-size",
    "16",
    "--max-total-tokens",
    "2048",
    "--context-length",
    "1024",
    "--max-running-requests",
    "8",
    "--disable-overlap-schedule",
    "--skip-server-warmup",
]
VLLM_FLAGS = [
    "--dtype",
    "float32",
    "--max-model-len",
    "320",
    "--max-num-seqs",
    "8",
    "--enforce-eager",
    "--block-size",
    "32",
    "--enable-prefix-caching",
    "--num-gpu-blocks-override",
    "12",
]


def tiny_model(environment: EngineEnvironment) -> Path:
    """Return the model's folder, made once and kept beside the environments."""
    folder = engines_home() / "tiny-model"
    if not (folder / "config.json").exists():
        made = folder.with_suffix(".partial")
        shutil.rmtree(made, ignore_errors=True)
        process = environment.start(str(DRIVERS / "tiny_model.py"), str(made))
        assert process.wait(120) == 0, process.output
        made.rename(folder)
    return folder


class Server:
    """One engine's HTTP server, with the processes it starts in one group of their own."""

    def __init__(
        self, environment: EngineEnvironment, command: list[str], variables: dict[str, str]
    ) -> None:
        self.port = free_ports(1)
        self._log = environment.folder / f"server-{self.port}.log"
        environ = environment.environ(**variables)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(environment.python),
                    *command,
                    "--host",
                    "127.0.0.1",
                    "--port",
                    f"{self.port}",
                ],
                cwd=environment.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Everything the server printed so far."""
        return self._log.read_text(errors="replace")

    def wait_until_healthy(self, timeout_s: float = 480.0) -> None:
        """Wait until the server answers; fail with its log if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"the server ended:\n{self.log[-4000:]}")
            try:
                self.ask("/health", timeout_s=5.0)
            except OSError:
                time.sleep(0.25)
            else:
                return
        raise AssertionError(f"not healthy within {timeout_s} s:\n{self.log[-4000:]}")

    def ask(
        self, path: str, body: Any = None, timeout_s: float = 60.0, *, post: bool = False
    ) -> Any:
        """Return the answer to a request: JSON if it is, else text."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=b"" if post and data is None else data,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            text = answer.read().decode()
        try:
            return json.loads(text)
        except ValueError:
            return text

    def complete(self, prompt: str, **options: Any) -> Any:
        """Return the completion of ``prompt``, 4 tokens long."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 4, "temperature": 0, **options}
        return self.ask("/v1/completions", body)

    def kill(self) -> None:
        """End it as a crash would, and wait until the whole group is gone."""
        self._signal(signal.SIGKILL)
        self._process.wait(30)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and _group_lives(self._process.pid):
            time.sleep(0.05)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return


def sglang_server(
    environment: EngineEnvironment, flag: dict[str, Any], *arguments: str, **variables: str
) -> Server:
    """Start SGLang's server with ``--kv-events-config flag``."""
    command = ["-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(tiny_model(environment)), "--served-model-name", "tiny"]
    command += [*SGLANG_FLAGS, "--kv-events-config", json.dumps(flag), *arguments]
    variables = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "KVEVENTS_TEST_STAND_INS": "sgl_kernel",
        # PyTorch's wheel brings NCCL, which SGLang would use between processes even on a CPU.
        "SGLANG_NCCL_SO_PATH": "none",
        # With several processes SGLang wants to know each one's cores.
        **({"SGLANG_CPU_OMP_THREADS_BIND": "0|1"} if arguments else {}),
        **variables,
    }
    variables["PYTHONPATH"] = os.pathsep.join(
        [str(STAND_INS), variables.get("PYTHONPATH") or environment.environ()["PYTHONPATH"]]
    )
    return Server(environment, command, variables)


def vllm_server(
    environment: EngineEnvironment, flag: dict[str, Any], *arguments: str, **variables: str
) -> Server:
    """Start vLLM's server with ``--kv-events-config flag``."""
    # Not `vllm serve`, which asks for a distribution called vllm.
    command = ["-W", "ignore", "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(tiny_model(environment)), "--served-model-name", "tiny"]
    command += [*VLLM_FLAGS, "--kv-events-config", json.dumps(flag), *arguments]
    return Server(environment, command, {"VLLM_HOST_IP": "127.0.0.1", **variables})


def prompts(count: int, words: int = 40) -> list[str]:
    """Return prompts that differ from their first word on."""
    return [
        f"{number} " + " ".join(f"w{number}{word}" for word in range(words))
        for number in range(count)
    ]


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
