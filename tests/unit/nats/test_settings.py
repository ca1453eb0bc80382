"""Settings of the nats backend refuse what cannot work, before anything connects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kvevents_core import KVEventsConfig
from kvevents_nats import NatsSettings, settings


def made(**values: Any) -> NatsSettings:
    """Return settings as core makes them, from untyped values."""
    return NatsSettings(**values)


def refusal(**values: Any) -> str:
    """Return the text of the error that `values` are refused with."""
    with pytest.raises(ValidationError) as caught:
        made(**values)
    return str(caught.value)


def test_no_key_at_all_means_jetstream_on_this_host() -> None:
    """No key at all means jetstream on this host."""
    plain = NatsSettings()
    assert (plain.servers, plain.mode) == (("nats://localhost:4222",), "jetstream")
    assert not plain.wants_tls


@pytest.mark.parametrize("value", ["nats://a:1, nats://b:2", ("nats://a:1", "nats://b:2")])
def test_servers_may_be_a_list_or_one_text(value: object) -> None:
    """Servers may be a list or one text."""
    assert made(servers=value).servers == ("nats://a:1", "nats://b:2")


def test_the_environment_fills_servers_and_secrets() -> None:
    """One text is split at commas; a secret needs no place in the flag."""
    environ = {"KVEVENTS_NATS_SERVERS": "nats://a:1,b:2", "KVEVENTS_NATS_TOKEN": "hunter2"}
    config = KVEventsConfig.from_mapping({"publisher": "nats"}, environ=environ)
    given = config.backend_settings
    assert isinstance(given, NatsSettings)
    assert given.servers == ("nats://a:1", "b:2")
    assert given.login() == {"token": "hunter2"}
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("servers", "phrase"),
    [
        ("", "at least one address"),
        ("http://a:1", "must begin with one of"),
        ("nats://a:notaport", "no valid port"),
        ("nats://:4222", "names no host"),
        ("nats://a:1,ws://b:2", "must not mix"),
    ],
)
def test_a_wrong_address_is_named(servers: str, phrase: str) -> None:
    """A wrong address is named."""
    assert phrase in refusal(servers=servers)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    """A password in an address is refused and not repeated."""
    text = refusal(servers="nats://bob:hunter2@a:1")
    assert "KVEVENTS_NATS_PASSWORD" in text
    assert "hunter2" not in text


@pytest.mark.parametrize(
    ("subject", "phrase"),
    [
        ("kv.{tenant}.{model}.{rank}", "must name {instance}"),
        ("kv..{tenant}.{model}.{instance}.{rank}", "dot-separated"),
        ("kv.*.{tenant}.{model}.{instance}.{rank}", "dot-separated"),
        ("kv.{tenant}-{model}.{instance}.{rank}", "fill its token"),
        ("$JS.{tenant}.{model}.{instance}.{rank}", "the server's own"),
        ("kv.{tenant}.{model}.{instance}.{rank}.{pid}", "nothing else in braces"),
    ],
)
def test_a_subject_that_would_mix_streams_is_refused(subject: str, phrase: str) -> None:
    """A subject that would mix streams is refused."""
    assert phrase in refusal(subject=subject)


@pytest.mark.parametrize("stream", ["", "a.b", "a b", "a/b", "{rank}"])
def test_an_impossible_stream_name_is_refused(stream: str) -> None:
    """An impossible stream name is refused."""
    assert "stream" in refusal(stream=stream)


@pytest.mark.parametrize(
    "values",
    [
        {"inbox_prefix": ""},
        {"inbox_prefix": "_INBOX.*"},
        {"inbox_prefix": "_INBOX a"},
        {"inbox_prefix": "_INBOX."},
        {"domain": "a.b"},
        {"domain": "a b"},
        {"domain": "*"},
    ],
)
def test_what_would_break_a_subject_of_the_protocol_is_refused(values: dict[str, str]) -> None:
    """Not only wrong: a line break in a subject would be a command of its own."""
    assert next(iter(values)) in refusal(**values)


@pytest.mark.parametrize("key", ["creds", "nkey", "tls_ca"])
def test_a_missing_file_is_named(key: str, tmp_path: Path) -> None:
    """A missing file is named."""
    path = str(tmp_path / "absent")
    assert path in refusal(**{key: path})


def test_only_one_way_to_log_in_can_be_given() -> None:
    """Only one way to log in can be given."""
    assert "one way to log in" in refusal(user="u", password="p", token="t")
    assert "belong together" in refusal(user="u")
    assert "belong together" in refusal(password="p")


def test_secrets_show_neither_in_repr_nor_in_errors() -> None:
    """Secrets show neither in repr nor in errors."""
    given = made(user="u", password="hunter2")
    assert "hunter2" not in repr(given)
    assert given.login() == {"user": "u", "password": "hunter2"}
    assert "hunter2" not in refusal(user="u", password="hunter2", mode="nonsense")


@pytest.mark.parametrize(
    ("missing", "values", "advice"),
    [
        ("nats", {}, "pip install nats-py (or kvevents[nats])"),
        ("nkeys", {"nkey_seed": "SUAXX"}, "pip install nkeys"),
        ("aiohttp", {"servers": "wss://host:443"}, "pip install aiohttp"),
    ],
)
def test_a_missing_package_is_named_at_configuration_time(
    monkeypatch: pytest.MonkeyPatch, missing: str, values: dict[str, Any], advice: str
) -> None:
    """Not deep inside a connection attempt, minutes later."""
    monkeypatch.setattr(settings, "find_spec", lambda name: None if name == missing else object())
    assert advice in refusal(**values)


def test_tls_material_asks_for_tls(tmp_path: Path) -> None:
    """Tls material asks for tls."""
    ca = tmp_path / "ca.pem"
    ca.write_text("")
    assert made(tls_ca=str(ca)).wants_tls
    assert made(servers="tls://a:1").wants_tls
    assert "belong together" in refusal(tls_cert=str(ca))
