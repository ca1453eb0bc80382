"""The configuration as engines and operators give it: what is in force, what is quiet, what warns."""

import logging
import pickle
import subprocess
import sys
import traceback

import pytest

from kvevents_core import config_assembly
from kvevents_core.errors import BackendError, ConfigError
from kvevents_core.settings import KVEventsConfig

HERE = {"HOSTNAME": "host-1"}

ENGINE_DEFAULTS = (
    '"endpoint":"tcp://*:5557","bind":null,"replay_endpoint":null,"buffer_steps":10000,'
    '"hwm":100000,"max_queue_size":100000,"topic":"","format":"default"'
)


@pytest.fixture(autouse=True)
def forget_warnings(monkeypatch):
    """Each test sees warnings as a new process would."""
    monkeypatch.setattr(config_assembly, "_logged", set())


def read(text: str | None, **environ: str) -> KVEventsConfig:
    """Return the configuration of ``text`` in a nearly empty environment."""
    return KVEventsConfig.from_cli(text, environ={**HERE, **environ})


def refusal(text: str | None, **environ: str) -> ConfigError:
    """Return the error of ``text``; it must carry no other exception, which could hold values."""
    with pytest.raises(ConfigError) as caught:
        read(text, **environ)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "  ",
        "{}",
        '{"publisher":"null"}',
        '{"publisher":" NULL "}',
        '{"publisher":null}',
        '{"publisher":""}',
        '{"endpoint":"tcp://*:5999","topic":"kv"}',
        '{"enable_kv_cache_events":false}',
        "{" + ENGINE_DEFAULTS + "}",
    ],
)
def test_no_publisher_is_a_quiet_no_op(text, caplog):
    """Nothing is enabled, nothing is said and nothing is loaded."""
    config = read(text)
    assert (config.publisher, config.enabled) == ("null", False)
    assert config.backend is None
    assert config.backend_settings is None
    assert config.warnings == ()
    assert not caplog.records


def test_enabled_without_a_publisher_means_the_engines_own_transport():
    """The rule of vLLM: events enabled and publisher missing is zmq, never enabled and silent."""
    config = read('{"enable_kv_cache_events":true}')
    assert (config.publisher, config.enabled) == ("zmq", True)


def test_a_publisher_alone_is_enabled():
    """SGLang's rule: naming a publisher enables it."""
    assert read('{"publisher":"memory"}').enabled


def test_a_publisher_that_is_switched_off_says_which_key_to_set(caplog):
    """Never silent: the warning names the key."""
    config = read('{"publisher":"zmq","enable_kv_cache_events":false}')
    assert not config.enabled
    assert config.publisher == "zmq"
    assert '"enable_kv_cache_events": true' in config.warnings[0]
    assert config.warnings[0] in caplog.text


def test_enabled_with_an_explicit_null_publisher_warns():
    """Enabled and silent is never left unsaid."""
    config = read('{"publisher":"null","enable_kv_cache_events":true}')
    assert not config.enabled
    assert "nothing is published" in config.warnings[0]


@pytest.mark.parametrize("name", ["MEMORY", "memory ", " Memory"])
def test_the_publisher_is_normalised_wherever_it_comes_from(name, tmp_path):
    """The same from command line, environment and secret file."""
    (tmp_path / "kvevents_publisher").write_text(name)
    assert read(f'{{"publisher":"{name}"}}').publisher == "memory"
    assert read("{}", KVEVENTS_PUBLISHER=name).publisher == "memory"
    assert read("{}", KVEVENTS_SECRETS_DIR=str(tmp_path)).publisher == "memory"


def test_explicit_beats_environment_beats_secrets_beats_default(tmp_path):
    """For every layer the next lower one shows when it is taken away, with its origin."""
    (tmp_path / "kvevents_tenant").write_text("from-secret\n")
    secrets = {"KVEVENTS_SECRETS_DIR": str(tmp_path)}
    environment = {"KVEVENTS_TENANT": "from-environment", **secrets}
    seen = [
        read('{"tenant":"from-json"}', **environment),
        read("{}", **environment),
        read("{}", **secrets),
        read("{}"),
    ]
    assert [each.tenant for each in seen] == [
        "from-json",
        "from-environment",
        "from-secret",
        "default",
    ]
    assert [each.origin_of("tenant") for each in seen] == [
        "--kv-events-config",
        "environment variable KVEVENTS_TENANT",
        f"secret file {tmp_path / 'kvevents_tenant'}",
        None,
    ]


def test_the_variable_of_the_backend_beats_the_general_one(packages):
    """KVEVENTS_<BACKEND>_<KEY> is for one backend alone, KVEVENTS_<KEY> for whichever runs."""
    packages.add_backend("post")
    both = {"KVEVENTS_ADDRESS": "general", "KVEVENTS_POST_ADDRESS": "own"}
    assert read('{"publisher":"post"}', **both).backend_settings.address == "own"
    assert read('{"publisher":"post"}', KVEVENTS_ADDRESS="x").backend_settings.address == "x"
    given = read('{"publisher":"post","address":"json"}', **both)
    assert given.backend_settings.address == "json"


def test_the_backends_settings_ignore_variables_that_merely_share_a_name(packages, monkeypatch):
    """A field called ``user`` or ``address`` is not the variable USER or ADDRESS."""
    packages.add_backend("post")
    monkeypatch.setenv("ADDRESS", "somebody else's")
    assert read('{"publisher":"post"}').backend_settings.address == "nowhere"


def test_what_an_engine_passes_along_counts_as_not_given():
    """An engine always sends its own defaults; the environment still applies, other values do not."""
    text = '{"publisher":"zmq",' + ENGINE_DEFAULTS + "}"
    config = read(text, KVEVENTS_TOPIC="kv", KVEVENTS_BUFFER_STEPS="7")
    assert config.backend_settings.topic == "kv"
    assert config.backend_settings.endpoint == "tcp://*:5557"
    assert config.buffer_steps == 7
    assert config.warnings == ()


def test_the_engines_zmq_defaults_are_harmless_with_any_backend():
    """Given with another transport they are ignored without a word."""
    config = read('{"publisher":"memory",' + ENGINE_DEFAULTS + "}")
    assert config.enabled
    assert config.warnings == ()


def test_a_default_of_the_engine_never_becomes_a_value_of_another_backend(packages):
    """A backend with a key ``endpoint`` of its own keeps its own default."""
    source = """
    class Ported(Settings):
        endpoint: str = "ported://home"
    Fake.settings_model = Ported
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("ported", source=source)
    text = '{"publisher":"ported",' + ENGINE_DEFAULTS + "}"
    assert read(text).backend_settings.endpoint == "ported://home"
    text = '{"publisher":"ported","endpoint":"ported://away"}'
    assert read(text).backend_settings.endpoint == "ported://away"


@pytest.mark.parametrize(
    "key",
    [
        '"endpoint":"tcp://*:6000"',
        '"topic":"kv"',
        '"hwm":5',
        '"bind":true',
        '"subject":"a.{rank}"',
    ],
)
def test_a_key_of_another_transport_is_a_warning(key):
    """Not silently ignored, and no reason to keep an engine from starting."""
    (warning,) = read('{"publisher":"memory",' + key + "}").warnings
    assert key.split('"')[1] in warning
    assert "publisher 'memory' ignores it" in warning


@pytest.mark.parametrize(
    ("text", "key", "suggestion"),
    [
        ('{"publisher":"zmq","endpont":"tcp://*:1"}', "endpont", "endpoint"),
        ('{"publisher":"zmq","Topic":"kv"}', "Topic", "topic"),
        ('{"publisher":"zmq","max-queue-size":5}', "max-queue-size", "max_queue_size"),
        ('{"publsher":"zmq"}', "publsher", "publisher"),
        ('{"publisher":"zmq","zmq.topic":"kv"}', "zmq.topic", "topic"),
        ('{"publisher":"null","tenat":"x"}', "tenat", "tenant"),
        ('{"publisher":"zmq","colour":"red"}', "colour", None),
        ('{"publisher":"zmk"}', "publisher", "zmq"),
        ('{"publisher":"nul"}', "publisher", "null"),
        ('{"publisher":"rabbit"}', "publisher", None),
    ],
)
def test_an_unknown_name_is_one_error_with_the_nearest_known(text, key, suggestion):
    """Key, origin and suggestion are facts of the error and stand in its text."""
    error = refusal(text)
    assert (error.key, error.origin, error.suggestion) == (key, "--kv-events-config", suggestion)
    assert (suggestion or "known") in str(error)


def test_several_unknown_keys_are_one_error():
    """All are named at once; the first is the key."""
    error = refusal('{"publisher":"zmq","tpoic":1,"hwn":2}')
    assert error.key == "tpoic"
    assert "'hwn'" in str(error)


def test_an_unknown_publisher_lists_what_there_is():
    """The installed backends and null."""
    for name in ("zmq", "nats", "kafka", "memory", "null"):
        assert name in str(refusal('{"publisher":"rabbit"}'))


def test_a_broken_backend_is_the_plugins_error(packages):
    """What is wrong with a package is not blamed on the configuration."""
    packages.add("kvevents-bad", {"bad": "fake_bad"}, module="fake_bad", source="1/0")
    with pytest.raises(BackendError, match="ZeroDivisionError") as caught:
        read('{"publisher":"bad"}')
    assert caught.value.distribution == "kvevents-bad"


def test_a_broken_package_does_not_change_what_others_are_told(packages):
    """Looking for the owner of an unknown key passes by packages that cannot be loaded."""
    packages.add("kvevents-bad", {"bad": "fake_bad"}, module="fake_bad", source="exit()")
    assert refusal('{"publisher":"memory","endpont":1}').suggestion == "endpoint"


def test_choosing_a_backend_imports_no_other(packages):
    """The chosen package alone is imported while every name is known."""
    packages.add_backend("one")
    packages.add_backend("two")
    assert read('{"publisher":"one"}').enabled
    assert packages.imported() == {"fake_one"}


def test_a_backend_may_not_reuse_a_core_key(packages):
    """Which of the two a value was for could not be told."""
    source = """
    class Greedy(Settings):
        tenant: str = ""
    Fake.settings_model = Greedy
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("greedy", source=source)
    with pytest.raises(BackendError, match="settings tenant have names of core's own keys"):
        read('{"publisher":"greedy"}')


def test_a_settings_model_that_crashes_is_the_backends_fault(packages):
    """An exception that is no finding about a value."""
    source = """
    class Crashing(Settings):
        def model_post_init(self, context):
            raise RuntimeError
    Fake.settings_model = Crashing
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("crashing", source=source)
    with pytest.raises(BackendError, match="fault of the backend"):
        read('{"publisher":"crashing"}')


def test_a_required_key_of_the_backend_is_asked_for(packages):
    """The message says how to give it."""
    source = """
    class Needy(Settings):
        servers: str
    Fake.settings_model = Needy
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("needy", source=source)
    error = refusal('{"publisher":"needy"}')
    assert error.key == "servers"
    assert "environment variable KVEVENTS_NEEDY_SERVERS" in str(error)


def test_an_error_of_the_models_own_keeps_its_facts_and_gains_the_origin(packages):
    """A backend may raise ConfigError in its validators, and may have a bad default."""
    source = """
    from kvevents_core.errors import ConfigError
    from pydantic import Field, field_validator
    class Choosy(Settings):
        depth: int = Field(default=0, gt=0)
        @field_validator("address")
        @classmethod
        def known(cls, value):
            if value != "nowhere":
                raise ConfigError(f"no such place: {value}", key="address", suggestion="nowhere")
            return value
    Fake.settings_model = Choosy
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("choosy", source=source)
    error = refusal('{"publisher":"choosy","address":"somewhere","depth":1}')
    assert (error.key, error.suggestion) == ("address", "nowhere")
    assert str(error) == "no such place: somewhere (from --kv-events-config)"
    assert "the default of depth does not fit" in str(refusal('{"publisher":"choosy"}'))


def test_a_model_may_take_another_kind_on_purpose(packages):
    """What its own validators convert is not taken for a slip of the operator."""
    source = """
    from pydantic import field_validator
    class Patient(Settings):
        wait_s: float = 1.0
        acks: str = "all"
        @field_validator("wait_s", "acks", mode="before")
        @classmethod
        def convert(cls, value):
            return float(value[:-1]) if value == "5s" else "one" if value == 1 else value
    Fake.settings_model = Patient
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("patient", source=source)
    config = read('{"publisher":"patient","wait_s":"5s","acks":1}')
    assert (config.backend_settings.wait_s, config.backend_settings.acks) == (5.0, "one")


@pytest.mark.parametrize("more", ['"dp_size":4', '"ranks":[0,3]'])
def test_an_address_that_some_rank_cannot_have_is_refused(more):
    """As far as the number of ranks is known here; the gate knows the layout."""
    error = refusal('{"publisher":"zmq","endpoint":"tcp://*:65533",' + more + "}")
    assert (error.key, error.origin) == ("endpoint", "--kv-events-config")
    assert "65535" in str(error)
    assert read('{"publisher":"zmq","endpoint":"tcp://*:65533","dp_size":3}').enabled


@pytest.mark.parametrize(
    ("environ", "instance"),
    [
        ({"POD_NAME": "pod-7", "HOSTNAME": "h"}, "pod-7"),
        ({"HOSTNAME": "h"}, "h"),
        ({"POD_NAME": " ", "HOSTNAME": "h"}, "h"),
        ({"KVEVENTS_INSTANCE": "named", "POD_NAME": "pod-7"}, "named"),
    ],
)
def test_the_instance_is_the_pod_or_the_host_unless_named(environ, instance):
    """An empty name counts as not given."""
    config = KVEventsConfig.from_cli('{"instance":""}', environ=environ)
    assert config.instance == instance
    assert (config.origin_of("instance") is None) == (instance != "named")


def test_without_any_variable_the_instance_is_the_host_name(monkeypatch):
    """Never a pid, which differs by rank and by restart."""
    monkeypatch.setattr("socket.gethostname", lambda: "machine")
    assert KVEventsConfig.from_cli("{}", environ={}).instance == "machine"


def test_every_rank_reads_the_same():
    """Two readings are equal, and so are their errors."""
    text = '{"publisher":"zmq","topic":"kv"}'
    assert read(text) == read(text)
    assert hash(read(text)) == hash(read(text))
    assert read(text) != read('{"publisher":"zmq"}')
    assert read(text) != text
    assert str(refusal('{"hwn":1}')) == str(refusal('{"hwn":1}'))


def test_the_configuration_is_frozen():
    """It is one object for the life of the engine."""
    with pytest.raises(ValueError, match="frozen"):
        read("{}").tenant = "other"


def test_the_configuration_survives_pickling():
    """Engines hand it to the processes they start."""
    config = read('{"publisher":"zmq","topic":"kv"}')
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.enabled


def test_a_warning_is_logged_once_per_process(caplog):
    """Engines read their flag in several places; every reading still has the warning."""
    text = '{"publisher":"memory","topic":"kv"}'
    with caplog.at_level(logging.WARNING):
        first, second = read(text), read(text)
    assert first.warnings == second.warnings != ()
    assert len(caplog.records) == 1


SECRET = "hunter2-of-the-broker"


@pytest.fixture
def postal(packages):
    """A backend that insists on a long password and complains about it carelessly."""
    source = """
    from pydantic import field_validator, model_validator
    class Postal(Settings):
        token: str = ""
        @field_validator("password")
        @classmethod
        def careless(cls, value):
            if value is not None and len(value.get_secret_value()) < 30:
                raise ValueError(f"{value.get_secret_value()!r} is too short")
            return value
        @model_validator(mode="after")
        def together(self):
            if self.token and self.address == "nowhere":
                raise ValueError(f"no address for {self.token}")
            return self
    Fake.settings_model = Postal
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("postal", source=source)


@pytest.mark.parametrize(
    ("text", "environ"),
    [
        (f'{{"publisher":"postal","password":"{SECRET}"}}', {}),
        (f'{{"publisher":"postal","password":["{SECRET}"]}}', {}),
        (f'{{"publisher":"postal","pasword":"{SECRET}"}}', {}),
        (f'{{"publisher":"postal","token":"{SECRET}"}}', {}),
        (f'{{"publisher":"postal","token":["{SECRET}"]}}', {}),
        (f'{{"publisher":"postal","password":"{SECRET}"', {}),
        (f'{{"publisher":"postal","password":"{SECRET}","password":"{SECRET}"}}', {}),
        (f'{{"publisher":"postal","address":["post://me:{SECRET}@host"]}}', {}),
        (f'{{"publisher":"postal","address":{{"inside":"{SECRET}"}}}}', {}),
        ('{"publisher":"postal"}', {"KVEVENTS_POSTAL_PASSWORD": SECRET}),
        ('{"publisher":"postal"}', {"KVEVENTS_POSTAL_PASWORD": SECRET}),
        (f'"{SECRET}"', {}),
        (SECRET, {}),
    ],
)
def test_no_error_shows_a_secret(postal, text, environ):
    """Neither the message nor the traceback nor any fact, whatever is wrong."""
    error = refusal(text, **environ)
    shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown
    assert SECRET not in repr(vars(error))


def test_no_repr_shows_a_secret(packages, caplog):
    """The configuration can be logged and described as it is."""
    packages.add_backend("post")
    text = f'{{"publisher":"post","password":"{SECRET}","topic":"x"}}'
    config = read(text)
    assert config.backend_settings.password.get_secret_value() == SECRET
    for shown in (repr(config), str(config), repr(config.backend_settings), caplog.text):
        assert SECRET not in shown


def test_a_mapping_is_read_like_the_flag():
    """Errors name the origin that the caller gives."""
    config = KVEventsConfig.from_mapping({"publisher": "memory", "ranks": (0, 1)}, environ=HERE)
    assert config.enabled
    assert config.ranks == (0, 1)
    with pytest.raises(ConfigError, match="from the test is not valid") as caught:
        KVEventsConfig.from_mapping({"tenant": 5}, environ=HERE, origin="the test")
    assert caught.value.origin == "the test"


def test_keys_as_arguments_make_the_same_configuration(monkeypatch):
    """There is no way to make a configuration that names a publisher and has no backend."""
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.setenv("HOSTNAME", HERE["HOSTNAME"])
    config = KVEventsConfig(publisher="zmq", topic="kv", buffer_steps=5)
    assert config == read('{"publisher":"zmq","topic":"kv","buffer_steps":5}')
    assert config.enabled
    with pytest.raises(ConfigError, match="the arguments of KVEventsConfig"):
        KVEventsConfig(publisher="zmq", tpoic="kv")


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    """Without ``environ`` the variables of this process apply."""
    monkeypatch.setenv("KVEVENTS_TENANT", "of-this-process")
    assert KVEventsConfig.from_cli("{}").tenant == "of-this-process"
    assert KVEventsConfig.from_mapping({}).tenant == "of-this-process"


def test_a_file_is_read_like_the_flag(tmp_path):
    """The two kinds of file, with the file as origin."""
    (tmp_path / "kv.json").write_text('\ufeff{"publisher":"memory","tenant":"json"}', "utf-8")
    (tmp_path / "kv.toml").write_text('publisher = "memory"\ntenant = "toml"\nranks = [1, 0]\n')
    config = read(f"@{tmp_path / 'kv.json'}")
    assert (config.tenant, config.origin_of("tenant")) == ("json", f"file {tmp_path / 'kv.json'}")
    assert read(f" @{tmp_path / 'kv.toml'} ").ranks == (1, 0)


def test_importing_the_package_costs_no_pydantic():
    """Engines import kvevents in every process, also where it is not wanted."""
    program = (
        "import sys, kvevents_core, kvevents_core.ranks\n"
        "heavy = {'pydantic', 'pydantic_settings', 'pluggy', 'zmq', 'nats', 'kafka'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "import kvevents_core.settings\n"
        "clients = {'zmq', 'nats', 'kafka', 'kvevents_zmq', 'kvevents_nats', 'kvevents_kafka'}\n"
        "assert not clients & set(sys.modules), clients & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


def test_choosing_zmq_imports_no_client_library():
    """The client is imported by the process that opens a socket, not by one that reads its flag."""
    program = (
        "import sys\n"
        "from kvevents_core import KVEventsConfig\n"
        'assert KVEventsConfig.from_cli(\'{"publisher":"zmq"}\', environ={}).enabled\n'
        "clients = {'zmq', 'nats', 'kafka', 'kvevents_nats', 'kvevents_kafka'}\n"
        "assert not clients & set(sys.modules), clients & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
