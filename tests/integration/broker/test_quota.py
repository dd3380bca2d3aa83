"""Quotas of a running broker: a changed file, floods, invalid files under load.

Which quota a request is charged to is tested in tests/unit/broker/quota; here the limits apply to
every request, on the fast path and in the handlers, with and without the kernel.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.brokers import (
    Cluster,
    bodies_in,
    cluster,
    eventually,
    pull_fields,
    running_broker,
    send_fields,
)
from tests.support.remoting import RawPeer

from tianzhou.broker.handlers import send
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.errors import ConfigError
from tianzhou.protocol import acl
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Answer, Connection

BUSY, SUCCESS = ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS
NOTHING = "# nothing is limited yet\n"


@asynccontextmanager
async def limited(folder: Path, text: str, **settings: object) -> AsyncGenerator[Cluster]:
    (folder / "quota.yml").write_text(text)
    async with cluster(folder, quotaFile=folder / "quota.yml", **settings) as it:
        yield it


def put(folder: Path, text: str) -> None:
    """Replace the file as an editor does."""
    (folder / "quota.new").write_text(text)
    (folder / "quota.new").rename(folder / "quota.yml")


async def codes_of(it: Cluster, topic: str, count: int) -> Counter[int]:
    """Send `count` messages at once, and count the response codes."""
    answers = await asyncio.gather(*(it.peer.send(topic, b"x" * 10) for _ in range(count)))
    return Counter(answer.code for answer in answers)


@contextlib.contextmanager
def from_host(host: str, address: str) -> Generator[RawPeer]:
    """A connection from another address of this machine."""
    to_host, _, port = address.rpartition(":")
    with socket.socket() as sock:
        sock.bind((host, 0))
        sock.connect((to_host, int(port)))
        sock.setblocking(False)
        yield RawPeer(sock)


async def ask(peer: RawPeer, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
    await peer.send_commands(Command(code=code, ext_fields=fields, body=body))
    (answer,) = await peer.receive(1)
    return answer


# -- topics and groups -----------------------------------------------------------------------------


async def test_sends_above_the_quota_of_a_topic_are_refused_and_other_topics_are_not_limited(
    tmp_path: Path,
) -> None:
    # So slow that no second token is added while the test runs.
    text = "topics: [{topic: orders, messagesPerSecond: 0.001}]"
    async with limited(tmp_path, text) as it:
        assert (await it.peer.send("orders", b"x")).code == SUCCESS
        refused = await it.peer.send("orders", b"x")
        assert refused.code == BUSY
        assert refused.remark == "broker busy: messagesPerSecond of topic orders is 0.001"
        assert await codes_of(it, "invoices", 200) == {SUCCESS: 200}
        # Stored messages may be read.
        pulled = await it.peer.pull("clerks", "orders", 0, 0)
        assert bodies_in(pulled) == [b"x"]


async def test_quota_added_later_applies_to_the_fast_path(tmp_path: Path) -> None:
    async with limited(tmp_path, NOTHING) as it:
        # By now the fast path serves sends to the topic.
        assert await codes_of(it, "orders", 300) == {SUCCESS: 300}
        put(tmp_path, "topics: [{topic: orders, messagesPerSecond: 0.001}]")

        async def is_limited() -> bool:
            return (await it.peer.send("orders", b"x")).code == BUSY

        await eventually(is_limited, "the new file counts")
        assert await codes_of(it, "orders", 300) == {BUSY: 300}
        put(tmp_path, NOTHING)

        async def is_free() -> bool:
            return await codes_of(it, "orders", 20) == {SUCCESS: 20}

        await eventually(is_free, "the limit is gone")


async def test_requests_without_a_quota_use_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handled: Counter[str] = Counter()
    really = send.send_message_v2

    def counting(deps: Deps, connection: Connection, request: Command) -> Answer:
        handled[request.fields["b"]] += 1
        return really(deps, connection, request)

    monkeypatch.setitem(HANDLERS, RequestCode.SEND_MESSAGE_V2, counting)
    async with limited(tmp_path, "topics: [{topic: orders, messagesPerSecond: 100000}]") as it:
        for topic in ("invoices", "orders"):
            assert (await it.peer.send(topic, b"first")).code == SUCCESS
            assert await codes_of(it, topic, 200) == {SUCCESS: 200}
        assert handled["orders"] == 201, "every one was seen by the handler"
        assert handled["invoices"] < 20, "only those before the feed knew the topic"


async def test_pull_quota_applies_to_a_group_already_on_the_fast_path(
    tmp_path: Path,
) -> None:
    async with limited(tmp_path, NOTHING) as it:
        for _ in range(20):
            await it.peer.send("orders", b"x")
        fields = pull_fields("clerks", "orders", 0, 0)

        async def pulls(count: int, group: str = "clerks") -> Counter[int]:
            asked = fields | {"consumerGroup": group}
            answers = await asyncio.gather(
                *(it.peer.ask(RequestCode.PULL_MESSAGE, asked) for _ in range(count))
            )
            return Counter(answer.code for answer in answers)

        assert await pulls(50) == {SUCCESS: 50}
        put(tmp_path, "groups: [{group: clerks, pullsPerSecond: 0.001}]")

        async def is_limited() -> bool:
            return (await pulls(1)) == {BUSY: 1}

        await eventually(is_limited, "the new file counts")
        assert await pulls(50) == {BUSY: 50}
        assert await pulls(50, "auditors") == {SUCCESS: 50}


async def test_refused_sends_do_not_use_the_quota(tmp_path: Path) -> None:
    accounts = tmp_path / "conf" / "plain_acl.yml"
    accounts.parent.mkdir()
    accounts.write_text("accounts: [{accessKey: operator, secretKey: hidden-1, admin: true}]")
    text = "topics: [{topic: orders, messagesPerSecond: 0.001}]"
    async with limited(tmp_path, text, aclEnable="true", rocketmqHome=tmp_path) as it:
        assert await codes_of(it, "orders", 20) == {ResponseCode.NO_PERMISSION: 20}
        for expected in (SUCCESS, BUSY):
            request = Command(
                code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields("orders"), body=b"x"
            )
            acl.sign(request, acl.Credentials("operator", "hidden-1"))
            answer = await it.peer.client.request(it.peer.address, request)
            assert answer.code == expected, answer.remark


async def test_bytes_of_a_topic(tmp_path: Path) -> None:
    async with limited(tmp_path, "topics: [{topic: 'o*', bytesPerSecond: 0.5}]") as it:
        assert (await it.peer.send("orders", b"x" * 1000)).code == SUCCESS
        refused = await it.peer.send("orders", b"x")
        assert refused.remark == "broker busy: bytesPerSecond of topic orders is 0.5"
        assert (await it.peer.send("offers", b"x")).code == SUCCESS, "each has its own"


# -- clients ---------------------------------------------------------------------------------------


async def test_flood_of_one_client_does_not_block_another(
    tmp_path: Path,
) -> None:
    text = "clients: [{address: 127.0.0.2, requestsPerSecond: 5}]"
    async with limited(tmp_path, text) as it:
        assert await codes_of(it, "orders", 10) == {SUCCESS: 10}
        flood = [
            Command(
                code=RequestCode.SEND_MESSAGE_V2,
                ext_fields=send_fields("orders"),
                body=b"flood",
                opaque=number,
            )
            for number in range(3000)
        ]
        with from_host("127.0.0.2", it.broker.address) as greedy:

            async def send_flood() -> Counter[int]:
                sending = asyncio.create_task(greedy.send_commands(*flood))
                answers = await greedy.receive(len(flood))
                await sending
                assert sorted(answer.opaque for answer in answers) == list(range(len(flood)))
                return Counter(answer.code for answer in answers)

            flooding = asyncio.create_task(send_flood())
            served = 0
            while not flooding.done():
                assert await codes_of(it, "orders", 10) == {SUCCESS: 10}
                served += 10
            codes = await flooding
            assert served > 0
            # Few passed: the bucket, and what was refilled during the flood.
            assert 5 <= codes[SUCCESS] < 300
            assert codes[BUSY] == len(flood) - codes[SUCCESS]


async def test_oneway_requests_above_the_limit_are_dropped(tmp_path: Path) -> None:
    text = "clients: [{address: 127.0.0.2, requestsPerSecond: 0.001}]"
    async with limited(tmp_path, text) as it:
        with from_host("127.0.0.2", it.broker.address) as peer:
            oneway = Command(
                code=RequestCode.SEND_MESSAGE_V2, ext_fields=send_fields("orders"), body=b"x",
                flag=2,
            )  # fmt: skip
            await peer.send_commands(*[oneway] * 50)
            refused = await ask(peer, RequestCode.GET_MAX_OFFSET, {"topic": "orders"})
            assert refused.code == BUSY
            assert refused.remark == (
                "broker busy: requestsPerSecond of address 127.0.0.2 is 0.001"
            )
        answer = await it.peer.expect(
            RequestCode.GET_MAX_OFFSET, {"topic": "orders", "queueId": "0"}
        )
        assert answer.fields["offset"] == "1"


async def test_connections_of_one_address_are_limited_and_the_limit_is_live(tmp_path: Path) -> None:
    text = "connections: {perAddress: 8}"
    async with limited(tmp_path, text) as it:
        assert (await it.peer.send("orders", b"x")).code == SUCCESS
        with contextlib.ExitStack() as stack:
            greedy = [
                stack.enter_context(from_host("127.0.0.2", it.broker.address)) for _ in range(100)
            ]

            async def is_open(peer: RawPeer) -> bool:
                fields = {"topic": "orders", "queueId": "0"}
                try:
                    answer = await ask(peer, RequestCode.GET_MAX_OFFSET, fields)
                except (AssertionError, ConnectionError):
                    return False
                assert answer.code in (SUCCESS, ResponseCode.SYSTEM_BUSY)
                return answer.code == SUCCESS

            assert sum([await is_open(peer) for peer in greedy]) == 8
            # Other addresses can still connect.
            with from_host("127.0.0.3", it.broker.address) as other:
                assert await is_open(other)
            put(tmp_path, "connections: {perAddress: 9}")

            async def one_more() -> bool:
                return await is_open(stack.enter_context(from_host("127.0.0.2", it.broker.address)))

            await eventually(one_more, "the new limit counts")
            assert not await one_more()


async def test_connections_of_the_whole_broker_are_limited(tmp_path: Path) -> None:
    async with limited(tmp_path, "connections: {perBroker: 3}") as it:
        assert (await it.peer.send("orders", b"x")).code == SUCCESS
        with (
            from_host("127.0.0.2", it.broker.address) as second,
            from_host("127.0.0.3", it.broker.address) as third,
        ):
            fields = {"topic": "orders", "queueId": "0"}
            for peer in (second, third):
                assert (await ask(peer, RequestCode.GET_MAX_OFFSET, fields)).code == SUCCESS
            with from_host("127.0.0.4", it.broker.address) as fourth:
                refused = await ask(fourth, RequestCode.GET_MAX_OFFSET, fields)
                assert refused.code == ResponseCode.SYSTEM_BUSY
                assert "3 connections are open, the limit" in (refused.remark or "")
            assert (await it.peer.send("orders", b"x")).code == SUCCESS


# -- the file --------------------------------------------------------------------------------------


async def test_invalid_file_under_load_changes_nothing_and_is_logged_as_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "topics: [{topic: orders, messagesPerSecond: 0.001}]"
    async with limited(tmp_path, text) as it:
        assert (await it.peer.send("orders", b"x")).code == SUCCESS
        seen: Counter[tuple[str, int]] = Counter()
        stop = asyncio.Event()

        async def load(topic: str) -> None:
            while not stop.is_set():
                for code, count in (await codes_of(it, topic, 20)).items():
                    seen[topic, code] += count

        shouted = "the last good rules stay in force"
        loads = [asyncio.create_task(load(topic)) for topic in ("orders", "invoices")]
        try:
            for broken in ("topics: [", "topics: [{topic: orders}", "topcis: []", "\0\1\2"):
                caplog.clear()
                put(tmp_path, broken)
                await eventually(lambda: shouted in caplog.text, "the error")
            (tmp_path / "quota.yml").unlink()
            await eventually(lambda: "cannot be read" in caplog.text, "the error")
        finally:
            stop.set()
            await asyncio.gather(*loads)
        assert set(seen) == {("orders", BUSY), ("invoices", SUCCESS)}
        put(tmp_path, NOTHING)

        async def is_free() -> bool:
            return (await it.peer.send("orders", b"x")).code == SUCCESS

        await eventually(is_free, "a good file counts again")


async def test_broker_does_not_start_with_an_invalid_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    path = tmp_path / "quota.yml"
    path.write_text("topics: [{topic: a, messagesPerSecond: -1}]")
    with pytest.raises(ConfigError, match=r"quota\.yml: topics, rule 1: messagesPerSecond is -1"):
        async with running_broker(tmp_path / "store", quotaFile=path):
            pass
    with pytest.raises(ConfigError, match="cannot be read"):
        async with running_broker(tmp_path / "store", quotaFile=tmp_path / "none.yml"):
            pass


# -- bodies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT, RequestCode.LOCK_BATCH_MQ, RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.PULL_MESSAGE, 4711,
    ],
)  # fmt: skip
async def test_hostile_body_is_refused_before_it_is_decoded(tmp_path: Path, code: int) -> None:
    async with cluster(tmp_path) as it:
        body = b'{"clientID":"x","consumerDataSet":[' + b'{"groupName":"g"},' * 700_000
        answer = await it.peer.ask(code, {}, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"carries {len(body)} bytes" in (answer.remark or "")
        assert (await it.peer.heartbeat("c", "g", {"orders": "*"})).code == SUCCESS


async def test_large_valid_heartbeats_are_accepted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        subscriptions = {f"topic-{number}": "*" for number in range(2000)}
        assert (await it.peer.heartbeat("c", "g", subscriptions)).code == SUCCESS
