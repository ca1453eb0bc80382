"""What the engine adapters decide before, or without, an engine."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvevents_core import ConfigError, EventPublisherFactory, KVEventsConfig, NullEventPublisher
from kvevents_core.engines import flag, sglang, sglang_publisher, versions, vllm, zmq_document

SHOWN = "the engine shows the flag"


@pytest.mark.parametrize("module", ["sglang", "vllm"])
def test_importing_an_adapter_is_cheap(module: str) -> None:
    """Neither pydantic nor a client nor an engine comes with it."""
    code = (
        f"import sys, kvevents_core.engines.{module}\n"
        "heavy = {'pydantic', 'pydantic_settings', 'zmq', 'nats', 'kafka', 'msgspec', 'pluggy',"
        " 'sglang', 'vllm', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("adapter", [sglang, vllm])
def test_register_without_its_engine_says_one_line(
    adapter: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never raises, and the second call is quiet."""
    monkeypatch.setattr(adapter, "_registered", False)
    with caplog.at_level(logging.INFO):
        adapter.register()
        adapter.register()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "own publishers work as before" in record.getMessage()


def test_register_survives_anything_but_an_interrupt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SystemExit of a foreign module ends in the log; Ctrl-C goes through."""

    def raise_exit() -> None:
        raise SystemExit(3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sglang, "_registered", False)
    monkeypatch.setattr(sglang, "_register_hooks", raise_exit)
    sglang.register()
    assert "SystemExit" in caplog.text
    monkeypatch.setattr(sglang, "_registered", False)
    monkeypatch.setattr(sglang, "_register_hooks", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sglang.register()


def test_keys_are_read_from_text_and_file(tmp_path: Path) -> None:
    """JSON, @file.json and @file.toml; what cannot be read is None and left to the settings."""
    (tmp_path / "kv.toml").write_text('publisher = "nats"')
    assert flag.read_keys('{"publisher": "zmq"}') == {"publisher": "zmq"}
    assert flag.read_keys(f"@{tmp_path / 'kv.toml'}") == {"publisher": "nats"}
    assert flag.read_keys("{'publisher': 'zmq'}") is None
    assert flag.read_keys("[1]") is None
    assert flag.read_keys(f"@{tmp_path / 'absent.json'}") is None


def test_publisher_comes_from_the_flag_then_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The name is compared without case and blanks."""
    monkeypatch.delenv("KVEVENTS_PUBLISHER", raising=False)
    assert flag.publisher_name({}) is None
    assert flag.publisher_name({"publisher": " Kafka"}) == "kafka"
    monkeypatch.setenv("KVEVENTS_PUBLISHER", "nats")
    assert flag.publisher_name({}) == "nats"
    assert flag.publisher_name({"publisher": "zmq"}) == "zmq"


def test_whose_publisher_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Null and unknown names are ours; zmq on request; what another plugin registered is its own."""
    monkeypatch.delenv("KVEVENTS_REPLACE_ZMQ", raising=False)
    names = {"null", "zmq", "others"}
    assert flag.is_ours(None, names)
    assert flag.is_ours("null", names)
    assert flag.is_ours("kafka", names)
    assert flag.is_ours("kafak", names)
    assert not flag.is_ours("zmq", names)
    assert not flag.is_ours("others", names)
    monkeypatch.setenv("KVEVENTS_REPLACE_ZMQ", "1")
    assert flag.is_ours("zmq", names)
    assert not flag.is_ours("others", names)


def test_operator_wins_over_the_engines_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """The served model names the stream unless the flag or the environment does."""
    monkeypatch.delenv("KVEVENTS_MODEL", raising=False)
    text = '{"publisher": "memory"}'
    by_engine = KVEventsConfig.from_cli(text, environ=flag.environment("sglang", model="tiny"))
    assert (by_engine.model, by_engine.engine) == ("tiny", "sglang")
    monkeypatch.setenv("KVEVENTS_MODEL", "mine")
    by_operator = KVEventsConfig.from_cli(text, environ=flag.environment("sglang", model="tiny"))
    assert by_operator.model == "mine"


@pytest.mark.parametrize(
    ("keys", "key", "variable"),
    [
        (
            {"publisher": "kafka", "sasl_plain_password": "hunter2"},
            "sasl_plain_password",
            "KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD",
        ),
        ({"publisher": "nats", "token": "hunter2"}, "token", "KVEVENTS_NATS_TOKEN"),
        (
            {"publisher": "nats", "servers": ["nats://u:hunter2@h:4222"]},
            "servers",
            "KVEVENTS_NATS_SERVERS",
        ),
        (
            {"publisher": "zmq", "curve_secret_key": "hunter2"},
            "curve_secret_key",
            "KVEVENTS_ZMQ_CURVE_SECRET_KEY",
        ),
    ],
)
def test_secret_in_the_flag_is_refused(keys: dict[str, Any], key: str, variable: str) -> None:
    """The error names the key, the variable to use, and never the secret."""
    with pytest.raises(ConfigError) as caught:
        flag.refuse_secrets(keys, SHOWN)
    assert caught.value.key == key
    assert variable in str(caught.value)
    assert variable.lower() in str(caught.value)
    assert SHOWN in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_flag_without_secrets_passes() -> None:
    """Plain keys, unknown publishers and an unset secret are none of its business."""
    flag.refuse_secrets({"publisher": "kafka", "bootstrap_servers": ["b:9092"]}, SHOWN)
    flag.refuse_secrets({"publisher": "kafka", "sasl_plain_password": None}, SHOWN)
    flag.refuse_secrets({"publisher": "kafak"}, SHOWN)
    flag.refuse_secrets({}, SHOWN)


def test_engine_on_several_nodes_without_a_name_is_warned(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each node would publish under its own host's name; a name given ends the warning."""
    monkeypatch.delenv("KVEVENTS_INSTANCE", raising=False)
    logger = logging.getLogger("test")
    flag.warn_if_unnamed(config_of('{"publisher": "memory"}'), logger)
    assert "KVEVENTS_INSTANCE" in caplog.text
    caplog.clear()
    flag.warn_if_unnamed(config_of('{"publisher": "memory", "instance": "a"}'), logger)
    flag.warn_if_unnamed(config_of("{}"), logger)
    assert caplog.text == ""


def config_of(text: str) -> KVEventsConfig:
    """Return the configuration of a flag."""
    return KVEventsConfig.from_cli(text)


@pytest.mark.parametrize(
    ("endpoint", "dialled"),
    [
        ("tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", "tcp://[::1]:5557"),
        ("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5557"),
        ("ipc:///run/kv", "ipc:///run/kv"),
        ("inproc://kv", None),
        (None, None),
    ],
)
def test_local_endpoint_can_be_dialled(endpoint: str | None, dialled: str | None) -> None:
    """A wildcard becomes loopback; what another process cannot reach is left out."""
    assert zmq_document.local(endpoint) == dialled


def test_only_a_bound_zmq_socket_is_told(tmp_path: Path) -> None:
    """Other transports, dialling publishers and silent ranks are left out of the documents."""
    bound = KVEventsConfig.from_cli(f'{{"publisher": "zmq", "endpoint": "ipc://{tmp_path}/e"}}')
    dialling = KVEventsConfig.from_cli('{"publisher": "zmq", "endpoint": "tcp://10.0.0.1:5557"}')
    memory = KVEventsConfig.from_cli('{"publisher": "memory"}')
    told = zmq_document.configured_socket(bound)
    assert told is not None
    assert told["endpoint"] == f"ipc://{tmp_path}/e"
    assert zmq_document.configured_socket(dialling) is None
    assert zmq_document.configured_socket(memory) is None
    assert zmq_document.bound_socket(NullEventPublisher()) is None
    publisher = EventPublisherFactory.create(bound, 1)
    try:
        source = sglang_publisher.local_source(publisher, 16)
        assert source == {
            "dp_rank": 1,
            "endpoint": f"ipc://{tmp_path}/e_dp1",
            "topic": "",
            "block_size": 16,
        }
        assert "publishes stream" in flag.describe(publisher)
    finally:
        publisher.shutdown()
    assert flag.describe(NullEventPublisher()) == "this process publishes no events"


def test_file_after_the_flag_becomes_json(tmp_path: Path) -> None:
    """Both spellings are expanded, nothing else is touched, and a bad file is a usage error."""

    class Parser:
        def error(self, message: str) -> None:
            raise SystemExit(message)

    (tmp_path / "kv.json").write_text('{"publisher": "nats"}')
    file = f"@{tmp_path / 'kv.json'}"
    name = "--kv-events-config"
    expanded = vllm.expand_files(Parser(), [name, file, f"{name}={file}", "--other", file])
    assert expanded == [
        name,
        '{"publisher": "nats"}',
        f'{name}={{"publisher": "nats"}}',
        "--other",
        file,
    ]
    with pytest.raises(SystemExit, match=r"absent\.json, which cannot be read"):
        vllm.expand_files(Parser(), [name, "@absent.json"])


@pytest.mark.parametrize(
    ("engine", "version", "tested"),
    [
        ("sglang", "0.5.23", True),
        ("sglang", "0.5.23.post1", True),
        ("sglang", "0.6.0", False),
        ("vllm", "0.32.0", True),
        ("vllm", "0.33.0+cpu", True),
        ("vllm", None, False),
    ],
)
def test_known_versions(engine: str, version: str | None, tested: bool) -> None:
    """Local and post releases count as the release they belong to."""
    assert versions.is_tested(engine, version) is tested


def test_unknown_version_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning names the version and those that were tested."""
    monkeypatch.setattr(versions, "_warned", set())
    monkeypatch.setattr(versions, "installed", lambda _engine: "9.9.9")
    for _ in range(2):
        versions.warn_if_untested("sglang", logging.getLogger("test"))
    (record,) = caplog.records
    assert "9.9.9" in record.getMessage()
    assert "0.5.23" in record.getMessage()
