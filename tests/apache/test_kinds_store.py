"""Open transactions move with a store directory, from Apache's broker to ours and back."""

from pathlib import Path
from typing import Any

import pytest

from tests.integration.broker.test_transactions import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    checks_of,
    end_fields,
    end_of_check,
)
from tests.support.apache.servers import apache_broker, tianzhou_namesrv
from tests.support.brokers import Peer, bodies_in, eventually, peer_of, running_broker
from tests.support.gate import EACH_VERSION
from tianzhou.names import HALF_OP_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command

pytestmark = pytest.mark.apache

SIZES: dict[str, Any] = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 6000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
}
SLOW: dict[str, Any] = {"transactionCheckInterval": 600_000, "transactionOpBatchInterval": 100}
QUICK: dict[str, Any] = {
    "transactionCheckInterval": 500,
    "transactionTimeOut": 1,
    # Apache's brokers also count checks that reach no producer, and on a busy machine many may pass
    # before a producer registers.
    "transactionCheckMax": 10_000,
}


async def prepare(peer: Peer, body: bytes) -> Command:
    props = PREPARED | {"UNIQ_KEY": body.decode()}
    sent = await peer.send(
        "Orders", body, props=props, sys_flag=sysflag.TRANSACTION_PREPARED, queue_count=1
    )
    assert sent.code == ResponseCode.SUCCESS, sent.remark
    return sent


async def end(peer: Peer, sent: Command, state: int) -> None:
    await peer.expect(RequestCode.END_TRANSACTION, end_fields(sent, state))


async def end_and_see(peer: Peer, sent: Command, state: int, end_count: int) -> None:
    """End a half message and wait for the op record, which Apache's 5.x writes later."""
    await end(peer, sent, state)
    queue = {"topic": HALF_OP_TOPIC, "queueId": "0"}

    async def is_written() -> bool:
        answer = await peer.expect(RequestCode.GET_MAX_OFFSET, queue)
        return int(answer.fields["offset"]) == end_count

    await eventually(is_written, f"{end_count} records of ends")


async def answer_checks(peer: Peer, name: str) -> None:
    """Every check must be of the one open transaction; commit it."""
    await peer.heartbeat("p1", producer="producers")
    await eventually(lambda: checks_of(peer), f"a check of {name}")
    assert {each.fields["msgId"] for each in checks_of(peer)} == {name}
    await peer.expect(RequestCode.END_TRANSACTION, end_of_check(checks_of(peer)[-1], COMMIT))


async def delivered(peer: Peer) -> list[bytes]:
    answer = await peer.pull("TOOLS_CONSUMER", "Orders", 0, 0)
    return bodies_in(answer)


@pytest.mark.parametrize("version", EACH_VERSION)
async def test_open_transactions_move_with_the_store(
    apache: None, tmp_path: Path, version: str
) -> None:
    store = tmp_path / "store"
    with tianzhou_namesrv() as namesrv:
        with apache_broker(version, namesrv.address, store_dir=store, **SLOW) as broker:
            async with peer_of(broker.address) as peer:
                await end_and_see(peer, await prepare(peer, b"a"), COMMIT, 1)
                await end_and_see(peer, await prepare(peer, b"b"), ROLLBACK, 2)
                await prepare(peer, b"c")
        # 4.9 reads one half offset per op record.
        one_each: dict[str, Any] = {"transactionOpMsgMaxSize": 1} if version < "5" else {}
        async with (
            running_broker(store, **SIZES, **QUICK, **one_each) as ours,
            peer_of(ours.address) as peer,
        ):
            await answer_checks(peer, "c")
            await end(peer, await prepare(peer, b"d"), COMMIT)
            assert await delivered(peer) == [b"a", b"c", b"d"]
        async with (
            running_broker(store, **SIZES, **SLOW) as ours,
            peer_of(ours.address) as peer,
        ):
            await prepare(peer, b"e")
        with apache_broker(version, namesrv.address, store_dir=store, **QUICK) as broker:
            async with peer_of(broker.address) as peer:
                await answer_checks(peer, "e")

                async def all_there() -> bool:
                    return len(await delivered(peer)) >= 4

                await eventually(all_there, "the last commit in Apache's broker")
                assert await delivered(peer) == [b"a", b"c", b"d", b"e"]
