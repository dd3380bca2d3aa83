"""Access control of a running broker: signed requests, changes of the files, attacks over sockets.

What each kind of request needs is tested in tests/unit/broker/acl; here every path of a
request through the broker is checked.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.integration.broker.test_metrics import PROM, get
from tests.support.brokers import (
    Cluster,
    cluster,
    eventually,
    pull_fields,
    running_broker,
    send_fields,
)
from tests.unit.broker.acl import attacks
from tests.unit.broker.acl.attacks import Attack

from tianzhou.broker.acl.files import write_text
from tianzhou.errors import ConfigError
from tianzhou.protocol import acl
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies.auth import AclConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding

ADMIN = acl.Credentials("administrator", "admin-secret")
PLAIN = acl.Credentials("plain-account", "plain-secret")
NEWCOMER = acl.Credentials("newcomer", "fresh-secret")

ACCOUNTS = """
accounts:
  - accessKey: administrator
    secretKey: admin-secret
    admin: true
  - accessKey: plain-account
    secretKey: plain-secret
    topicPerms: [orders=PUB|SUB]
    groupPerms: [clerks=SUB]
"""
WITH_NEWCOMER = ACCOUNTS + "  - {accessKey: newcomer, secretKey: fresh-secret, admin: true}\n"


@asynccontextmanager
async def guarded(folder: Path) -> AsyncGenerator[Cluster]:
    file = folder / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS)
    async with cluster(folder, aclEnable="true", rocketmqHome=folder) as it:
        yield it


async def ask(
    it: Cluster,
    by: acl.Credentials | None,
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    encoding: HeaderEncoding = HeaderEncoding.JSON,
) -> Command:
    command = Command(code=code, ext_fields=fields or {}, body=body, encoding=encoding)
    if by is not None:
        acl.sign(command, by)
    return await it.peer.client.request(it.peer.address, command)


async def send(it: Cluster, by: acl.Credentials | None, topic: str = "orders") -> Command:
    return await ask(it, by, RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x" * 100)


async def test_requests_need_permission_in_both_encodings(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        for encoding in HeaderEncoding:
            for by, topic, expected in (
                (PLAIN, "orders", ResponseCode.SUCCESS),
                (PLAIN, "invoices", ResponseCode.NO_PERMISSION),
                (None, "orders", ResponseCode.NO_PERMISSION),
                (acl.Credentials("plain-account", "guessed"), "orders", ResponseCode.NO_PERMISSION),
                (ADMIN, "invoices", ResponseCode.SUCCESS),
            ):
                answer = await ask(
                    it, by, RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x", encoding
                )
                assert answer.code == expected, (encoding, by, topic, answer.remark)
        pulled = await ask(
            it, PLAIN, RequestCode.PULL_MESSAGE, pull_fields("clerks", "orders", 0, 0)
        )
        assert pulled.code == ResponseCode.SUCCESS
        stolen = await ask(
            it, PLAIN, RequestCode.PULL_MESSAGE, pull_fields("clerks", "invoices", 0, 0)
        )
        assert stolen.code == ResponseCode.NO_PERMISSION
        assert not stolen.body


async def test_unreadable_message_cannot_be_sent_back_or_read_by_offset(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        stored = await send(it, ADMIN, "invoices")
        log_offset = str(int(stored.fields["msgId"][-16:], 16))
        for code in (RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.CONSUMER_SEND_MSG_BACK):
            fields = {"offset": log_offset, "group": "clerks", "delayLevel": "0"}
            answer = await ask(it, PLAIN, code, fields)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert (answer.remark or "").endswith("for the topic of this message")


@asynccontextmanager
async def broker_with_attacks(folder: Path) -> AsyncGenerator[tuple[Cluster, dict[str, Attack]]]:
    """A broker with accounts and messages, and requests that try to bypass access control."""
    (folder / "conf").mkdir()
    (folder / "conf" / "plain_acl.yml").write_text(write_text(attacks.ACCOUNTS))
    async with cluster(folder, aclEnable="true", rocketmqHome=folder, **PROM) as it:
        log_offsets: dict[str, int] = {}
        for topic in ("granted", "published", "secret", "%RETRY%secret"):
            it.broker.topics.put(TopicConfig(topic_name=topic))
            stored = await send(it, attacks.ADMIN, topic)
            assert stored.code == ResponseCode.SUCCESS, stored.remark
            log_offsets[topic] = int(stored.fields["msgId"][-16:], 16)
        yield it, attacks.attacks(log_offsets.__getitem__)


async def test_every_attack_is_refused_over_sockets_in_both_encodings(tmp_path: Path) -> None:
    async with broker_with_attacks(tmp_path) as (it, table):
        ends = {topic: it.broker.topics.get(topic) for topic in ("secret", "published")}
        for encoding in HeaderEncoding:
            for name, (tried, expected) in table.items():
                command = Command(
                    code=tried.code,
                    ext_fields=dict(tried.fields),
                    body=tried.body,
                    encoding=encoding,
                )
                answer = await it.peer.client.request(it.peer.address, command)
                remark = answer.remark or ""
                assert answer.code == ResponseCode.NO_PERMISSION, (name, encoding, remark)
                assert expected in remark, (name, encoding)
                assert "secret" not in remark or "secret" in attacks.said_by(tried), name
                assert not answer.body, name
                assert not answer.fields, name
        assert {topic: it.broker.topics.get(topic) for topic in ends} == ends
        refused = len(table) * len(HeaderEncoding)
        _, page = await get(it, "/metrics")
        counted = [
            float(line.rpartition(" ")[2])
            for line in page.splitlines()
            if line.startswith("tianzhou_acl_refusals_total{")
        ]
        assert sum(counted) == refused
        asked = {"topic": "secret", "queueId": "0"}
        response = await ask(it, attacks.ADMIN, RequestCode.GET_MAX_OFFSET, asked)
        assert response.fields["offset"] == "1", "nothing was stored by those who may not"


async def test_a_changed_file_is_loaded_and_an_invalid_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as it:
        file = tmp_path / "conf" / "plain_acl.yml"

        async def new_account_may() -> bool:
            return (await send(it, NEWCOMER)).code == ResponseCode.SUCCESS

        assert not await new_account_may()
        file.write_text(WITH_NEWCOMER)
        await eventually(new_account_may, "the new account")

        stop = asyncio.Event()

        async def load() -> list[int]:
            codes: list[int] = []
            while not stop.is_set():
                codes.append((await send(it, PLAIN)).code)
            return codes

        running = asyncio.create_task(load())
        with caplog.at_level(logging.ERROR):
            file.write_text(ACCOUNTS[: ACCOUNTS.index("plain-secret")] + "]")
            await eventually(lambda: "last good rules stay" in caplog.text, "the complaint")
        assert await new_account_may()
        stop.set()
        codes = await running
        assert codes
        assert set(codes) == {ResponseCode.SUCCESS}

        file.write_text(ACCOUNTS)

        async def new_account_may_not() -> bool:
            return not await new_account_may()

        await eventually(new_account_may_not, "the account to be gone")


async def test_accounts_are_changed_by_requests_of_administrators_only(tmp_path: Path) -> None:
    async with guarded(tmp_path) as it:
        put = {
            "accessKey": "newcomer", "secretKey": "fresh-secret", "admin": "false",
            "topicPerms": "orders=PUB,invoices=SUB",
        }  # fmt: skip
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        refused = await ask(it, PLAIN, code, put | {"accessKey": "plain-account", "admin": "true"})
        assert refused.code == ResponseCode.NO_PERMISSION
        assert (await ask(it, ADMIN, code, put)).code == ResponseCode.SUCCESS
        assert (await send(it, NEWCOMER)).code == ResponseCode.SUCCESS
        wrong = await ask(it, ADMIN, code, put | {"topicPerms": "orders=ALL"})
        assert wrong.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        assert "'ALL' is no permission" in (wrong.remark or "")

        listed = await ask(it, ADMIN, RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
        accounts = decode_body(AclConfig, listed.body).accounts or []
        assert [account.access_key for account in accounts][-1] == "newcomer"
        versions = await ask(it, ADMIN, RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
        assert '"counter":1' in versions.fields["version"]
        assert "plain_acl.yml" in versions.fields["allAclFileVersion"]

        gone = {"accessKey": "newcomer"}
        assert (await ask(it, ADMIN, RequestCode.DELETE_ACL_CONFIG, gone)).code == 0
        assert (await send(it, NEWCOMER)).code == ResponseCode.NO_PERMISSION
        again = await ask(it, ADMIN, RequestCode.DELETE_ACL_CONFIG, gone)
        assert again.code == ResponseCode.DELETE_ACL_CONFIG_FAILED

        white = {"globalWhiteAddrs": "127.0.0.1,10.0.0.*"}
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        assert (await ask(it, ADMIN, code, white)).code == ResponseCode.SUCCESS
        assert (await send(it, None)).code == ResponseCode.SUCCESS


async def test_rules_survive_deletion_of_their_file_and_the_next_change_rewrites_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as it:
        file = tmp_path / "conf" / "plain_acl.yml"
        file.unlink()
        await eventually(lambda: "plain_acl.yml is missing" in caplog.text, "the broker to see it")
        assert (await send(it, PLAIN)).code == ResponseCode.SUCCESS
        put = {"accessKey": "newcomer", "secretKey": "fresh-secret", "topicPerms": "orders=PUB"}
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        put_code = (await ask(it, ADMIN, code, put | {"admin": "false"})).code
        assert put_code == ResponseCode.SUCCESS
        for account in (ADMIN, PLAIN, NEWCOMER):
            assert (await send(it, account)).code == ResponseCode.SUCCESS
        assert file.stat().st_mode & 0o777 == 0o600


async def test_account_requests_fail_when_access_control_is_off(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        for code in (
            RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
            RequestCode.DELETE_ACL_CONFIG,
            RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
        ):
            answer = await ask(it, None, code, {"accessKey": "a", "admin": "false"})
            assert "aclEnable is false" in (answer.remark or "")


@pytest.mark.parametrize(
    ("text", "why"), [(None, "create one with the first accounts"), ("accounts: [", "no YAML")]
)
async def test_broker_with_invalid_access_control_files_does_not_start(
    tmp_path: Path, text: str | None, why: str
) -> None:
    if text is not None:
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "plain_acl.yml").write_text(text)
    with pytest.raises(ConfigError, match=why):
        async with running_broker(tmp_path / "store", aclEnable="true", rocketmqHome=tmp_path):
            pass
