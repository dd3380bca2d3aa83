"""A master and its slave, both of Tianzhou, with fixed roles."""

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.support.brokers import (
    LOOPBACK,
    SMALL,
    Peer,
    bodies_in,
    eventually,
    peer_of,
    running_broker,
)
from tests.support.ports import free_port
from tests.support.replication import (
    SLAVE,
    Pair,
    log_bytes,
    peers,
    queue_entries,
    running_pair,
    sent_ok,
)

from tianzhou.broker.config import BrokerRole, load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.errors import ConfigError, RemotingError
from tianzhou.ha import tables
from tianzhou.ha.master_side import MasterSide
from tianzhou.protocol import bodies, sysflag
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.codes import RequestCode, ResponseCode

COUNT = 200
BODY = b"x" * 5000
"""Of so many messages, which fill several log files of the small brokers of tests."""


async def send_mixed(peer: Peer, count: int = COUNT) -> None:
    """Ordinary messages with keys, a batch's worth of topics, delayed, timed and half messages."""
    for number in range(count):
        await sent_ok(peer, f"t{number % 5}", BODY, props={"KEYS": f"k{number}", "TAGS": "a"})
    await sent_ok(peer, "t0", b"late", props={"DELAY": "18"})
    await sent_ok(peer, "t0", b"timed", props={"TIMER_DELAY_SEC": "3600"})
    await sent_ok(
        peer, "t1", b"half", props={"TRAN_MSG": "true", "PGROUP": "g"},
        sys_flag=sysflag.TRANSACTION_PREPARED,
    )  # fmt: skip


def assert_equal(pair: Pair) -> None:
    assert log_bytes(pair.slave) == log_bytes(pair.master)
    assert queue_entries(pair.slave) == queue_entries(pair.master)
    assert pair.slave.store.index.item_count == pair.master.store.index.item_count


async def tables_follow(pair: Pair) -> None:
    """Wait until topics, groups and offsets are equal."""
    await eventually(lambda: pair.slave.topics.topics == pair.master.topics.topics, "topics")
    await eventually(lambda: pair.slave.groups.groups == pair.master.groups.groups, "groups")
    await eventually(lambda: pair.slave.offsets.by_key == pair.master.offsets.by_key, "offsets")


async def test_a_slave_has_the_masters_log_queues_and_tables(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair, peers(pair) as (master, _):
        await send_mixed(master)
        await pair.in_step()
        assert_equal(pair)
        pulled = await master.pull("readers", "t0", 0, 0, sys_flag=5, commit_offset=7)
        assert pulled.code == ResponseCode.SUCCESS
        await tables_follow(pair)
        assert pair.slave.offsets.by_key["t0@readers"] == {0: 7}


async def test_a_slave_that_was_away_catches_up_and_an_empty_one_gets_everything(
    tmp_path: Path,
) -> None:
    async with running_pair(tmp_path) as pair, peer_of(pair.master.address) as master:
        await send_mixed(master, 50)
        await pair.in_step()
        await pair.stop_slave()
        await send_mixed(master)
        await pair.start_slave()
        await pair.in_step()
        assert_equal(pair)
        await pair.stop_slave()
        (tmp_path / "slave").rename(tmp_path / "old")
        await pair.start_slave()
        await pair.in_step()
        assert_equal(pair)


async def test_a_slave_follows_a_master_that_was_restarted(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await send_mixed(master, 20)
        await pair.in_step()
        await pair.stop_master()
        await pair.start_master()
        async with peer_of(pair.master.address) as master:
            await send_mixed(master, 20)
        await pair.in_step()
        assert_equal(pair)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_a_synchronous_master_acknowledges_what_the_slave_has(
    tmp_path: Path, flush: str
) -> None:
    async with (
        running_pair(tmp_path, brokerRole="SYNC_MASTER", flushDiskType=flush) as pair,
        peer_of(pair.master.address) as master,
    ):

        async def is_in_reach() -> bool:
            response = await master.send("t", b"probe")
            return response.code == ResponseCode.SUCCESS

        await eventually(is_in_reach, "SEND_OK")
        for number in range(COUNT):
            await sent_ok(master, "t", b"%d" % number)
            end = int(
                (await master.expect(RequestCode.GET_MAX_OFFSET, queue("t"))).fields["offset"]
            )
            assert pair.slave.store.max_offset("t", 0) == end
        await pair.stop_slave()

        async def is_out_of_reach() -> bool:
            response = await master.send("t", b"alone")
            return response.code == ResponseCode.SLAVE_NOT_AVAILABLE

        await eventually(is_out_of_reach, "SLAVE_NOT_AVAILABLE")
        await pair.start_slave()
        await eventually(is_in_reach, "SEND_OK again")
        await pair.in_step()
        assert_equal(pair)


def queue(topic: str, queue_id: int = 0) -> dict[str, str]:
    return {"topic": topic, "queueId": str(queue_id)}


async def test_a_slave_serves_reads_and_refuses_writes(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair, peers(pair) as (master, slave):
        await sent_ok(master, "t", b"first")
        await pair.in_step()
        await tables_follow(pair)
        assert bodies_in(await slave.pull("g", "t", 0, 0)) == [b"first"]
        refused = await slave.send("t", b"no")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert pair.slave.store.end_log_offset == pair.master.store.end_log_offset


async def test_an_empty_slave_tells_no_consumer_where_to_begin(tmp_path: Path) -> None:
    """A wrong offset would let the consumer skip messages, or get all of them again."""
    asked = {"consumerGroup": "readers"} | queue("t")
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"first")
            await sent_ok(master, "t", b"second")
            await master.pull("readers", "t", 0, 0, sys_flag=5, commit_offset=1)
            await pair.stop_slave()
        await pair.stop_master()
        shutil.rmtree(tmp_path / "slave")
        await pair.start_slave()
        async with peer_of(pair.slave.address) as slave:
            refused = await slave.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
            assert refused.code == ResponseCode.SYSTEM_BUSY
            assert "not copied the offsets" in (refused.remark or "")
        await pair.start_master()
        await pair.in_step()
        await tables_follow(pair)
        await pair.stop_master()
        for is_restarted in (False, True):
            if is_restarted:
                await pair.stop_slave()
                await pair.start_slave()
            async with peer_of(pair.slave.address) as slave:
                found = await slave.expect(RequestCode.QUERY_CONSUMER_OFFSET, asked)
                assert found.fields["offset"] == "1"
                new = await slave.ask(
                    RequestCode.QUERY_CONSUMER_OFFSET,
                    asked | {"consumerGroup": "new", "setZeroIfNotFound": "false"},
                )
                assert new.code == ResponseCode.QUERY_NOT_FOUND


async def test_a_parked_pull_at_a_slave_gets_the_next_message(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair, peers(pair) as (master, slave):
        await sent_ok(master, "t", b"first")
        await pair.in_step()
        await tables_follow(pair)

        async def pull() -> list[bytes]:
            return bodies_in(await slave.pull("g", "t", 0, 1, sys_flag=6, suspend_ms=30_000))

        waiting = asyncio.create_task(pull())
        await eventually(lambda: len(pair.slave.parked) > 0 or waiting.done(), "a parked pull")
        await sent_ok(master, "t", b"second")
        assert await waiting == [b"second"]


async def test_a_promoted_slave_is_the_master_with_everything(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await send_mixed(master)
            await pair.in_step()
            await tables_follow(pair)
        before = log_bytes(pair.master)
        await pair.stop_master()
        async with peer_of(pair.slave.address) as slave:
            fields = {"role": "ASYNC_MASTER", "force": "false"}
            await slave.expect(RequestCode.CHANGE_BROKER_ROLE, fields)
            assert pair.slave.settings.config.broker_role is BrokerRole.ASYNC_MASTER
            assert log_bytes(pair.slave)[: len(before)] == before
            await sent_ok(slave, "t0", b"after")
        # It stays the master after a restart.
        await pair.stop_slave()
        loaded = (tmp_path / "slave" / "b.properties").read_text()
        assert "brokerRole=ASYNC_MASTER" in loaded.replace(" ", "")


async def test_a_master_that_stops_leaves_nothing_behind(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"first")
            await pair.in_step()
            sends = [
                asyncio.create_task(master.send("t", b"%d" % number)) for number in range(2 * COUNT)
            ]
            await asyncio.gather(*sends)
            end = pair.master.store.end_log_offset
            await pair.stop_master()
        assert pair.slave.store.end_log_offset >= end


async def test_a_topic_made_just_before_the_loss_of_the_master_is_there_after_a_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages were acknowledged; a deleted topic does not come back."""
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            for topic in ("t", "deleted"):
                await sent_ok(master, topic, b"first", queue_id=3)
            await pair.in_step()
            await tables_follow(pair)
            await master.expect(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "deleted"})
            await tables_follow(pair)
            unread: list[tables.Table] = []

            async def lost(_: object, __: object, table: tables.Table, *___: object) -> None:
                unread.append(table)
                raise RemotingError("the connection is lost")

            def silent(*_: object) -> None: ...

            monkeypatch.setattr(tables, "read_table", lost)
            # Apache's masters announce no topics.
            monkeypatch.setattr(MasterSide, "announce", silent)
            await eventually(lambda: tables.Table.TOPICS in unread, "no table is read any more")
            await sent_ok(master, "new", b"acknowledged", queue_id=3)
            await pair.in_step()
        await pair.stop_master()
        assert pair.slave.topics.get("new") is None
        async with peer_of(pair.slave.address) as slave:
            fields = {"role": "ASYNC_MASTER", "force": "false"}
            await slave.expect(RequestCode.CHANGE_BROKER_ROLE, fields)
            assert bodies_in(await slave.pull("g", "new", 3, 0)) == [b"acknowledged"]
            refused = await slave.pull("g", "deleted", 3, 0)
            assert refused.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_queue_without_messages_in_the_log_goes_on_behind_its_consumers(
    tmp_path: Path,
) -> None:
    """A fresh slave gets no file that its master has deleted."""
    async with running_pair(tmp_path) as pair:
        await pair.stop_slave()
        async with peer_of(pair.master.address) as master:
            for _ in range(20):
                await sent_ok(master, "t", b"old")
            await master.expect(RequestCode.UPDATE_CONSUMER_OFFSET, committed("t", 20))
            for _ in range(5 * COUNT):
                await sent_ok(master, "other", BODY)
        pair.master.store.log.segments.remove_first(1)
        (tmp_path / "slave").rename(tmp_path / "removed")
        await pair.start_slave()
        await pair.in_step()
        await tables_follow(pair)
        assert pair.slave.store.max_offset("t", 0) == 0
        await pair.stop_master()
        async with peer_of(pair.slave.address) as slave:
            await slave.expect(RequestCode.CHANGE_BROKER_ROLE, {"role": "ASYNC_MASTER"})
            stored = await sent_ok(slave, "t", b"next")
            assert stored.fields["queueOffset"] == "20"
            assert bodies_in(await slave.pull("readers", "t", 0, 20)) == [b"next"]
        await pair.stop_slave()
        await pair.start_slave(brokerRole="ASYNC_MASTER", brokerId=0)
        assert pair.slave.store.max_offset("t", 0) == 21


def committed(topic: str, queue_offset: int) -> dict[str, str]:
    return queue(topic) | {"consumerGroup": "readers", "commitOffset": str(queue_offset)}


async def test_a_promotion_is_refused_while_the_master_lives(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair, peers(pair) as (master, slave):
        await sent_ok(master, "t", b"first")
        await pair.in_step()
        fields = {"role": "ASYNC_MASTER", "force": "false"}
        refused = await slave.ask(RequestCode.CHANGE_BROKER_ROLE, fields)
        assert refused.code != ResponseCode.SUCCESS
        assert "force" in (refused.remark or "")
        assert pair.slave.settings.config.is_slave


async def test_a_promotion_is_refused_without_nameservers_while_the_slave_follows(
    tmp_path: Path,
) -> None:
    async with running_pair(tmp_path) as pair:
        await pair.stop_slave()
        assert pair.master.replication is not None
        ha_address = pair.master.replication.advertised_address
        settings = SLAVE | {"haMasterAddress": ha_address}
        async with running_broker(tmp_path / "other", **settings) as slave:
            assert slave.replication is not None
            slave.replication.note_master(pair.master.address, ha_address)
            replication = slave.replication
            await eventually(lambda: replication.is_following, "the connection")
            async with peer_of(slave.address) as peer:
                fields = {"role": "ASYNC_MASTER", "force": "false"}
                refused = await peer.ask(RequestCode.CHANGE_BROKER_ROLE, fields)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "living master" in (refused.remark or "")
            assert slave.settings.config.is_slave


async def test_a_former_master_does_not_follow_a_promoted_slave_that_lacks_its_tail(
    tmp_path: Path,
) -> None:
    """With fixed roles nothing is truncated: the operator decides."""
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"both")
            await pair.in_step()
            await tables_follow(pair)
            await pair.stop_slave()
            await sent_ok(master, "t", b"only the master")
        await pair.stop_master()
        await pair.start_slave()
        async with peer_of(pair.slave.address) as slave:
            fields = {"role": "ASYNC_MASTER", "force": "true"}
            await slave.expect(RequestCode.CHANGE_BROKER_ROLE, fields)
            await sent_ok(slave, "t", b"only the new master")
        tail = pair.slave.store.end_log_offset
        async with running_broker(tmp_path / "master", namesrvAddr=pair.namesrv, **SLAVE) as old:
            replication = old.replication
            assert replication is not None

            def problem() -> str:
                master = replication.status().master
                return (master.problem or "") if master else ""

            await eventually(problem, "the reason")
            assert "equal up to" in problem(), problem()
            async with peer_of(old.address) as reader:
                pulled = await reader.pull("g", "t", 0, 0)
                assert bodies_in(pulled) == [b"both", b"only the master"]
            async with peer_of(pair.slave.address) as peer:
                shown = await peer.expect(RequestCode.GET_BROKER_HA_STATUS)
                status = bodies.decode(HARuntimeInfo, shown.body)
            (row,) = status.connections
            assert (row.in_sync, row.slave_ack_offset) == (False, 0)
            assert row.diff == tail - old.store.end_log_offset
            assert "equal up to" in (row.problem or "")
            new = pair.slave.replication
            assert new is not None
            assert new.status().connected_count == 0
        assert pair.slave.store.end_log_offset == tail


async def test_different_log_file_sizes_are_refused_with_both_sizes(tmp_path: Path) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"first")
        await pair.stop_slave()
        (tmp_path / "slave").rename(tmp_path / "other")
        await pair.start_slave(mappedFileSizeCommitLog=8 * 1024 * 1024)
        replication = pair.slave.replication
        assert replication is not None

        def problem() -> str:
            master = replication.status().master
            return (master.problem or "") if master else ""

        await eventually(problem, "the reason")
        assert str(8 * 1024 * 1024) in problem()
        assert str(4 * 1024 * 1024) in problem()
        assert pair.slave.store.end_log_offset == 0


async def test_a_slave_needs_a_broker_id(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brokerId"):
        async with running_broker(tmp_path, brokerRole="SLAVE"):
            pass


async def test_a_slave_that_is_its_own_master_says_so(tmp_path: Path) -> None:
    port = free_port(1)
    settings = SLAVE | {"listenPort": port, "haMasterAddress": f"{LOOPBACK}:{port + 1}"}
    async with running_broker(tmp_path, **settings) as broker:
        replication = broker.replication
        assert replication is not None

        def names_itself() -> bool:
            master = replication.status().master
            return master is not None and "to itself" in (master.problem or "")

        await eventually(names_itself, "the reason")


async def test_two_slaves_with_one_id_do_not_replace_each_other_for_ever(tmp_path: Path) -> None:
    """The later one follows, as after a replaced disk; the other is refused while it does."""
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"first")
        await pair.in_step()
        assert pair.master.replication is not None
        assert pair.slave.replication is not None
        ha_address = pair.master.replication.advertised_address

        def problem_of(broker: Broker) -> str:
            assert broker.replication is not None
            master = broker.replication.status().master
            return (master.problem or "") if master else ""

        def rows() -> list[tuple[str, bool]]:
            assert pair.master.replication is not None
            return sorted(
                (each.name, each.in_sync) for each in pair.master.replication.status().slaves
            )

        settings = SLAVE | {"namesrvAddr": pair.namesrv, "haMasterAddress": ha_address}
        async with running_broker(tmp_path / "other", **settings) as other:
            await eventually(lambda: problem_of(pair.slave), "the reason")
            await eventually(lambda: "brokerId=1" in problem_of(pair.slave), "the shared brokerId")
            assert other.replication is not None
            assert other.replication.is_following
            assert rows() == [("id:1", True), ("id:1, replaced", False)]
        # The master shows the refusal for a minute longer.
        first = pair.slave.replication
        await eventually(lambda: first.is_following, "the first slave again")
        await eventually(lambda: ("id:1", True) in rows(), "the first slave in sync again")


async def test_a_former_master_beside_a_promoted_slave_says_that_it_is_not_registered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_pair(tmp_path) as pair:
        async with peer_of(pair.master.address) as master:
            await sent_ok(master, "t", b"first")
        await pair.in_step()
        await tables_follow(pair)
        await pair.stop_master()
        async with peer_of(pair.slave.address) as slave:
            fields = {"role": "ASYNC_MASTER", "force": "true"}
            await slave.expect(RequestCode.CHANGE_BROKER_ROLE, fields)
        await eventually(lambda: pair.slave.registered_with, "the registration of the new master")
        await pair.start_master()
        assert not pair.master.registered_with
        assert any(
            "not registered" in each and "may be a former master" in each
            for each in caplog.messages
        ), caplog.messages


@pytest.mark.parametrize("origin", ["flag --set", "broker.properties:3"])
async def test_a_role_given_by_a_flag_has_to_be_changed_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, origin: str
) -> None:
    """The saved role would have no effect at the next start."""
    pairs = SMALL | SLAVE | {"storePathRootDir": tmp_path, "brokerConfigPath": tmp_path / "b"}
    given = [Given(key, str(value), origin, deliberate=True) for key, value in pairs.items()]
    broker = Broker(LiveSettings(load_broker_config(environ={}, flags=given)))
    await broker.start()
    try:
        await broker.change_role(BrokerRole.ASYNC_MASTER, 0)
    finally:
        await broker.stop()
    assert "brokerRole=ASYNC_MASTER" in (tmp_path / "b").read_text()
    warned = [each for each in caplog.messages if "given by flag --set" in each]
    assert len(warned) == (origin == "flag --set")
