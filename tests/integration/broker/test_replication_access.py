"""Who may copy the log of a master that protects its requests: by accounts, or by certificates."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.support.brokers import LOOPBACK, eventually, running_broker
from tests.support.ha import ScriptedSlave
from tests.support.ports import free_port
from tests.support.replication import SLAVE
from tests.support.store import draft

from tianzhou.broker.server import Broker
from tianzhou.cli.commands.tls import make_certificates

ACCOUNTS = """
accounts:
  - {accessKey: replicator, secretKey: right-secret, admin: true}
  - {accessKey: plain-account, secretKey: plain-secret}
"""
ACCOUNT = '{"accessKey":"%s","secretKey":"%s"}'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    assert make_certificates(folder, [LOOPBACK]) == 0
    return folder


def tls_settings(certificates: Path) -> dict[str, object]:
    """TLS with certificates of both sides, on the ports and for the broker's own requests."""
    return {
        "tls.server.mode": "enforcing",
        "tls.server.certPath": certificates / "server.pem",
        "tls.server.keyPath": certificates / "server.key",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": certificates / "ca.pem",
        "tls.client.certPath": certificates / "server.pem",
        "tls.client.keyPath": certificates / "server.key",
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": certificates / "ca.pem",
    }


def accounts_of(folder: Path) -> dict[str, object]:
    file = folder / "conf" / "plain_acl.yml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(ACCOUNTS)
    return {"aclEnable": "true", "rocketmqHome": folder}


@asynccontextmanager
async def master_of(folder: Path, **settings: object) -> AsyncGenerator[tuple[Broker, str]]:
    """A master with a message, and its HA address."""
    # A slave that knows only the HA address says hello to the port below it.
    settings["listenPort"] = free_port()
    async with running_broker(folder / "master", **settings) as master:
        master.store.append(draft("t", 0, b"secret"))
        assert master.replication is not None
        yield master, master.replication.advertised_address


def problem_of(slave: Broker) -> str:
    assert slave.replication is not None
    row = slave.replication.status().master
    return (row.problem or "") if row else ""


async def copied_by_default_ha(address: str) -> bytes:
    """What a slave of RocketMQ's kind gets; nothing if it is not served."""
    slave = await ScriptedSlave.connect(int(address.rpartition(":")[2]))
    try:
        await slave.report(0)
        await slave.frame()
    except (EOFError, ConnectionError):
        return b""
    finally:
        slave.close()
    return bytes(slave.log)


async def test_with_accounts_only_an_administrator_copies_the_log(tmp_path: Path) -> None:
    settings = accounts_of(tmp_path)
    async with master_of(tmp_path, **settings) as (master, address):
        assert not await copied_by_default_ha(address)
        follows = SLAVE | settings | {"haMasterAddress": address}
        for account, problem in (
            (("replicator", "wrong-secret"), "signature is not right"),
            (("plain-account", "plain-secret"), "needs an administrator"),
        ):
            key = {"innerClientAuthenticationCredentials": ACCOUNT % account}
            async with running_broker(tmp_path / account[0], **(follows | key)) as slave:
                await eventually(partial(problem_of, slave), "the reason")
                assert problem in problem_of(slave)
                assert slave.store.end_log_offset == 0
        key = {"innerClientAuthenticationCredentials": ACCOUNT % ("replicator", "right-secret")}
        async with running_broker(tmp_path / "slave", **(follows | key)) as slave:
            end = master.store.end_log_offset
            await eventually(lambda: slave.store.end_log_offset == end, "the copy")


async def test_with_client_certificates_the_log_is_not_copied_without_one(
    tmp_path: Path, certificates: Path
) -> None:
    settings = tls_settings(certificates)
    async with master_of(tmp_path, **settings) as (master, address):
        assert not await copied_by_default_ha(address), "default HA has no certificates"
        follows = SLAVE | {"haMasterAddress": address}
        async with running_broker(tmp_path / "plain", **follows) as slave:
            await eventually(lambda: problem_of(slave), "the reason")
            assert "if it accepts TLS only, set useTLS=true" in problem_of(slave)
        async with running_broker(tmp_path / "slave", **(follows | settings)) as slave:
            end = master.store.end_log_offset
            await eventually(lambda: slave.store.end_log_offset == end, "the copy")


async def test_a_list_of_addresses_is_in_force_without_access_control(tmp_path: Path) -> None:
    for listed, is_served in (("10.9.8.7", False), (f"10.9.8.7;{LOOPBACK}", True)):
        folder = tmp_path / listed.replace(";", "-")
        async with master_of(folder, haAllowedAddresses=listed) as (master, address):
            end = master.store.end_log_offset
            assert len(await copied_by_default_ha(address)) == (end if is_served else 0)


@pytest.mark.parametrize("is_by_accounts", [True, False], ids=["accounts", "certificates"])
async def test_listed_addresses_are_served_by_default_ha(
    tmp_path: Path, certificates: Path, is_by_accounts: bool
) -> None:
    settings = accounts_of(tmp_path) if is_by_accounts else tls_settings(certificates)
    async with master_of(tmp_path, **settings, haAllowedAddresses=LOOPBACK) as (master, address):
        assert len(await copied_by_default_ha(address)) == master.store.end_log_offset
