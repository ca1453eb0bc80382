"""Tenants apart on one NATS server: by accounts, and by permissions within one account."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path
from typing import Any

import nkeys
import pytest
import trustme
from broker.cache_and_reader import Cache, Reading, open_publisher
from broker.nats_fixtures import NatsServers
from broker.nats_jwt import Operator
from broker.nats_server import NatsServer
from broker.nats_streams import administer, configure
from waiting import wait_until

from kvevents_core import Batch, subscribe

pytestmark = [pytest.mark.broker("nats"), pytest.mark.timeout(60)]

PAGE = (Path(__file__).parents[2] / "docs/how-to/nats.md").read_text("utf-8")
BLOCKS = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
ACCOUNTS = next(block for block in BLOCKS if block.startswith("accounts")).replace(
    'password: "…"', 'password: "pw"'
)
"""The accounts and permissions of the how-to, so that they are known to work."""
PERMISSIONS = f"""
authorization {{ users: [
  {{ user: "a", password: "pw", {next(b for b in BLOCKS if b.startswith("permissions"))} }}
  {{ user: "admin", password: "pw" }}
] }}
"""


def read_for(config: Any, seconds: float) -> tuple[list[Any], Any]:
    """Return the items and counters of a reader that had ``seconds``."""
    items: list[Any] = []
    with subscribe(config) as subscription:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            items += subscription.receive(0.1)
        return items, subscription.stats()


def test_accounts_have_streams_of_their_own_under_the_same_names(
    nats_servers: NatsServers,
) -> None:
    """One subject, two accounts: neither sees, disturbs or supersedes the other."""
    server = nats_servers(config=ACCOUNTS)
    configs = {user: configure(server.url, "same", user=user, password="pw") for user in "ab"}
    caches = {user: Cache(open_publisher(configs[user])) for user in "ab"}
    caches["a"].run(0.2)
    caches["b"].run(0.4)
    for user in "ab":
        with Reading(configs[user]) as reading:
            reading.wait_level_with(caches[user])
            reading.assert_complete(caches[user])
        assert caches[user].publisher.stats().superseded_by is None
        caches[user].publisher.shutdown()


def permitted(server: NatsServer) -> None:
    """Create the stream as an administrator: the tenants may not."""

    async def create(client: Any) -> None:
        await client.jetstream().add_stream(
            name="kv-events", subjects=["kv-events.*.*.*.*"], allow_direct=True, max_age=3600
        )

    administer(server.url, create, user="admin", password="pw")


def test_a_tenant_with_permissions_for_its_own_subjects_works_fully(
    nats_servers: NatsServers,
) -> None:
    """A tenant with permissions for its own subjects works fully."""
    server = nats_servers(config=PERMISSIONS)
    permitted(server)
    config = configure(server.url, "a", user="a", password="pw", inbox_prefix="_INBOX_a")
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        cache.run(0.3)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


def test_a_tenant_can_neither_publish_nor_read_as_another_and_the_error_names_it(
    nats_servers: NatsServers,
) -> None:
    """A tenant can neither publish nor read as another and the error names it."""
    server = nats_servers(config=PERMISSIONS)
    permitted(server)
    admin = configure(server.url, "b", user="admin", password="pw")
    rightful = Cache(open_publisher(admin))
    rightful.run(0.1)
    rightful.wait_delivered()
    foreign = configure(server.url, "b", user="a", password="pw", inbox_prefix="_INBOX_a")
    cache = Cache(open_publisher(foreign))
    cache.run(0.2)
    wait_until(lambda: cache.publisher.stats().error, what="an error")
    assert "kv-events.b.org_2Fmodel.i0.0" in (cache.publisher.stats().error or "")
    assert "permission" in (cache.publisher.stats().error or "")
    items, stats = read_for(foreign, 1.0)
    assert items == []
    assert "permission" in (stats.last_trouble or "")
    assert "kv-events.b" in (stats.last_trouble or "")
    with Reading(admin) as reading:
        reading.wait_level_with(rightful)
        reading.assert_complete(rightful)
    cache.publisher.shutdown(0.2)
    rightful.publisher.shutdown()


def test_without_the_right_inbox_the_remedy_is_named(nats_servers: NatsServers) -> None:
    """Without the right inbox the remedy is named."""
    server = nats_servers(config=PERMISSIONS)
    permitted(server)
    publisher = open_publisher(configure(server.url, "a", user="a", password="pw"))
    wait_until(lambda: "inbox_prefix" in (publisher.stats().error or ""), what="the advice")
    publisher.shutdown(0.2)


def test_a_record_that_claims_another_tenants_name_is_dropped(nats_url: str, tenant: str) -> None:
    """Headers are anybody's; the server guards subjects only, so the two must agree."""
    config = configure(nats_url, tenant)
    cache = Cache(open_publisher(config))
    cache.step()
    cache.wait_delivered()

    async def forge(client: Any) -> None:
        forged = {"Nats-Msg-Id": f"{tenant}/org_2Fmodel/i0/0:9000000000000000:7"}
        await client.jetstream().publish(
            f"kv-events.{tenant}.org_2Fmodel.i0.3", b"\x93", headers=forged
        )
        await client.jetstream().publish(f"kv-events.{tenant}.org_2Fmodel.i0.3", b"no headers")

    administer(nats_url, forge)
    items, stats = read_for(config, 1.0)
    assert [item.seq for item in items if isinstance(item, Batch)] == [0, 1]
    assert stats.malformed == 2
    cache.publisher.shutdown()


def test_an_nkey_logs_in(nats_servers: NatsServers, tenant: str, tmp_path: Path) -> None:
    """An nkey logs in."""
    import base64
    import os

    pair = nkeys.from_seed(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
    seed = pair.seed.decode()
    server = nats_servers(
        config=f'authorization {{ users: [ {{ nkey: "{pair.public_key.decode()}" }} ] }}'
    )
    assert base64.b32decode(seed + "=" * (-len(seed) % 8))
    file = tmp_path / "seed"
    file.write_text(seed + "\n")
    for given in ({"nkey": str(file)}, {"nkey_seed": seed}):
        config = configure(server.url, tenant, **given)
        cache = Cache(open_publisher(config))
        cache.step()
        cache.wait_delivered()
        assert seed not in str(cache.publisher.describe())
        cache.publisher.shutdown()


class Certificates:
    """A CA with a server's and a client's certificate, as files."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        self.ca = folder / "ca.pem"
        ca.cert_pem.write_to_path(str(self.ca))
        self.other_ca = folder / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(self.other_ca))
        for name, issued in (
            ("server", ca.issue_cert("localhost", "127.0.0.1")),
            ("client", ca.issue_cert("client.example")),
        ):
            issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
            for part in issued.cert_chain_pems:
                part.write_to_path(str(folder / f"{name}.pem"), append=True)
        self.folder = folder

    def config(self, more: str = "") -> str:
        return (
            f'tls {{ cert_file: "{self.folder}/server.pem", key_file: "{self.folder}/server.key", '
            f'ca_file: "{self.ca}"{more} }}'
        )


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Fresh certificates."""
    return Certificates(tmp_path)


@pytest.mark.parametrize("first", [False, True])
def test_tls_with_client_certificates_carries_the_stream(
    nats_servers: NatsServers, tenant: str, certificates: Certificates, first: bool
) -> None:
    """Tls with client certificates carries the stream."""
    handshake = ", handshake_first: true" if first else ""
    server = nats_servers(config=certificates.config(f", verify: true{handshake}"))
    config = configure(
        server.url.replace("nats://", "tls://"),
        tenant,
        tls_ca=str(certificates.ca),
        tls_cert=str(certificates.folder / "client.pem"),
        tls_key=str(certificates.folder / "client.key"),
        tls_first=first,
    )
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        cache.run(0.2)
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()


def test_an_untrusted_server_is_refused_by_name_of_the_cause(
    nats_servers: NatsServers, tenant: str, certificates: Certificates
) -> None:
    """An untrusted server is refused by name of the cause."""
    server = nats_servers(config=certificates.config())
    config = configure(server.url, tenant, tls_ca=str(certificates.other_ca))
    publisher = open_publisher(config)
    wait_until(lambda: "certificate" in (publisher.stats().error or "").lower(), what="the cause")
    assert not publisher.stats().connected
    publisher.shutdown(0.2)


def test_a_server_without_tls_is_refused_before_it_is_told_anything(
    tenant: str, certificates: Certificates
) -> None:
    """A server that offers no TLS gets neither password nor record."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        url = f"nats://127.0.0.1:{listener.getsockname()[1]}"
        publisher = open_publisher(
            configure(url, tenant, tls_ca=str(certificates.ca), user="u", password="secret")
        )
        peer, _ = listener.accept()
        with peer:
            peer.settimeout(10)
            peer.sendall(b'INFO {"server_id":"x","max_payload":1048576,"auth_required":true}\r\n')
            assert peer.recv(1000) == b""
        wait_until(lambda: "no TLS" in (publisher.stats().error or ""), what="the refusal")
        publisher.shutdown(0.2)


def test_credentials_files_log_in_and_revoked_ones_can_be_replaced_in_place(
    nats_servers: NatsServers, tenant: str, tmp_path: Path
) -> None:
    """The file is read at each connection, so a rotated secret needs no restart of the engine."""
    operator = Operator()
    file = tmp_path / "engine.creds"
    file.write_text(operator.credentials())
    server = nats_servers(config=operator.server_config())
    config = configure(server.url, tenant, creds=str(file))
    cache = Cache(open_publisher(config))
    with Reading(config) as reading:
        cache.run(0.2)
        reading.wait_level_with(cache)
        operator.revoke()
        server.config = operator.server_config()
        server.restart()
        wait_until(
            lambda: "Authorization" in (cache.publisher.stats().error or ""), what="the refusal"
        )
        cache.run(0.2)
        # A JWT counts seconds: the new one must be younger than the revocation.
        wait_until(lambda: time.time() > operator.revoked_at + 1, what="the next second")
        file.write_text(operator.credentials())
        reading.wait_level_with(cache)
        reading.assert_complete(cache)
    cache.publisher.shutdown()
