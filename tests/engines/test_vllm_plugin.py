"""Our plugin inside vLLM's own processes: what it changes, what it leaves alone, how it fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engines.build_environment import newer_files
from engines.environments import BROKEN_KVEVENTS, EngineEnvironment

pytestmark = [pytest.mark.engines, pytest.mark.timeout(180)]

OURS = "kvevents_core.engines.vllm_publisher.KVEventsPublisher"
STOCK = "vllm.distributed.kv_events."


@pytest.fixture(scope="module", params=["0.32.0", "0.33.0"])
def facts(
    request: pytest.FixtureRequest,
    vllm_python: Path,
    installed: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Any]]:
    """What ``drivers/vllm_plugin.py`` says, gathered in one process of each release."""
    newer = None if request.param == "0.32.0" else newer_files("vllm")
    folder = tmp_path_factory.mktemp("plugin")
    environment = EngineEnvironment(vllm_python, installed, folder, newer=newer)
    process = environment.start(str(environment.drivers / "vllm_plugin.py"))
    gathered: dict[str, Any] = {"version": request.param}
    try:
        while len(gathered) < 4:
            gathered |= process.hear(120)
        yield gathered
    finally:
        environment.end()


def test_loading_is_cheap(facts: dict[str, Any]) -> None:
    """Loading imports neither a client nor our settings nor vLLM's factory."""
    modules = facts["loading"]["modules"]
    assert "kvevents_core.engines.vllm_config" in modules
    for name in ("settings", "publisher", "backend", "wire", "plugins"):
        assert f"kvevents_core.{name}" not in modules
    assert "vllm.distributed.kv_events" not in modules
    ours = {name for name in modules if name.startswith("kvevents")}
    assert not {name for name in ours if not name.startswith("kvevents_core")}


def test_registering_twice_is_quiet(facts: dict[str, Any]) -> None:
    """One line per process, however often the plugin is called."""
    assert len(facts["loading"]["log"]) == 1
    assert facts["loading"]["log"][0].startswith(
        f"INFO kvevents: plugged into vLLM {facts['version']};"
    )


@pytest.mark.parametrize("way", ["json", "file", "file after ="])
def test_our_keys_survive_parser_and_pickle(facts: dict[str, Any], way: str) -> None:
    """JSON and @file reach EngineCore whole, and the publisher's name switches events on."""
    config = facts["parsing"][way]
    assert config["publisher"] == "nats"
    assert config["enable_kv_cache_events"] is True
    assert config["servers"] == ["nats://127.0.0.1:1"]
    assert config["password"] == "hunter2"


def test_dotted_keys_and_environment_choose_a_publisher(facts: dict[str, Any]) -> None:
    """``--kv-events-config.key value`` and KVEVENTS_PUBLISHER work as everywhere in vLLM."""
    assert facts["parsing"]["dotted"]["servers"] == ["nats://127.0.0.1:2"]
    assert facts["parsing"]["environment"]["publisher"] == "nats"


def test_vllm_neither_prints_nor_serves_our_keys(facts: dict[str, Any]) -> None:
    """They are absent from repr and asdict."""
    assert "hunter2" not in facts["parsing"]["repr"]
    assert "servers" not in facts["parsing"]["asdict"]


def test_stock_configuration_is_unchanged(facts: dict[str, Any]) -> None:
    """VLLM's own publisher sees its own fields and nothing else."""
    assert facts["parsing"]["nothing"] is None
    assert facts["parsing"]["stock"] == facts["parsing"]["asdict"] | {"publisher": "zmq"}


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ('{"publisher":"kafak"}', "did you mean 'kafka'"),
        ('{"publsher":"kafka"}', "did you mean 'publisher'"),
        (
            '{"publisher":"kafka","boostrap_servers":["b:9092"],"sasl_plain_password":"hunter2"}',
            "did you mean 'bootstrap_servers'",
        ),
        ('{"publisher":"zmq","endpont":"tcp://*:1"}', "did you mean 'endpoint'"),
        ('{"publisher":"zmq","curve_secret_key":"x"}', "KVEVENTS_REPLACE_ZMQ=1"),
        ('{"publisher":3}', "publisher '3'"),
        ("@missing.json", "missing.json, which cannot be read"),
    ],
)
def test_wrong_flag_fails_the_parser_in_one_line(
    facts: dict[str, Any], text: str, phrase: str
) -> None:
    """VLLM's parser prints our error as its own last line, without secrets."""
    told = facts["parsing"][text]
    assert told.startswith("SystemExit: vllm: error: argument --kv-events-config: ")
    assert phrase in told
    assert "hunter2" not in told


def test_factory_makes_ours_where_asked(facts: dict[str, Any]) -> None:
    """Null and zmq stay vLLM's; zmq on request and other names are ours."""
    creating = facts["creating"]
    assert creating["none"] == creating["null"] == STOCK + "NullEventPublisher"
    assert creating["zmq"] == STOCK + "ZmqEventPublisher"
    assert creating["zmq, not enabled"] == STOCK + "NullEventPublisher"
    assert creating["replaced"] == creating["nats"]["kind"] == OURS


def test_kv_event_sources_tells_the_truth_or_nothing(facts: dict[str, Any]) -> None:
    """A ZMQ publisher tells its rank's real endpoint in vLLM's own type; others tell nothing."""
    told = facts["creating"]["replaced told"]
    assert told["kind"] == "vllm.config.kv_events.KVEventsConfig"
    assert told["endpoint"] == "inproc://z_dp2"
    assert facts["creating"]["nats"]["told"] is None


ZMQ_WORKS = """
import sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
text = '{"publisher":"zmq","enable_kv_cache_events":true,"endpoint":"inproc://x"}'
config = parser.parse_args(["--kv-events-config", text]).kv_events_config
from vllm.distributed.kv_events import EventPublisherFactory
made = EventPublisherFactory.create(config)
print("made", type(made).__name__, "kvevents_core.engines.vllm" in sys.modules)
made.shutdown()
parser.parse_args(["--kv-events-config", '{"publisher":"kafka"}'])
"""


def test_without_kvevents_vllm_is_as_before(vllm: EngineEnvironment) -> None:
    """Nothing stays behind: its zmq works and another publisher is refused."""
    process = vllm.run(ZMQ_WORKS, with_kvevents=False)
    assert process.wait() == 2, process.output
    assert "made ZmqEventPublisher False" in process.output
    assert "Input should be 'null' or 'zmq'" in process.output


def test_kvevents_that_fails_to_import_leaves_vllm_working(
    vllm: EngineEnvironment, tmp_path: Path
) -> None:
    """VLLM logs the plugin's failure and publishes through its own ZMQ."""
    process = vllm.run(ZMQ_WORKS, PYTHONPATH=str(BROKEN_KVEVENTS.write(tmp_path)))
    assert process.wait() == 2, process.output
    assert "made ZmqEventPublisher" in process.output


def test_type_that_cannot_be_widened_is_put_back(vllm: EngineEnvironment) -> None:
    """Where pydantic does not take the change, one line says so and vLLM is as before."""
    process = vllm.run(
        "import pydantic.dataclasses as dataclasses\n"
        "rebuild = dataclasses.rebuild_dataclass\n"
        "dataclasses.rebuild_dataclass = lambda *a, **k: rebuild(*a, **k) and None\n" + ZMQ_WORKS
    )
    assert process.wait() == 2, process.output
    told = [line for line in process.output.splitlines() if "cannot publish for vLLM" in line]
    assert len(told) == 1, process.output
    assert "made ZmqEventPublisher" in process.output
    assert "Input should be 'null' or 'zmq'" in process.output


def test_plugin_that_vllm_was_told_to_leave_out_changes_nothing(vllm: EngineEnvironment) -> None:
    """VLLM_PLUGINS without us means stock vLLM."""
    process = vllm.run(ZMQ_WORKS, VLLM_PLUGINS="none")
    assert process.wait() == 2, process.output
    assert "made ZmqEventPublisher False" in process.output
