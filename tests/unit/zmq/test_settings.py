"""The ZMQ settings: the engines' defaults, and one error for every rank."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kvevents_core.errors import ConfigError
from kvevents_zmq import ZmqBackend, ZmqSettings
from kvevents_zmq.curve import admitted_keys, publisher_keys, reader_keys

KEY = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
"""Public key of the example in RFC 32 of the ZeroMQ project."""


def test_the_defaults_are_the_engines() -> None:
    """endpoint, hwm and topic as SGLang and vLLM have them; no replay."""
    settings = ZmqSettings()
    assert settings.endpoint == "tcp://*:5557"
    assert (settings.hwm, settings.topic, settings.replay_endpoint) == (100_000, "", None)
    assert settings.publisher_binds


@pytest.mark.parametrize(
    "keys",
    [
        {"endpoint": "tcp://host"},
        {"endpoint": None},
        {"replay_endpoint": "http://x:1"},
        {"topic": 5},
        {"topic": None},
        {"hwm": 0},
        {"hwm": -1},
        {"rcvhwm": 0},
        {"nonsense": 1},
        {"endpoint": "tcp://*:5557", "bind": False},
        {"endpoint": "tcp://host:0"},
        {"replay_endpoint": "tcp://*:5557"},
        {"curve_server_key": "short"},
        {"curve_server_key": KEY, "curve_server_key_file": "f"},
        {"curve_secret_key": "short"},
        {"curve_client_keys_file": "f"},
        {"endpoint": "inproc://x", "curve_secret_key": KEY, "curve_client_keys_file": "f"},
    ],
)
def test_wrong_settings_are_refused(keys: dict[str, object]) -> None:
    """At parse time, before anything is opened."""
    with pytest.raises(ValidationError):
        ZmqSettings(**keys)


def test_the_error_of_an_endpoint_names_the_setting_at_fault() -> None:
    """Not always ``endpoint``."""
    with pytest.raises(ValidationError, match="replay_endpoint 'tcp://host' needs a port"):
        ZmqSettings(replay_endpoint="tcp://host")


def test_check_ranks_covers_both_sockets_and_their_distance() -> None:
    """Too high a port of either, and 5557 beside 5558 from two ranks on."""
    ZmqSettings(replay_endpoint="tcp://*:5558").check_ranks(1)
    for keys in (
        {"endpoint": "tcp://*:65535"},
        {"replay_endpoint": "tcp://*:65535"},
        {"replay_endpoint": "tcp://*:5558"},
    ):
        with pytest.raises(ConfigError):
            ZmqSettings(**keys).check_ranks(2)


def test_a_dialled_event_endpoint_may_have_the_port_of_the_replay_socket() -> None:
    """They are on different machines."""
    ZmqSettings(endpoint="tcp://epp:5557", replay_endpoint="tcp://*:5557").check_ranks(8)


def test_secret_keys_are_not_shown() -> None:
    """Neither in repr nor in the error about one."""
    assert KEY not in repr(ZmqSettings(curve_secret_key=KEY))
    with pytest.raises(ValidationError) as caught:
        ZmqSettings(curve_secret_key=KEY + "x")
    assert KEY not in str(caught.value)


def test_the_backend_states_what_it_can_do() -> None:
    """It replays and excludes; it neither confirms, keeps, nor carries epochs."""
    can = ZmqBackend().capabilities
    assert (can.serves_history, can.replays, can.exclusive) == (True, True, True)
    assert (can.confirms, can.durable, can.carries_epoch) == (False, False, False)


class TestCurveKeys:
    """Which keys each side uses. The pair is the client's of ZeroMQ's RFC 26 tests."""

    PUBLIC = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
    SECRET = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"

    def test_without_keys_there_is_no_curve(self) -> None:
        """Neither side."""
        assert publisher_keys(ZmqSettings()) is None
        assert reader_keys(ZmqSettings()) is None

    def test_the_public_key_follows_from_the_secret_one(self) -> None:
        """And a reader given the publisher's own settings finds it, too."""
        settings = ZmqSettings(curve_secret_key=self.SECRET)
        keys = publisher_keys(settings)
        assert keys is not None
        assert (keys.public, keys.server) == (self.PUBLIC.encode(), None)
        reader = reader_keys(settings)
        assert reader is not None
        assert reader.server == self.PUBLIC.encode()
        assert reader.public != keys.public
        assert self.SECRET not in repr(keys)

    def test_a_reader_needs_no_key_of_its_own(self) -> None:
        """It makes one; each time another."""
        settings = ZmqSettings(curve_server_key=self.PUBLIC)
        one, two = reader_keys(settings), reader_keys(settings)
        assert one is not None
        assert two is not None
        assert one.secret != two.secret

    def test_a_reader_uses_its_own_key_if_it_has_one(self) -> None:
        """For publishers that admit known readers only."""
        settings = ZmqSettings(curve_server_key=KEY, curve_secret_key=self.SECRET)
        keys = reader_keys(settings)
        assert keys is not None
        assert (keys.public, keys.server) == (self.PUBLIC.encode(), KEY.encode())

    def test_missing_and_unfit_keys_are_refused(self) -> None:
        """With the key's name as a fact."""
        with pytest.raises(ConfigError) as missing:
            publisher_keys(ZmqSettings(curve_server_key=KEY))
        assert missing.value.key == "curve_secret_key"
        with pytest.raises(ConfigError) as foreign:
            publisher_keys(ZmqSettings(curve_secret_key=self.SECRET, curve_public_key=KEY))
        assert foreign.value.key == "curve_public_key"
        with pytest.raises(ConfigError):
            reader_keys(ZmqSettings(curve_public_key=KEY))
        with pytest.raises(ConfigError):
            publisher_keys(ZmqSettings(curve_secret_key="~" * 40))

    def test_keys_are_read_from_certificates_and_bare_files(self, tmp_path) -> None:
        """The certificate format is that of ``zmq.auth.create_certificates``."""
        certificate = tmp_path / "publisher.key_secret"
        certificate.write_text(
            "#   generated\nmetadata\ncurve\n"
            f'    public-key = "{self.PUBLIC}"\n    secret-key = "{self.SECRET}"\n'
        )
        bare = tmp_path / "server"
        bare.write_text(self.PUBLIC + "\n")
        keys = publisher_keys(ZmqSettings(curve_secret_key_file=str(certificate)))
        assert keys is not None
        assert keys.secret == self.SECRET.encode()
        reader = reader_keys(ZmqSettings(curve_server_key_file=str(bare)))
        assert reader is not None
        assert reader.server == self.PUBLIC.encode()

    def test_an_unreadable_key_file_is_a_config_error(self, tmp_path) -> None:
        """It names key and path, and never the content."""
        wrong = tmp_path / "wrong"
        wrong.write_text("not a key")
        for path in (tmp_path / "none", wrong, tmp_path):
            with pytest.raises(ConfigError) as caught:
                publisher_keys(ZmqSettings(curve_secret_key_file=str(path)))
            assert caught.value.key == "curve_secret_key_file"
            assert "not a key" not in str(caught.value)

    def test_admitted_keys_are_read_line_by_line(self, tmp_path) -> None:
        """Comments and blank lines aside; a line that is no key is named by its number only."""
        listed = tmp_path / "readers"
        listed.write_text(f"# routers\n{self.PUBLIC}\n\n  {KEY}  \n")
        settings = ZmqSettings(curve_secret_key=self.SECRET, curve_client_keys_file=str(listed))
        assert admitted_keys(settings) == {self.PUBLIC.encode(), KEY.encode()}
        listed.write_text(f"{self.PUBLIC}\n{'~' * 40}\n")
        with pytest.raises(ConfigError, match="entry 2") as caught:
            admitted_keys(settings)
        assert caught.value.key == "curve_client_keys_file"
        assert "~~~" not in str(caught.value)
        assert admitted_keys(ZmqSettings()) is None
