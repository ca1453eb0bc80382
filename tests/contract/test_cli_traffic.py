"""``publish``, ``tail`` and ``check --connect`` against each other over ZMQ, on loopback."""

import json
import signal
import socket
import subprocess
import sys

import pytest

from kvevents_core.cli.app import run
from kvevents_core.cli.demo_plan import free_ports

KVEVENTS = [sys.executable, "-m", "kvevents_core.cli"]


@pytest.fixture
def config():
    """A configuration whose addresses nobody uses."""
    first = free_ports(2)
    return json.dumps(
        {
            "publisher": "zmq",
            "endpoint": f"tcp://127.0.0.1:{first}",
            "bind": True,
            "replay_endpoint": f"tcp://127.0.0.1:{first + 1}",
            "instance": "one",
        }
    )


@pytest.fixture
def publisher(config):
    """A process that publishes until the test ends."""
    with subprocess.Popen(
        [*KVEVENTS, "publish", config, "--rate", "20"], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline().startswith("publishing default/default/one/0 at tcp")
            yield process
        finally:
            process.terminate()


@pytest.fixture
def command(capsys):
    """Runs a command in this process and returns exit code, output lines and errors."""

    def call(*arguments):
        code = run(list(arguments))
        out, err = capsys.readouterr()
        return code, out.splitlines(), err

    return call


def test_tail_prints_one_object_per_item_from_the_beginning(command, config, publisher):
    """A late reader gets history: the opening batch of the stream comes first, then in order."""
    code, lines, _ = command("tail", config, "--count", "5", "--seconds", "20", "--json")
    items = [json.loads(line) for line in lines]
    assert code == 0
    assert [(item["kind"], item["seq"]) for item in items] == [("batch", n) for n in range(5)]
    assert items[0]["events"] == [{"type": "AllBlocksCleared"}]
    assert items[1]["events"][0]["type"] == "BlockStored"


def test_tail_for_people_prints_one_line_per_item(command, config, publisher):
    """Rank, seq and blocks; ``latest`` skips history."""
    code, lines, _ = command("tail", config, "--from", "latest", "--count", "3", "--seconds", "20")
    assert code == 0
    assert len(lines) == 3
    assert all("  rank 0  seq " in line and "replayed" not in line for line in lines)


def test_tail_of_a_stream_that_nobody_publishes_fails_with_advice(command, config):
    """Silence within the time given is a failed check, and what to look at is said."""
    code, lines, err = command("tail", config, "--seconds", "0.3")
    assert (code, lines) == (1, [])
    assert "nothing came within 0.3 s over zmq" in err
    assert "kvevents check --connect" in err


def test_tail_that_gets_fewer_items_than_asked_for_fails(command, config, publisher):
    """The count is a condition, not a wish."""
    code, lines, err = command("tail", config, "--count", "1000000", "--seconds", "1.5")
    assert code == 1
    assert f"only {len(lines)} of 1000000 items" in err


def test_interrupting_a_publisher_shuts_it_down_and_says_what_it_did(config):
    """Ctrl-C is how such a run ends: exit code 0 and a summary of what was published."""
    with subprocess.Popen(
        [*KVEVENTS, "publish", config, "--rate", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.stdout.readline()
            code = run(["tail", config, "--count", "3", "--seconds", "20"])
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert code == 0
    assert (process.returncode, err) == (0, "")
    assert "requests in" in out


def test_publish_counts_what_it_did(command, config):
    """The numbers of cache, metrics and publisher agree: one batch more, the opening one."""
    code, lines, _ = command(
        "publish", config, "--count", "30", "--rate", "0", "--capacity-blocks", "200", "--json"
    )
    facts = json.loads(lines[-1])
    assert code == 0
    assert facts["requests"] == 30
    assert facts["removed_blocks"] > 0
    assert facts["published_events"] == facts["events"] + 1
    assert facts["next_seq"] == facts["published_batches"]
    assert facts["lost"] == {}


def test_publish_replays_a_trace_at_its_own_pace_times_speed(command, config, tmp_path):
    """Lengths and reuse are the trace's; 0.4 s of trace take about 0.1 s at speed 4."""
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 20, "hash_ids": [1, 2]},
        {"timestamp": 400, "input_length": 512, "output_length": 1, "hash_ids": [1]},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, lines, _ = command("publish", config, "--trace", str(trace), "--speed", "4", "--json")
    facts = json.loads(lines[-1])
    assert code == 0
    assert facts["requests"] == 2
    assert facts["stored_blocks"] == (1000 + 20) // 16
    assert facts["hit_rate"] == round(32 / (62 + 32), 4)
    assert facts["seconds"] >= 0.1


def test_a_bad_row_ends_the_run_with_file_and_line(command, config, tmp_path):
    """What came before it was published; the message says where to look."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}\n{')
    code, _, err = command("publish", config, "--trace", str(trace))
    assert code == 2
    assert f"{trace}, line 2: not JSON" in err


def test_a_second_publisher_of_the_stream_fails_and_says_what_to_check(command, config, publisher):
    """Exit code 1: the configuration is right, the address is taken."""
    code, _, err = command("publish", config, "--count", "1")
    assert code == 1
    assert "is taken already" in err


def test_check_connect_tells_a_free_address_from_a_running_publisher(command, config):
    """Nobody there: it can be bound. A publisher there: its epoch and next seq."""
    code, lines, _ = command("check", config, "--connect")
    assert code == 0
    assert lines[-1].endswith("is free to bind")


def test_check_connect_asks_a_running_publisher_where_it_stands(command, config, publisher):
    """An address in use by the very stream is what an operator hopes for."""
    code, lines, _ = command("check", config, "--connect", "--json")
    reached = json.loads(lines[-1])["reached"]
    assert code == 0
    assert "a publisher of default/default/one/0 runs at" in reached["detail"]
    assert "epoch" in reached["detail"]


def test_check_connect_names_an_address_that_somebody_else_holds(command, config):
    """Another program on the port is a failure in one line."""
    endpoint = json.loads(config)["endpoint"]
    with socket.create_server(("127.0.0.1", int(endpoint.rpartition(":")[2]))):
        code, lines, _ = command("check", config, "--connect", "--timeout", "0.5")
    assert code == 1
    assert lines[-1].startswith("FAILED")
    assert "is taken already" in lines[-1]


def test_check_connect_where_nobody_answers_fails_within_its_time(command, config):
    """Connect mode without a reader: the cause in one line."""
    dialled = json.dumps({**json.loads(config), "bind": False, "replay_endpoint": None})
    code, lines, _ = command("check", dialled, "--connect", "--timeout", "0.5")
    assert code == 1
    assert "cannot be reached" in lines[-1]
