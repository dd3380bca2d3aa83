"""Queue assignment by the broker: QUERY_ASSIGNMENT and the modes of groups."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.brokers import (
    Peer,
    cluster,
    peer_of,
    running_broker,
    running_namesrv,
)

from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.queues import (
    MessageRequestModeTable,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeBody,
)
from tianzhou.protocol.codes import RequestCode, ResponseCode

Shares = list[tuple[str, int, str]]


async def assigned(
    peer: Peer, client_id: str, *, strategy: str = "AVG", model: str = "CLUSTERING",
    topic: str = "t",
) -> Shares | None:  # fmt: skip
    """Broker, queue and mode of each queue; None for "unchanged"."""
    asked = QueryAssignmentRequestBody(
        topic=topic, consumer_group="g", client_id=client_id, strategy_name=strategy,
        message_model=model,
    )  # fmt: skip
    answer = await peer.expect(RequestCode.QUERY_ASSIGNMENT, None, encode(asked))
    assignments = decode(QueryAssignmentResponseBody, answer.body).assignments
    if assignments is None:
        return None
    return sorted(
        (each.queue.broker_name or "", each.queue.queue_id, each.mode)
        for each in assignments
        if each.queue is not None
    )


async def set_mode(peer: Peer, mode: str, share: int = 0, topic: str = "t") -> int:
    body = SetMessageRequestModeBody(
        topic=topic, consumer_group="g", mode=mode, pop_share_queue_count=share
    )
    return (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode(body))).code


async def test_queues_are_shared_by_pull_until_the_mode_is_pop(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it, peer_of(it.broker.address) as other:
        await it.peer.send("t", b"x", queue_count=4)
        await it.broker.register()
        assert await assigned(it.peer, "a") is None, "nobody of the group is known"
        await it.peer.heartbeat("a", "g", {"t": "*"})
        await other.heartbeat("b", "g", {"t": "*"})
        name = "broker-a"
        assert await assigned(it.peer, "a") == [(name, 0, "PULL"), (name, 1, "PULL")]
        assert await assigned(other, "b") == [(name, 2, "PULL"), (name, 3, "PULL")]
        circle = await assigned(other, "b", strategy="AVG_BY_CIRCLE")
        assert circle == [(name, 1, "PULL"), (name, 3, "PULL")]
        assert await assigned(it.peer, "a", strategy="unheard-of") is None
        everything = await assigned(it.peer, "a", model="BROADCASTING")
        assert everything == [(name, each, "PULL") for each in range(4)]
        assert await assigned(it.peer, "stranger") == []
        assert await set_mode(it.peer, "POP") == ResponseCode.SUCCESS
        for peer, client_id in ((it.peer, "a"), (other, "b")):
            assert await assigned(peer, client_id) == [(name, -1, "POP")]
        assert await assigned(it.peer, "a", topic="nothing") is None


async def test_queues_of_all_brokers_are_shared_also_after_the_nameserver_stops(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        namesrv = await stack.enter_async_context(running_namesrv(tmp_path))
        peers: list[Peer] = []
        for name in ("x", "y"):
            broker = await stack.enter_async_context(
                running_broker(tmp_path / name, namesrvAddr=namesrv, brokerName=name)
            )
            peer = await stack.enter_async_context(peer_of(broker.address))
            await peer.send("t", b"x", queue_count=2)
            await broker.register()
            await peer.heartbeat("a", "g", {"t": "*"})
            peers.append(peer)
        await set_mode(peers[0], "POP")
        assert await assigned(peers[0], "a") == [("x", -1, "POP"), ("y", -1, "POP")]
        by_pull = [("x", 0, "PULL"), ("x", 1, "PULL"), ("y", 0, "PULL"), ("y", 1, "PULL")]
        assert await assigned(peers[1], "a") == by_pull


async def test_without_a_nameserver_the_broker_assigns_its_own_queues(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x", queue_count=1)
        await peer.heartbeat("a", "g", {"t": "*"})
        assert await assigned(peer, "a") == [("broker-a", 0, "PULL")]


async def test_unresponsive_nameserver_changes_no_assignment(tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "namesrvAddr": "127.0.0.1:1", "loadBalancePollNameServerInterval": 0
    }  # fmt: skip
    async with running_broker(tmp_path, **settings) as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x", queue_count=1)
        await peer.heartbeat("a", "g", {"t": "*"})
        assert await assigned(peer, "a") is None


async def test_modes_survive_a_restart_and_can_be_queried(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x")
        assert await set_mode(peer, "POP", 3) == ResponseCode.SUCCESS
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        answer = await peer.expect(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        mode = decode(MessageRequestModeTable, answer.body).modes["t"]["g"]
        assert (mode.mode, mode.pop_share_queue_count) == ("POP", 3)


async def test_defaults_of_modes(tmp_path: Path) -> None:
    settings = {"defaultMessageRequestMode": "POP", "serverLoadBalancerEnable": "false"}
    async with running_broker(tmp_path, **settings) as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x", queue_count=2)
        expected = [("broker-a", 0, "POP"), ("broker-a", 1, "POP")]
        assert await assigned(peer, "a") == expected, "no sharing: each gets all queues"


@pytest.mark.parametrize(
    ("mode", "topic", "code"),
    [
        ("POP", "nothing", ResponseCode.TOPIC_NOT_EXIST),
        ("POP", "%RETRY%g", ResponseCode.NO_PERMISSION),
        ("PUSH", "t", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_a_bad_mode_is_refused(tmp_path: Path, mode: str, topic: str, code: int) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        await peer.send("t", b"x")
        assert await set_mode(peer, mode, topic=topic) == code
        assert broker.modes.modes == {}


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"topic":"t"}'])
async def test_assignment_without_a_member_is_refused(tmp_path: Path, body: bytes) -> None:
    async with running_broker(tmp_path) as broker, peer_of(broker.address) as peer:
        answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, None, body)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "internal error" not in (answer.remark or "")
