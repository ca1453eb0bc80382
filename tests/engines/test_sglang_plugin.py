"""Our plugin inside SGLang's own processes: what it changes, what it leaves alone, how it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.environments import BROKEN_KVEVENTS, EngineEnvironment

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

OURS = "kvevents_core.engines.sglang_publisher.KVEventsPublisher"
STOCK = "sglang.srt.disaggregation.kv_events."


@pytest.fixture(scope="module")
def facts(
    sglang_python: Path, installed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What ``drivers/sglang_plugin.py`` says, gathered in one process."""
    environment = EngineEnvironment(sglang_python, installed, tmp_path_factory.mktemp("plugin"))
    process = environment.start(str(environment.drivers / "sglang_plugin.py"))
    gathered: dict[str, Any] = {}
    try:
        while len(gathered) < 6:
            gathered |= process.hear(120)
        yield gathered
    finally:
        environment.end()


def test_loading_is_cheap(facts: dict[str, Any]) -> None:
    """Loading imports neither pydantic-settings nor a client nor our settings."""
    modules = {name for name in facts["loading"]["modules"] if name.startswith("kvevents")}
    assert "kvevents_core.engines.sglang" in modules
    for name in ("settings", "publisher", "backend", "wire", "plugins"):
        assert f"kvevents_core.{name}" not in modules
    assert not {name for name in modules if not name.startswith("kvevents_core")}
    assert "pydantic_settings" not in facts["loading"]["modules"]


def test_registering_twice_hooks_once_and_says_so_once(facts: dict[str, Any]) -> None:
    """The second call of register() changes nothing and is quiet."""
    assert set(facts["loading"]["hooks"].values()) == {1}
    assert facts["loading"]["patched"] == sorted(facts["loading"]["hooks"])
    assert len(facts["loading"]["log"]) == 1
    assert facts["loading"]["log"][0].startswith("INFO kvevents: plugged into SGLang 0.5.23")


@pytest.mark.parametrize("text", ["{}", '{"publisher":"null"}', '{"endpoint":"tcp://*:5999"}'])
def test_no_publisher_is_a_quiet_no_op(facts: dict[str, Any], text: str) -> None:
    """What makes SGLang's own factory raise TypeError publishes nothing."""
    assert facts["creating"][text] == OURS


def test_zmq_stays_the_engines_own_unless_replaced(facts: dict[str, Any]) -> None:
    """KVEVENTS_REPLACE_ZMQ decides whose ``zmq`` it is."""
    assert facts["creating"]["zmq"] == STOCK + "ZmqEventPublisher"
    assert facts["creating"]["replaced"] == OURS
    assert facts["creating"]["replaced endpoint"] == "inproc://ours_dp1"


def test_every_key_reaches_the_backend(facts: dict[str, Any]) -> None:
    """SGLang would drop ``servers`` and ``mode``; the publisher is made of them."""
    assert facts["creating"]["nats"]["kind"] == OURS
    assert facts["creating"]["nats"]["stream"].endswith("/3")


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('{"publisher":"kafak"}', "did you mean 'kafka'"),
        ('{"publsher":"kafka"}', "did you mean 'publisher'"),
        (
            '{"publisher":"kafka","boostrap_servers":["b:9092"]}',
            "did you mean 'bootstrap_servers'",
        ),
        ("{'publisher':'kafka'}", "is not JSON"),
        ("@missing.json", "missing.json, which cannot be read"),
    ],
)
def test_wrong_flag_is_one_line(facts: dict[str, Any], text: str, phrase: str) -> None:
    """Each mistake gives our one error, with the name that was meant."""
    told = facts["creating"][text]
    assert told.startswith("ConfigError: ")
    assert phrase in told
    assert "\n" not in told


def test_a_cache_that_is_off_is_warned_of(facts: dict[str, Any]) -> None:
    """With ``--disable-radix-cache`` a stream stays empty: said once, at the start."""
    (line,) = facts["starting"]["cache off"]
    assert "[no_events] prefix caching is off (disable_radix_cache)" in line
    assert facts["starting"]["cache on"] == []
    assert facts["starting"]["cache off, null"] == []


def test_secret_in_the_flag_is_refused(facts: dict[str, Any]) -> None:
    """SGLang shows the flag to others: the error names the variable and not the secret."""
    told = facts["starting"]["secret"]
    assert "KVEVENTS_KAFKA_SASL_PLAIN_PASSWORD" in told
    assert "/server_info" in told
    assert "hunter2" not in told
    assert told.startswith("ConfigError: ")
    told = facts["starting"]["secret address"]
    assert told.startswith("ConfigError: ")
    assert "hunter2" not in told


def test_file_is_read_everywhere(facts: dict[str, Any]) -> None:
    """``@file`` may hold secrets, serves every place that parses the flag, and SGLang's zmq too."""
    starting = facts["starting"]
    assert starting["file"] == "sglang.srt.server_args.ServerArgs"
    assert starting["file dynamo"] is True
    assert starting["file keys"]["publisher"] == "kafka"
    assert "hunter2" not in str(starting["file keys"])
    assert starting["toml"] == OURS
    assert starting["stock file"]["endpoint"] == "tcp://127.0.0.1:7777"


def test_server_info_tells_the_truth_or_nothing(facts: dict[str, Any]) -> None:
    """Only a bound ZMQ socket is described, with the address in force."""
    told = facts["describing"]
    assert told["kafka"] is None
    assert told["dialled zmq"] is None
    assert told["our zmq"] == told["stock zmq"]
    assert told["our zmq"]["endpoint_port_base"] == 6000
    assert told["our zmq"]["replay_endpoint_port_base"] == 6100
    assert told["zmq by environment"]["endpoint_port_base"] == 7000


def test_our_rule_is_sglangs_rule_in_every_layout(facts: dict[str, Any]) -> None:
    """SGLang's own functions give the same publishers and streams, 0..dp-1, once each."""
    assert facts["gates"]["wrong"] == []
    assert facts["gates"]["layouts"] > 50
    assert facts["gates"]["rows"] > 500


def test_drifting_gate_is_reported_once(facts: dict[str, Any]) -> None:
    """If SGLang's gate forgets a dimension, one loud line says which."""
    drift = facts["gates"]["drift"]
    assert drift["agreed"] == [False, False]
    assert len(drift["log"]) == 1
    assert drift["log"][0].startswith("ERROR kvevents: SGLang says that this process publishes")
    assert "pp_rank is 1" in drift["log"][0]


def test_recorder_does_not_pile_up(facts: dict[str, Any]) -> None:
    """A closed gate records nothing; a publisher rank without a publisher drains what it records."""
    assert facts["recording"]["gate records"] is False
    assert facts["recording"]["silent rank holds"] == 0
    assert facts["recording"]["null publisher holds"] == 0


ZMQ_WORKS = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.disaggregation.kv_events import EventPublisherFactory, KVEventsConfig
made = EventPublisherFactory.create('{"publisher":"zmq","endpoint":"inproc://x"}')
print("made", type(made).__name__, "kvevents_core.engines.sglang" in sys.modules)
print("factory", EventPublisherFactory.create.__func__.__module__)
made.shutdown()
"""


def test_without_kvevents_sglang_is_as_before(sglang: EngineEnvironment) -> None:
    """Nothing stays behind when the distribution is gone."""
    process = sglang.run(ZMQ_WORKS, with_kvevents=False)
    assert process.wait() == 0, process.output
    assert "made ZmqEventPublisher False" in process.output


def test_kvevents_that_fails_to_import_leaves_sglang_working(
    sglang: EngineEnvironment, tmp_path: Path
) -> None:
    """SGLang logs the plugin's failure and publishes through its own ZMQ."""
    process = sglang.run(ZMQ_WORKS, PYTHONPATH=str(BROKEN_KVEVENTS.write(tmp_path)))
    assert process.wait() == 0, process.output
    assert "made ZmqEventPublisher" in process.output


def test_sglang_without_the_hook_targets_keeps_its_own_publisher(
    sglang: EngineEnvironment,
) -> None:
    """On a version that lacks what we hook, one line says so and nothing is half hooked."""
    process = sglang.run(
        "import logging; logging.basicConfig(level='INFO')\n"
        "import sglang.srt.runtime_context as context\n"
        "del context.describe_kv_events_publisher\n" + ZMQ_WORKS
    )
    assert process.wait() == 0, process.output
    told = [line for line in process.output.splitlines() if "cannot publish for SGLang" in line]
    assert len(told) == 1, process.output
    assert "made ZmqEventPublisher" in process.output
    assert "factory sglang.srt.disaggregation.kv_events" in process.output


def test_misspelt_publisher_fails_the_start(sglang: EngineEnvironment) -> None:
    """The real launcher ends before it starts anything, with our line as its last."""
    process = sglang.start(
        "-m", "sglang.launch_server", "--model-path", "dummy", "--device", "cpu",
        "--kv-events-config", '{"publisher":"kafak"}',
    )  # fmt: skip
    assert process.wait(120) == 1
    assert "did you mean 'kafka'" in process.output.strip().splitlines()[-1]
