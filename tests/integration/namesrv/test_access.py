"""The access file of a nameserver, over sockets."""

import logging
from pathlib import Path

import pytest
from tests.support.brokers import eventually, running_broker
from tests.support.namesrv import Asker, Broker, namesrv

from tianzhou.admin import Admin
from tianzhou.errors import ConfigError
from tianzhou.limits import HEADER_BYTES_MAX, KV_BYTES_MAX
from tianzhou.namesrv.access import OF_BROKERS, OPEN
from tianzhou.namesrv.dispatch import HANDLERS
from tianzhou.protocol.acl import Credentials, sign
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client

BROKER = Credentials("broker-service", "secret-of-brokers")
ADMIN = Credentials("operations", "secret-of-operations")
STRANGER = Credentials("stranger", "secret-of-brokers")
LIAR = Credentials("broker-service", "another-secret")
ACCOUNTS = """
brokerAccounts:
  - {accessKey: broker-service, secretKey: secret-of-brokers}
administrators:
  - {accessKey: operations, secretKey: secret-of-operations}
"""
ADDRESSES = ACCOUNTS + "brokerAddresses: [127.0.0.0/8]\n"
ADMINISTRATION = sorted(set(HANDLERS) - OPEN - OF_BROKERS)
CHANGES: dict[int, tuple[dict[str, str], bytes]] = {
    RequestCode.PUT_KV_CONFIG: ({"namespace": "n", "key": "k", "value": "v"}, b""),
    RequestCode.DELETE_KV_CONFIG: ({"namespace": "n", "key": "k"}, b""),
    RequestCode.UPDATE_NAMESRV_CONFIG: ({}, b"enableTopicList=false"),
    RequestCode.GET_NAMESRV_CONFIG: ({}, b""),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: ({"brokerName": "broker-a"}, b""),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: ({"topic": "orders"}, b""),
}


def listed(folder: Path, text: str) -> dict[str, object]:
    (folder / "access.yml").write_text(text)
    return {"accessFile": folder / "access.yml"}


def by(asker: Asker, account: Credentials | None) -> Asker:
    return Asker(asker.address, Client(credentials=account))


async def code_of(asker: Asker, account: Credentials | None, code: int) -> int:
    fields, body = CHANGES[code]
    signed = by(asker, account)
    try:
        return (await signed.ask(RequestCode(code), fields, body)).code
    finally:
        await signed.client.close()


async def test_only_listed_accounts_register_unregister_and_send_heartbeats(
    tmp_path: Path,
) -> None:
    async with namesrv(tmp_path, listed(tmp_path, ACCOUNTS)) as asker:
        for account in (None, STRANGER, LIAR):
            other = by(asker, account)
            answer = await Broker().register(other)
            assert answer.code == ResponseCode.NO_PERMISSION, account
            assert "access denied" in (answer.remark or "")
            await other.client.close()
        assert await asker.route("orders") is None
        signed = by(asker, BROKER)
        assert (await Broker().register(signed)).code == ResponseCode.SUCCESS
        assert await asker.route("orders") is not None, "read-only requests stay open"
        for code in sorted(OF_BROKERS):
            answer = await asker.ask(RequestCode(code), Broker().identity(), b"{}")
            assert answer.code == ResponseCode.NO_PERMISSION, RequestCode(code).name
        assert await asker.route("orders") is not None
        await signed.get(RequestCode.UNREGISTER_BROKER, Broker().identity())
        assert await asker.route("orders") is None
        await signed.client.close()


async def test_a_listed_address_needs_no_signature_but_does_not_administrate(
    tmp_path: Path,
) -> None:
    async with namesrv(tmp_path, listed(tmp_path, ADDRESSES)) as asker:
        assert (await Broker().register(asker)).code == ResponseCode.SUCCESS
        for code in CHANGES:
            assert await code_of(asker, None, code) == ResponseCode.NO_PERMISSION
        assert await asker.route("orders") is not None


async def test_every_request_that_changes_something_needs_an_administrator(tmp_path: Path) -> None:
    assert sorted(CHANGES) == ADMINISTRATION, "a new request is closed until it is opened"
    async with namesrv(tmp_path, listed(tmp_path, ADDRESSES)) as asker:
        await Broker().register(asker)
        for code in ADMINISTRATION:
            for account in (None, STRANGER, LIAR, BROKER):
                assert await code_of(asker, account, code) == ResponseCode.NO_PERMISSION
        assert not (tmp_path / "kvConfig.json").exists()
        assert not (tmp_path / "namesrv.properties").exists()
        for code in ADMINISTRATION:
            assert await code_of(asker, ADMIN, code) == ResponseCode.SUCCESS, RequestCode(code).name


async def test_an_administrator_changes_admin_settings(tmp_path: Path) -> None:
    change = b"brokerChannelExpiredTime=60000"
    async with namesrv(tmp_path, listed(tmp_path, ACCOUNTS)) as asker:
        signed = by(asker, ADMIN)
        await signed.get(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)
        refused = await signed.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"accessFile=/x")
        assert refused.code == ResponseCode.NO_PERMISSION
        await signed.client.close()
    async with namesrv(tmp_path) as asker:
        answer = await asker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=change)
        assert answer.code == ResponseCode.NO_PERMISSION


async def test_a_changed_file_is_loaded_and_a_broken_or_deleted_one_is_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with namesrv(tmp_path, listed(tmp_path, ACCOUNTS)) as asker:
        signed, file = by(asker, BROKER), tmp_path / "access.yml"
        for broken in ("brokerAdresses: []", None):
            caplog.clear()
            if broken is None:
                file.unlink()
            else:
                file.write_text(broken)
            await eventually(lambda: "the last good rules stay" in caplog.text, "the error")
            assert (await Broker().register(signed)).code == ResponseCode.SUCCESS
            assert (await Broker().register(asker)).code == ResponseCode.NO_PERMISSION
        file.write_text(ADDRESSES.replace("secret-of-brokers", "renewed-secret"))

        async def is_open() -> bool:
            return (await Broker().register(asker)).code == ResponseCode.SUCCESS

        await eventually(is_open, "the new file to be loaded")
        assert await code_of(signed, BROKER, RequestCode.PUT_KV_CONFIG) == 16
        await signed.client.close()
    assert "secret-of-brokers" not in caplog.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("accounts: []", "unknown name 'accounts'"),
        ("brokerAddresses: [everywhere]", "is no address"),
        ("administrators: [{accessKey: operations}]", "secretKey"),
        ("administrators: [{accessKey: operations, secretKey: '1'}]", "at least 7"),
        (ACCOUNTS + "  - {accessKey: broker-service, secretKey: 12345678}\n", "listed twice"),
    ],
)
async def test_a_nameserver_does_not_start_with_an_invalid_file(
    tmp_path: Path, text: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        async with namesrv(tmp_path, listed(tmp_path, text)):
            pass


async def test_our_broker_registers_with_its_own_account_and_our_tools_administrate(
    tmp_path: Path,
) -> None:
    account = '{"accessKey":"broker-service","secretKey":"secret-of-brokers"}'
    async with namesrv(tmp_path, listed(tmp_path, ACCOUNTS)) as asker:
        async with running_broker(
            tmp_path / "s",
            namesrvAddr=asker.address,
            innerClientAuthenticationCredentials=account,
        ) as broker:
            await eventually(lambda: asker.address in broker.registered_with, "registered")
            async with Admin(asker.address, credentials=ADMIN) as admin:
                await admin.namesrv.put("n", "k", "v")
        assert b"broker-a" not in (await asker.get(RequestCode.GET_BROKER_CLUSTER_INFO)).body


async def test_a_recorded_registration_can_be_replayed_as_the_security_page_says(
    tmp_path: Path,
) -> None:
    """What RocketMQ's signature leaves open; TLS closes it."""
    async with namesrv(tmp_path, listed(tmp_path, ACCOUNTS)) as asker:
        broker = Broker()
        command = Command(
            code=RequestCode.REGISTER_BROKER, ext_fields=broker.identity(), body=broker.body()
        )
        command.ext_fields = dict(command.fields) | {"haServerAddr": "127.0.0.1:1"}
        sign(command, BROKER)
        recorded, body = dict(command.fields), bytes(command.body)
        await asker.get(RequestCode.REGISTER_BROKER, recorded, body)
        assert await asker.route("orders") is not None
        await asker.get(RequestCode.UNREGISTER_BROKER, recorded, body)
        assert await asker.route("orders") is None


# -- without an access file ------------------------------------------------------------------------


async def test_a_registration_that_replaces_a_live_broker_is_logged_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        await Broker(counter=2).register(asker)
        assert "replaces" not in caplog.text
        await Broker(addr="10.9.9.9:10911").register(asker)
        (record,) = [each for each in caplog.records if "replaces" in each.getMessage()]
        text = record.getMessage()
        assert record.levelno == logging.WARNING
        for part in ("broker-a 0 at 10.9.9.9:10911", "127.0.0.1:10911", "registered from 127."):
            assert part in text
        caplog.clear()
        await asker.get(RequestCode.UNREGISTER_BROKER, Broker().identity())
        gone = Broker(addr="10.9.9.9:10911").identity()
        await asker.get(RequestCode.UNREGISTER_BROKER, gone)
        await Broker(addr="10.8.8.8:10911").register(asker)
        assert "replaces" not in caplog.text, "an unregistered broker may return at another address"


async def test_a_master_of_a_later_epoch_replaces_the_former_one_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker(state_version=1).register(asker)
        with caplog.at_level(logging.INFO):
            await Broker(addr="10.9.9.9:10911", state_version=2).register(asker)
        (record,) = [each for each in caplog.records if "replaces" in each.getMessage()]
        assert record.levelno == logging.INFO
        assert "replaces 127.0.0.1:10911, as the master of epoch 2" in record.getMessage()


async def test_the_kv_configuration_is_limited(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        code = RequestCode.PUT_KV_CONFIG
        pair = {"namespace": "n", "key": "k", "value": "v" * (HEADER_BYTES_MAX // 2)}
        count = KV_BYTES_MAX // (HEADER_BYTES_MAX // 2) - 1
        for number in range(count):
            await asker.get(code, pair | {"key": f"k{number}"})
        before = (tmp_path / "kvConfig.json").stat()
        refused = await asker.ask(code, pair | {"value": pair["value"] + "v" * 4096})
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert str(KV_BYTES_MAX) in (refused.remark or "")
        assert (tmp_path / "kvConfig.json").stat() == before
        await asker.get(code, pair | {"key": "k0", "value": "smaller"})
        await asker.get(code, pair)
