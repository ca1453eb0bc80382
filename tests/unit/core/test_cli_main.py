"""The command line as a whole: exit codes, one line per error, JSON everywhere."""

import json
import subprocess
import sys

import pytest

from kvevents_core.cli.app import run


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs a command in this process, as far from this machine's environment as it can be."""
    for name in ("KVEVENTS_PUBLISHER", "KVEVENTS_SECRETS_DIR", "KVEVENTS_TOPIC"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments):
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(missing):
    """The hint names the extra, and the exit code is that of bad usage."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from kvevents_core.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        f"kvevents: the command line needs {missing}, not installed; run: pip install 'kvevents[cli]'"
    ]


def test_importing_the_command_line_does_not_import_a_client_library():
    """Listing and planning need no transport."""
    program = (
        "import sys, kvevents_core.cli.app\n"
        "bad = {'zmq', 'nats', 'kafka', 'prometheus_client'} & set(sys.modules)\n"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=30, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["ranks", "--tp", "x"], "Invalid value for '--tp'"),
        (["rnks"], "No such command 'rnks'"),
        (["ranks", "--tpx", "1"], "No such option: --tpx"),
        (["ranks", "--tp", "8", "--cp", "3"], "tp_size must be a multiple of 1 x 3 = 3"),
        (["ranks", "--config", "{}", "--endpoint", "tcp://*:1"], "exclude each other"),
        (["ranks", "--dp", "9", "--endpoint", "tcp://*:65530"], "above 65535"),
        (["demo", "--break", "ep"], "known are tp, cp, pp, dp"),
        (["demo", "--layout", "tp=2", "--break", "pp"], "changes no publisher"),
        (["demo", "--publisher", "memory"], "never leaves its process"),
        (["demo", "--publisher", "zmq", "--config", '{"publisher": "nats"}'], "give one of them"),
        (["demo", "--publisher", "zmk"], "did you mean 'zmq'"),
        (["demo", "--config", '{"hwn": 1}'], "did you mean 'hwm'"),
        (["check", "{'publisher': 'zmq'}"], "use double quotes inside"),
        (["check", "@/no/such/file.json"], "cannot be read"),
        (["check", '{"publisher": "zmq", "endpont": "x"}'], "did you mean 'endpoint'"),
        (["tail"], "there is nothing to read"),
        (["publish"], "publishes nothing"),
        (["publish", '{"publisher": "memory"}', "--trace", "/no/such/trace"], "does not exist"),
    ],
)
def test_bad_usage_is_one_line_and_exit_code_2(command, arguments, phrase):
    """Whatever is wrong with the command line or configuration, the message says what to do."""
    code, out, err = command(*arguments)
    assert (code, out) == (2, "")
    assert phrase in err
    assert err.startswith("kvevents: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("arguments", [["ranks", "--tp", "0"], ["check", "nonsense"]])
def test_with_json_an_error_is_an_object_on_standard_output_too(command, arguments):
    """A program that reads JSON finds the reason where it looks."""
    code, out, err = command(*arguments, "--json")
    assert code == 2
    assert err == f"kvevents: {json.loads(out)['error']}\n"


def test_the_version_is_the_distributions(command):
    """``--version`` names program and version."""
    code, out, _ = command("--version")
    assert code == 0
    assert out.startswith("kvevents ")


def test_no_command_at_all_shows_the_help_and_is_bad_usage(command):
    """The commands are listed, and no empty error line follows."""
    code, out, err = command()
    assert code == 2
    assert all(name in out for name in ("demo", "ranks", "check", "backends", "tail", "publish"))
    assert err == ""


def test_a_reader_that_goes_away_is_no_error():
    """``kvevents ranks | head -0`` ends quietly."""
    with subprocess.Popen(
        [sys.executable, "-m", "kvevents_core.cli", "ranks", "--tp", "8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as done:
        done.stdout.close()
        assert done.stderr.read() == b""
        assert done.wait(30) == 0


def test_ranks_lists_every_process_and_names_the_publishers(command):
    """TP8 x CP2 x attention DP2 x PP2: 16 processes, publishers at tp_rank 0 and 4 of stage 0."""
    code, out, _ = command(
        "ranks", "--tp", "8", "--cp", "2", "--attn-dp", "2", "--pp", "2", "--json"
    )
    facts = json.loads(out)
    assert code == 0
    assert len(out.splitlines()) == 1
    assert (facts["processes"], facts["streams"], len(facts["placements"])) == (16, 2, 16)
    publishers = [(p["pp_rank"], p["tp_rank"], p["stream_rank"]) for p in facts["publishers"]]
    assert publishers == [(0, 0, 0), (0, 4, 1)]


def test_ranks_gives_each_stream_its_address(command):
    """Ports are offset by stream rank, for both kinds of data parallelism."""
    code, out, _ = command("ranks", "--dp", "2", "--endpoint", "tcp://*:5557", "--json")
    facts = json.loads(out)
    assert code == 0
    assert [p["address"] for p in facts["publishers"]] == ["tcp://*:5557", "tcp://*:5558"]
    config = '{"publisher": "zmq", "endpoint": "ipc:///run/kv"}'
    _, out, _ = command("ranks", "--tp", "2", "--attn-dp", "2", "--config", config)
    assert "stream 1 is published by tp1 at ipc:///run/kv_dp1" in out


def test_check_shows_every_setting_with_its_origin_and_hides_secrets(command, monkeypatch):
    """Explicit, environment and default are told apart; a password is not shown anywhere."""
    secret = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    monkeypatch.setenv("KVEVENTS_ZMQ_CURVE_SECRET_KEY", secret)
    monkeypatch.setenv("KVEVENTS_HWM", "7")
    code, out, err = command("check", '{"publisher": "zmq", "tenant": "blue"}', "--json")
    facts = json.loads(out)
    settings = {each["key"]: each for each in facts["settings"]}
    assert code == 0
    assert secret not in out + err
    assert settings["tenant"]["origin"] == "--kv-events-config"
    assert settings["hwm"] == {
        "key": "hwm",
        "value": "7",
        "origin": "environment variable KVEVENTS_HWM",
        "owner": "zmq",
    }
    assert settings["heartbeat_s"]["origin"] == "default"
    assert settings["curve_secret_key"]["value"] == "(not shown)"
    code, out, err = command("check", '{"publisher": "zmq", "tenant": "blue"}')
    assert secret not in out + err
    assert "configuration is valid; it publishes over zmq" in out


def test_check_says_what_is_valid_and_yet_hardly_meant(command):
    """A publisher that is switched off is a warning, not an error, and stands in the output."""
    code, out, err = command(
        "check", '{"publisher": "zmq", "enable_kv_cache_events": false}', "--json"
    )
    facts = json.loads(out)
    assert (code, err) == (0, "")
    assert facts["enabled"] is False
    assert "enable_kv_cache_events" in facts["warnings"][0]


def test_check_connect_without_a_publisher_fails(command):
    """There is nothing to reach where nothing is published."""
    code, out, _ = command("check", "{}", "--connect")
    assert code == 1
    assert "nothing to reach" in out


def test_backends_lists_what_is_installed(command):
    """Ours are there with their distribution; the listing imports none of them."""
    code, out, _ = command("backends", "--json")
    found = {each["name"]: each for each in json.loads(out)["backends"]}
    assert code == 0
    assert {"memory", "zmq", "nats", "kafka"} <= set(found)
    assert found["zmq"]["distribution"] == "kvevents"
    assert "capabilities" not in found["zmq"]


def test_backends_check_loads_each_in_a_process_of_its_own(command):
    """Capabilities of those that work; nothing is imported here."""
    before = "kvevents_nats" in sys.modules
    _, out, _ = command("backends", "--check", "--json")
    found = {each["name"]: each for each in json.loads(out)["backends"]}
    assert found["zmq"]["capabilities"]["serves_history"] is True
    assert found["zmq"]["is_broken"] is False
    assert ("kvevents_nats" in sys.modules) == before
