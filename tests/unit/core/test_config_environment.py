"""Variables and secret files: which are ours, which are misspelt, which are left alone."""

import pytest

from kvevents_core.config_environment import variable
from kvevents_core.errors import ConfigError
from kvevents_core.settings import KVEventsConfig


def read(text: str, **environ: str) -> KVEventsConfig:
    """Return the configuration of ``text`` in the given environment."""
    return KVEventsConfig.from_cli(text, environ=environ)


@pytest.mark.parametrize(
    ("text", "name", "suggestion"),
    [
        ("{}", "KVEVENTS_PUBLSHER", "KVEVENTS_PUBLISHER"),
        ('{"publisher":"zmq"}', "KVEVENTS_TPOIC", "KVEVENTS_TOPIC"),
        ('{"publisher":"zmq"}', "KVEVENTS_HVM", "KVEVENTS_HWM"),
        ('{"publisher":"zmq"}', "KVEVENTS_ZMQ_TOPICS", "KVEVENTS_ZMQ_TOPIC"),
        ('{"publisher":"zmq"}', "KVEVENTS_ZQM_TOPIC", "KVEVENTS_ZMQ_TOPIC"),
        ('{"publisher":"zmq"}', "KVEVENTS_ZMQ_BUFFER_STEPS", "KVEVENTS_BUFFER_STEPS"),
        ("{}", "KVEVENTS_SECRET_DIR", "KVEVENTS_SECRETS_DIR"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_one_meant(text, name, suggestion):
    """What was meant would silently not be in force."""
    with pytest.raises(ConfigError) as caught:
        read(text, **{name: "x"})
    assert caught.value.origin == f"environment variable {name}"
    assert caught.value.suggestion == suggestion
    assert suggestion in str(caught.value)


@pytest.mark.parametrize(
    "name", ["KVEVENTS_DASHBOARD_COLOUR", "KVEVENTS_SUBJECT", "KVEVENTS_ZMQ_X"]
)
def test_an_unknown_variable_is_a_warning(name):
    """It may be somebody else's; still it is not passed over in silence."""
    (warning,) = read('{"publisher":"zmq"}', **{name: "x"}).warnings
    assert name in warning


def test_an_unknown_variable_is_quiet_where_nothing_is_published():
    """No publisher: a quiet no-op."""
    assert read("{}", KVEVENTS_DASHBOARD_COLOUR="red").warnings == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVEVENTS_PORT", "tcp://10.0.0.7:5557"),
        ("KVEVENTS_PORT_5557_TCP", "tcp://10.0.0.7:5557"),
        ("KVEVENTS_PORT_5557_TCP_ADDR", "10.0.0.7"),
        ("KVEVENTS_PORT_5557_TCP_PROTO", "tcp"),
        ("KVEVENTS_SERVICE_HOST", "10.0.0.7"),
        ("KVEVENTS_SERVICE_PORT", "5557"),
        ("KVEVENTS_SERVICE_PORT_EVENTS", "5557"),
        ("KVEVENTS_TOPIC_SERVICE_HOST", "10.0.0.7"),
        ("KVEVENTS_TOPIC_PORT", "tcp://10.0.0.7:1"),
        ("KVEVENTS_TEST_KAFKA", "real"),
        ("KVEVENTS_REQUIRE_BROKERS", "1"),
        ("KVEVENTS_REPLACE_ZMQ", "1"),
        ("KVEVENTS_NATS_SERVERS", "nats://h"),
        ("KVEVENTS_KAFKA_ANYTHING", "x"),
        ("OTHER_TOPIC", "x"),
        ("XKVEVENTS_TOPIC", "x"),
    ],
)
def test_names_of_others_are_left_alone(name, value):
    """Kubernetes' service links, test runs, other installed backends: no error, no warning."""
    config = read('{"publisher":"zmq"}', **{name: value})
    assert config.warnings == ()
    assert config.backend_settings.topic == ""


def test_a_service_link_is_not_taken_for_a_backends_port(packages):
    """Kubernetes sets KVEVENTS_POST_PORT for a service ``kvevents-post``; an operator may too."""
    source = """
    class Ported(Settings):
        port: int = 1
    Fake.settings_model = Ported
    @hookimpl
    def kvevents_backend():
        return Fake()
    """
    packages.add_backend("post", source=source)
    text = '{"publisher":"post"}'
    assert read(text, KVEVENTS_POST_PORT="tcp://10.0.0.7:25").backend_settings.port == 1
    assert read(text, KVEVENTS_POST_PORT="25").backend_settings.port == 25


def test_names_are_compared_without_case_and_upper_case_wins():
    """As in pydantic-settings; two spellings of one name do not depend on their order."""
    assert read("{}", kvevents_tenant="low").tenant == "low"
    assert read("{}", kvevents_tenant="low", KVEVENTS_TENANT="up").tenant == "up"
    assert read("{}", KVEVENTS_TENANT="up", kvevents_tenant="low").tenant == "up"


def test_a_backend_with_a_dash_has_variables_with_an_underscore(packages):
    """A dash cannot stand in a variable's name."""
    packages.add("kvevents-sea-mail", {"sea-mail": "fake_sea"})
    assert variable("address", "sea-mail") == "KVEVENTS_SEA_MAIL_ADDRESS"
    assert read('{"publisher":"zmq"}', KVEVENTS_SEA_MAIL_ADDRESS="x").warnings == ()


def test_secret_files_are_named_like_the_variables_in_lower_case(packages, tmp_path):
    """The backend's own name wins; text is stripped; other files are not ours."""
    packages.add_backend("post")
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "kvevents_post_password").write_text("s3cret\n")
    (folder / "kvevents_password").write_text("general")
    (folder / "kvevents_tenant").write_text("\n")
    (folder / "README").write_text("x")
    (folder / "..data").mkdir()
    config = read('{"publisher":"post"}', KVEVENTS_SECRETS_DIR=str(folder))
    assert config.backend_settings.password.get_secret_value() == "s3cret"
    assert config.tenant == "default"
    assert config.warnings == ()


def test_a_misspelt_secret_file_is_refused(tmp_path):
    """With the file's name as it should be."""
    (tmp_path / "kvevents_tenat").write_text("x")
    with pytest.raises(ConfigError) as caught:
        read("{}", KVEVENTS_SECRETS_DIR=str(tmp_path))
    assert caught.value.suggestion == "kvevents_tenant"
    assert caught.value.origin == f"secret file {tmp_path / 'kvevents_tenat'}"


def test_mounted_secrets_are_links(tmp_path):
    """Kubernetes mounts each file as a link into a folder that it swaps."""
    data = tmp_path / "..2026"
    data.mkdir()
    (data / "kvevents_tenant").write_text("linked")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "kvevents_tenant").symlink_to("..data/kvevents_tenant")
    assert read("{}", KVEVENTS_SECRETS_DIR=str(tmp_path)).tenant == "linked"


@pytest.mark.parametrize("kind", ["absent", "file", "folder inside", "not text"])
def test_a_secrets_directory_that_cannot_be_read_is_refused(tmp_path, kind):
    """An operator who names one relies on it."""
    folder = tmp_path / "secrets"
    if kind == "file":
        folder.write_text("x")
    elif kind != "absent":
        folder.mkdir()
    if kind == "folder inside":
        (folder / "kvevents_token").mkdir()
    if kind == "not text":
        (folder / "kvevents_token").write_bytes(b"\xff\xfe\x00secret")
    with pytest.raises(ConfigError) as caught:
        read("{}", KVEVENTS_SECRETS_DIR=str(folder))
    assert caught.value.origin == "environment variable KVEVENTS_SECRETS_DIR"
    assert str(folder) in str(caught.value)
    assert caught.value.__context__ is None
