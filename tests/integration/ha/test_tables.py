"""The tables of a master, read by slaves of RocketMQ and of Tianzhou over real sockets."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import SMALL, Cluster, Peer, cluster, eventually
from tests.support.remoting import serving

from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.handlers.admin import tables as master_tables
from tianzhou.broker.replication.tables import TableCopies
from tianzhou.broker.scheduled.service import ScheduledMessages
from tianzhou.broker.state import BrokerState
from tianzhou.broker.storing.durability import Durability
from tianzhou.clock import steady_ms, wall_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given
from tianzhou.errors import TianzhouError
from tianzhou.ha import tables
from tianzhou.limits import HA_CHANGES_MAX
from tianzhou.protocol import fastjson
from tianzhou.protocol.bodies import decode, encode
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.offsets import ConsumerOffsetTable
from tianzhou.protocol.bodies.queues import SetMessageRequestModeBody
from tianzhou.protocol.bodies.stats import TimerMetricsTable
from tianzhou.protocol.bodies.topics import KVTable, TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.client import Client
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import finish
from tianzhou.store.message_store import MessageStore

APACHE = Path(__file__).parents[2] / "unit" / "broker" / "tables" / "apache_tables"


# -- a slave ---------------------------------------------------------------------------------------


@dataclass
class SlaveLog:
    """The log of the slave, as far as tables know it."""

    end_log_offset: int = 0
    flushed_to: list[int] = field(default_factory=list[int])

    def flushed(self, log_offset: int) -> Future[None]:
        self.flushed_to.append(log_offset)
        done = Future[None]()
        done.set_result(None)
        return done


@dataclass
class Slave:
    """The tables of a slave in this test, and its log."""

    state: BrokerState
    scheduled: ScheduledMessages
    log: SlaveLog
    copies: TableCopies

    @property
    def waits_for(self) -> dict[str, int]:
        rows = self.copies.status()
        return {row.name: row.waits_for for row in rows if row.waits_for is not None}

    def reaches(self, end_log_offset: int) -> None:
        self.log.end_log_offset = end_log_offset


@contextmanager
def stored_tables(root: Path, **more: object) -> Generator[tuple[BrokerState, ScheduledMessages]]:
    pairs = SMALL | {"storePathRootDir": root} | more
    given = [Given(key, str(value), "test", deliberate=True) for key, value in pairs.items()]
    settings = LiveSettings[BrokerConfig](load_broker_config(environ={}, flags=given))
    store = MessageStore.open(settings.config)
    try:
        state = BrokerState(settings, wall_ms, steady_ms)
        durability = Durability(store, settings)
        scheduled = ScheduledMessages(settings, store, durability, state.topics, wall_ms)
        state.load()
        state.add_files(scheduled.encoders())
        yield state, scheduled
    finally:
        store.close()


@asynccontextmanager
async def slave_of(
    address: str, root: Path, *, is_ours: bool = True, log: SlaveLog | None = None
) -> AsyncGenerator[Slave]:
    """A slave whose log has everything, unless the test gives it another."""
    log = SlaveLog(2**62) if log is None else log
    client = Client()
    with stored_tables(root) as (state, scheduled):
        copies = TableCopies(
            state=state, scheduled=scheduled, store=log, client=client,
            master_address=lambda: address, is_ours=lambda: is_ours,
        )  # fmt: skip
        copies.connected()
        running = asyncio.create_task(copies.run())
        try:
            yield Slave(state, scheduled, log, copies)
        finally:
            running.cancel()
            await asyncio.wait((running,))
            await scheduled.stop()
            await state.close()
            await client.close()


async def fill(it: Cluster) -> None:
    """Something in every table of a master."""
    it.broker.topics.put(TopicConfig(topic_name="t", perm=4))
    it.broker.groups.put(SubscriptionGroupConfig(group_name="g", broker_id=1))
    it.broker.groups.forbid("g", "t", forbidden=True)
    it.broker.offsets.commit("g", "t", 3, 77)
    mode = SetMessageRequestModeBody(topic="t", consumer_group="g", mode="POP")
    it.broker.modes.put("t", "g", mode)
    await it.peer.send("d", b"x", props={"DELAY": "1"})
    await it.peer.send("d", b"x", props={"TIMER_DELAY_SEC": "3600"})

    async def has_progress() -> bool:
        delays = (await it.peer.expect(RequestCode.GET_ALL_DELAY_OFFSET)).body
        check = (await it.peer.expect(RequestCode.GET_TIMER_CHECK_POINT)).body
        return b'"1": 1' in delays and check[16:24] == (1).to_bytes(8)

    await eventually(has_progress, "saved progress of delayed and timed messages")


FAST: dict[str, Any] = {
    "messageDelayLevel": "1s 1h", "flushDelayOffsetInterval": 10, "timerFlushIntervalMs": 10,
}  # fmt: skip


# -- between brokers of Tianzhou -------------------------------------------------------------------


async def test_a_slave_has_all_tables_of_its_master_and_saves_them(tmp_path: Path) -> None:
    async with cluster(tmp_path / "master", **FAST) as it:
        await fill(it)
        async with slave_of(it.broker.address, tmp_path / "slave") as slave:
            assert not slave.copies.is_complete
            await eventually(lambda: slave.copies.is_complete, "all tables applied")
            assert slave.state.topics.topics == it.broker.topics.topics
            assert slave.state.topics.data_version == it.broker.topics.data_version
            assert slave.state.groups.groups == it.broker.groups.groups
            assert slave.state.groups.is_forbidden("g", "t")
            assert slave.state.offsets.by_key == it.broker.offsets.by_key
            assert slave.state.modes.modes == it.broker.modes.modes
            assert slave.scheduled.delays.safe_offsets == {1: 1}
            assert slave.scheduled.timer is not None
            assert slave.scheduled.timer.check.queue_offset == 1
            await slave.copies.finish()
    with stored_tables(tmp_path / "slave") as (state, scheduled):
        assert state.topics.topics["t"].perm == 4
        assert state.groups.is_forbidden("g", "t")
        assert state.offsets.find("g", "t", 3) == 77
        assert state.modes.has("t", "g")
        assert scheduled.delays.safe_offsets == {1: 1}
        assert scheduled.timer is not None
        assert scheduled.timer.check.queue_offset == 1


async def test_changes_of_the_master_reach_the_slave(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave") as slave,
    ):
        it.broker.topics.put(TopicConfig(topic_name="old"))
        await eventually(lambda: slave.state.topics.get("old"), "the first topic")
        it.broker.topics.remove("old")
        it.broker.topics.put(TopicConfig(topic_name="new"))
        it.broker.offsets.commit("g", "t", 0, 5)
        await eventually(lambda: slave.state.topics.get("new"), "the second topic")
        assert slave.state.topics.get("old") is None
        await eventually(lambda: slave.state.offsets.find("g", "t", 0) == 5, "the offset")
        # They must not be in force for another topic of this name after a promotion.
        await finish(it.broker.offsets.remove_topic("t"))
        await eventually(lambda: "t@g" not in slave.state.offsets.by_key, "no offset")


async def test_a_table_ahead_of_the_log_waits(tmp_path: Path) -> None:
    log = SlaveLog(0)
    async with (
        cluster(tmp_path / "master", **FAST) as it,
        slave_of(it.broker.address, tmp_path / "slave", log=log) as slave,
    ):
        await eventually(lambda: slave.copies.is_complete, "the tables of an empty master")
        await fill(it)
        end = it.broker.store.end_log_offset
        wanted = {"topics", "offsets", "delays"}
        await eventually(lambda: wanted <= slave.waits_for.keys(), "tables that wait")
        assert max(slave.waits_for.values()) <= end
        slave.reaches(min(slave.waits_for.values()) - 1)
        await slave.copies.apply_ready()
        assert wanted <= slave.waits_for.keys()
        assert slave.scheduled.delays.safe_offsets == {}
        assert slave.state.topics.get("d") is None
        assert slave.state.offsets.find("g", "t", 3) == -1
        slave.reaches(end)
        await eventually(lambda: slave.scheduled.delays.safe_offsets == {1: 1}, "progress")
        await eventually(lambda: slave.state.topics.get("d"), "the topic")
        await eventually(lambda: slave.state.offsets.find("g", "t", 3) == 77, "the offset")
        assert log.flushed_to, "only what is on disk counts"


async def test_a_promotion_applies_what_the_log_allows_and_drops_the_rest(tmp_path: Path) -> None:
    log = SlaveLog(0)
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave", log=log) as slave,
    ):
        await eventually(lambda: slave.copies.is_complete, "the tables of an empty master")
        await it.peer.send("t", b"x")
        it.broker.offsets.commit("g", "t", 0, 1)
        await eventually(lambda: len(slave.waits_for) == 2, "topics and offsets that wait")
        await slave.copies.finish()
        assert slave.waits_for == {}
        assert slave.state.topics.get("t") is None
        await eventually(lambda: len(slave.waits_for) == 2, "topics and offsets that wait")
        slave.reaches(it.broker.store.end_log_offset)
        await slave.copies.finish()
        assert slave.state.topics.get("t") is not None
        assert slave.state.offsets.find("g", "t", 0) == 1
        assert slave.copies.is_complete


def announced(it: Cluster, topic: TopicConfig) -> bytes:
    """The line about a topic that the master has just put."""
    counter = it.broker.topics.data_version.counter
    change = tables.TableChange(table="topics", counter=counter, topic=topic)
    return tables.encode_change(change) + b"\n"


async def test_an_announced_topic_is_in_force_at_once_and_no_older_copy_takes_it_back(
    tmp_path: Path,
) -> None:
    log = SlaveLog(0)
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave", log=log) as slave,
    ):
        await eventually(lambda: slave.copies.is_complete, "the tables of an empty master")
        await it.peer.send("t", b"x")
        await eventually(lambda: "topics" in slave.waits_for, "a copy that waits")
        topic = TopicConfig(topic_name="new", read_queue_count=3, order=True)
        it.broker.topics.put(topic)
        slave.copies.announced(announced(it, topic))
        assert slave.state.topics.get("new") == topic
        await slave.copies.finish(it.broker.store.end_log_offset)
        assert slave.state.topics.get("t") is not None, "the older copy was applied"
        assert slave.state.topics.get("new") == topic
        it.broker.topics.remove("new")
        slave.copies.announced(tables.encode_change(tables.TableChange(table="topics", counter=0)))
        slave.reaches(2**62)
        await eventually(lambda: slave.state.topics.get("new") is None, "the removal")


async def test_an_older_copy_takes_back_only_the_oldest_of_too_many_announcements(
    tmp_path: Path,
) -> None:
    log = SlaveLog(0)
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave", log=log) as slave,
    ):
        await it.peer.send("t", b"x")
        await eventually(lambda: "topics" in slave.waits_for, "a copy that waits")
        for number in range(HA_CHANGES_MAX + 1):
            topic = TopicConfig(topic_name=f"t{number}")
            it.broker.topics.put(topic)
            slave.copies.announced(announced(it, topic))
        assert slave.state.topics.get("t0") is not None
        await slave.copies.finish(it.broker.store.end_log_offset)
        assert slave.state.topics.get("t0") is None
        assert slave.state.topics.get("t1") is not None
        assert slave.state.topics.get(f"t{HA_CHANGES_MAX}") is not None


async def test_an_announcement_is_followed_by_a_read_without_delay(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave") as slave,
    ):
        await eventually(lambda: slave.copies.is_complete, "the tables of an empty master")
        slave.copies._due_s.update(dict.fromkeys(tables.Table, 1e12))  # pyright: ignore[reportPrivateUsage] - no read is due
        it.broker.topics.put(TopicConfig(topic_name="t"))
        slave.copies.announced(announced(it, TopicConfig(topic_name="t")))
        await eventually(
            lambda: slave.state.topics.data_version == it.broker.topics.data_version,
            "the master's version",
        )


async def test_a_slave_that_takes_over_reads_all_tables_again_whatever_waits(
    tmp_path: Path,
) -> None:
    log = SlaveLog(0)
    async with (
        cluster(tmp_path / "master", **FAST) as it,
        slave_of(it.broker.address, tmp_path / "slave", log=log) as slave,
    ):
        await eventually(lambda: slave.copies.is_complete, "the tables of an empty master")
        await fill(it)
        await eventually(lambda: "offsets" in slave.waits_for, "offsets that wait")
        slave.copies._due_s.update(dict.fromkeys(tables.Table, 1e12))  # pyright: ignore[reportPrivateUsage] - no read is due
        it.broker.topics.put(TopicConfig(topic_name="last", read_queue_count=3))
        it.broker.offsets.commit("g", "t", 3, 79)
        it.broker.groups.put(SubscriptionGroupConfig(group_name="last"))
        await slave.copies.read_final()
        assert slave.state.topics.get("last") is None, "the log of the slave is not confirmed"
        await slave.copies.finish(it.broker.store.end_log_offset)
        assert slave.waits_for == {}
        assert slave.state.topics.topics == it.broker.topics.topics
        assert slave.state.groups.groups == it.broker.groups.groups
        assert slave.state.offsets.by_key == it.broker.offsets.by_key
        assert slave.state.modes.modes == it.broker.modes.modes
        assert slave.scheduled.delays.safe_offsets == {1: 1}
        assert slave.scheduled.timer is not None
        assert slave.scheduled.timer.check.queue_offset == 1


async def test_final_tables_of_a_master_that_is_gone_are_an_error(tmp_path: Path) -> None:
    async with cluster(tmp_path / "master") as it:
        address = it.broker.address
    async with slave_of(address, tmp_path / "slave") as slave:
        with pytest.raises(TianzhouError):
            await slave.copies.read_final()


async def test_what_the_slave_changes_itself_is_overwritten(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path / "master") as it,
        slave_of(it.broker.address, tmp_path / "slave") as slave,
    ):
        it.broker.offsets.commit("g", "t", 0, 5)
        await eventually(lambda: slave.state.offsets.find("g", "t", 0) == 5, "the offset")
        slave.state.offsets.commit("g", "t", 0, 99)
        slave.state.topics.put(TopicConfig(topic_name="own"))
        await eventually(lambda: slave.state.offsets.find("g", "t", 0) == 5, "the master's offset")
        await eventually(lambda: slave.state.topics.get("own") is None, "the master's topics")


async def test_unchanged_tables_have_no_body(tmp_path: Path) -> None:
    async with cluster(tmp_path, **FAST) as it:
        await fill(it)
        for table, code in tables._CODES.items():  # pyright: ignore[reportPrivateUsage] - the same codes
            first = await it.peer.expect(code, {"knownVersion": ""})
            assert first.body, table
            end = int(first.fields["masterEndOffset"])
            assert end == it.broker.store.end_log_offset
            known = {"knownVersion": first.fields["tableVersion"]}
            again = await it.peer.expect(code, known)
            assert (again.body, again.fields["tableVersion"]) == (b"", known["knownVersion"])
        it.broker.offsets.commit("g", "t", 3, 78)
        it.broker.offsets.commit("h", "u", 0, 1)
        known = {"knownVersion": (await it.peer.expect(43, {"knownVersion": ""})).fields[
            "tableVersion"
        ]}  # fmt: skip
        it.broker.offsets.commit("g", "t", 3, 79)
        changed = await it.peer.expect(RequestCode.GET_ALL_CONSUMER_OFFSET, known)
        assert decode(ConsumerOffsetTable, changed.body).offsets == {"t@g": {3: 79}}


async def test_tables_are_handed_out_when_what_they_claim_is_confirmed(tmp_path: Path) -> None:
    """R11: a switch may remove what is not confirmed, which a table must not claim."""
    async with cluster(tmp_path, **FAST) as it:
        await fill(it)
        store, durability = it.broker.store, it.broker.durability
        end = store.end_log_offset
        store.show_confirmed(end - 1)
        for table, code in tables._CODES.items():  # pyright: ignore[reportPrivateUsage] - the same codes
            asked = asyncio.create_task(it.peer.expect(code, {"knownVersion": ""}))
            # Other requests are answered meanwhile, on the same connection.
            await it.peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert not asked.done(), table
            store.confirm(end)
            durability.confirmed()
            answer = await asked
            assert (int(answer.fields["masterEndOffset"]), bool(answer.body)) == (end, True)
            store.show_confirmed(end - 1)
        # The stop waits for what is not confirmed.
        store.confirm(end)
        durability.confirmed()


async def test_a_table_that_is_not_confirmed_in_time_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(master_tables, "_CONFIRMED_S", 0.01)
    async with cluster(tmp_path / "master", **FAST) as it:
        await fill(it)
        store, durability = it.broker.store, it.broker.durability
        end = store.end_log_offset
        store.show_confirmed(end - 1)
        async with slave_of(it.broker.address, tmp_path / "slave") as slave:
            await eventually(
                lambda: all(
                    "not confirmed" in (row.problem or "") for row in slave.copies.status()
                ),
                "every table is refused",
            )
            assert slave.state.topics.get("t") is None
            store.confirm(end)
            durability.confirmed()
            await eventually(lambda: slave.copies.is_complete, "all tables applied")
            assert slave.state.topics.get("t") is not None


async def test_a_version_of_another_run_gets_the_whole_table(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        it.broker.offsets.commit("g", "t", 0, 5)
        for version in ("", "7.1", "x", "1.2.3", f"{it.broker.stats.started_ms}.x"):
            answer = await it.peer.expect(43, {"knownVersion": version})
            assert decode(ConsumerOffsetTable, answer.body).offsets == {"t@g": {0: 5}}, version


async def test_large_tables_are_read_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PAGE_ENTRIES", 50)
    monkeypatch.setattr(master_tables, "OFFSETS_PER_RESPONSE", 70)
    async with cluster(tmp_path / "master") as it:
        for number in range(430):
            it.broker.topics.put(TopicConfig(topic_name=f"t{number}"))
            it.broker.groups.put(SubscriptionGroupConfig(group_name=f"g{number}"))
            it.broker.groups.forbid(f"g{number}", "t0", forbidden=True)
            it.broker.offsets.commit(f"g{number}", "t0", 0, number)
        async with slave_of(it.broker.address, tmp_path / "slave") as slave:
            await eventually(lambda: slave.copies.is_complete, "all tables applied")
            assert slave.state.topics.topics == it.broker.topics.topics
            assert slave.state.groups.groups == it.broker.groups.groups
            assert slave.state.groups.forbidden == it.broker.groups.forbidden
            assert slave.state.offsets.by_key == it.broker.offsets.by_key


# -- slaves of RocketMQ ----------------------------------------------------------------------------


async def test_a_slave_of_rocketmq_gets_whole_tables_with_versions(tmp_path: Path) -> None:
    async with cluster(tmp_path, **FAST) as it:
        await fill(it)
        for code in (43, 45, 201, 21):
            answer = await it.peer.expect(code)
            assert "masterEndOffset" not in answer.fields
            version = json_of(answer)["dataVersion"]
            assert set(version) >= {"timestamp", "counter"}, code
            assert answer.ext_fields is None or "totalTopicNum" not in answer.ext_fields
        version = json_of(await it.peer.expect(43))["dataVersion"]
        assert version["timestamp"] == it.broker.stats.started_ms
        assert (await it.peer.expect(402)).body
        assert len((await it.peer.expect(60)).body) == 56
        metrics = await it.peer.expect(RequestCode.GET_TIMER_METRICS)
        assert json_of(metrics)["timingCount"] == {}
        assert decode(TimerMetricsTable, metrics.body).data_version.timestamp > 0
    async with cluster(tmp_path / "other", timerWheelEnable="false") as it:
        answer = await it.peer.ask(RequestCode.GET_TIMER_METRICS)
        assert (answer.code, "timerWheelEnable" in (answer.remark or "")) == (1, True)


def json_of(answer: Command) -> dict[str, Any]:
    return {str(name): value for name, value in fastjson.loads(answer.body).items()}


async def pages_of_5_5(peer: Peer, max_count: int) -> dict[str, TopicConfig]:
    """Read topics as 5.5.0 does, with its condition for the last page."""
    seen: dict[str, TopicConfig] = {}
    count, version = 0, ""
    while True:
        fields = {
            "topicSeq": str(count), "maxTopicNum": str(max_count), "dataVersion": version
        }  # fmt: skip
        answer = await peer.expect(RequestCode.GET_ALL_TOPIC_CONFIG, fields)
        page = decode(TopicConfigTable, answer.body)
        assert len(page.topics) <= max_count + 1
        seen |= page.topics
        count += len(page.topics)
        version = encode(page.data_version).decode()
        if count >= int(answer.fields["totalTopicNum"]) - 1:
            return seen


@pytest.mark.parametrize("max_count", [1, 4, 5, 7, 2000])
async def test_a_slave_of_5_5_reads_all_topics_in_pages(tmp_path: Path, max_count: int) -> None:
    async with cluster(tmp_path) as it:
        assert await pages_of_5_5(it.peer, max_count) == it.broker.topics.topics
        it.broker.topics.put(TopicConfig(topic_name="one more"))
        assert await pages_of_5_5(it.peer, max_count) == it.broker.topics.topics


async def test_pages_begin_again_when_the_table_has_changed(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        fields = {"topicSeq": "0", "maxTopicNum": "3", "dataVersion": ""}
        first = decode(TopicConfigTable, (await it.peer.expect(21, fields)).body)
        known = encode(first.data_version).decode()
        fields |= {"topicSeq": "3", "dataVersion": known}
        second = decode(TopicConfigTable, (await it.peer.expect(21, fields)).body)
        assert not first.topics.keys() & second.topics.keys()
        it.broker.topics.put(TopicConfig(topic_name="t"))
        again = decode(TopicConfigTable, (await it.peer.expect(21, fields)).body)
        assert again.topics.keys() == first.topics.keys()
        groups = {"groupSeq": "0", "maxGroupNum": "2", "dataVersion": ""}
        answer = await it.peer.expect(201, groups)
        assert int(answer.fields["totalGroupNum"]) == len(it.broker.groups.groups)


# -- masters that are RocketMQ's -------------------------------------------------------------------


class ApacheMaster:
    """Answers as a broker of RocketMQ; its tables are files that one has written."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.end = 5000
        self.requests: list[Command] = []
        self.bodies = {
            21: (APACHE / f"topics-{release}.json").read_bytes(),
            43: (APACHE / f"consumerOffset-{release}.json").read_bytes(),
            45: b'{"offsetTable":{3:10,1:2}}',
            201: (APACHE / f"subscriptionGroup-{release}.json").read_bytes(),
        }
        if release == "5.5.0":
            numbers = (1_700_000_000_000, 5, 9, 9)
            self.bodies[60] = b"".join(number.to_bytes(8) for number in numbers)
            self.bodies[402] = b'{"messageRequestModeMap":{}}'

    def handle(self, _: Connection, request: Command) -> Command:
        self.requests.append(request)
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            table = KVTable(table={"commitLogMaxOffset": str(self.end)})
            return Command(code=ResponseCode.SUCCESS, body=encode(table))
        body = self.bodies.get(request.code)
        if body is None:
            return Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark="not supported")
        return Command(code=ResponseCode.SUCCESS, body=body)


@pytest.mark.parametrize("release", ["4.9.7", "5.5.0"])
async def test_tables_of_a_rocketmq_master_are_applied(tmp_path: Path, release: str) -> None:
    master = ApacheMaster(release)
    async with (
        serving(master.handle) as (_, address),
        slave_of(address, tmp_path, is_ours=False) as slave,
    ):
        own = {name: slave.state.topics.topics[name] for name in slave.state.topics.system_names}
        await eventually(lambda: slave.copies.is_complete, "all tables applied")
        theirs = decode(TopicConfigTable, master.bodies[21])
        assert set(slave.state.topics.topics) == theirs.topics.keys() | own.keys()
        assert own.items() <= slave.state.topics.topics.items()
        assert slave.state.topics.data_version == theirs.data_version
        assert slave.state.groups.get("g1") is not None
        assert slave.scheduled.delays.safe_offsets == {1: 2, 3: 10}
        if release == "4.9.7":
            assert slave.state.offsets.find("g1", "Orders", 0) == 0
        else:
            assert slave.scheduled.timer is not None
            assert slave.scheduled.timer.check.queue_offset == 9
        assert all(row.is_applied and row.problem is None for row in slave.copies.status())
        assert not any("knownVersion" in request.fields for request in master.requests)


async def test_tables_of_a_rocketmq_master_wait_for_the_log_too(tmp_path: Path) -> None:
    master, log = ApacheMaster("4.9.7"), SlaveLog(4999)
    async with (
        serving(master.handle) as (_, address),
        slave_of(address, tmp_path, is_ours=False, log=log) as slave,
    ):
        await eventually(lambda: len(slave.waits_for) == 4, "four tables that wait")
        await slave.copies.apply_ready()
        assert set(slave.waits_for.values()) == {5000}
        assert slave.state.groups.get("g1") is None
        slave.reaches(5000)
        await eventually(lambda: slave.copies.is_complete, "all tables applied")


async def test_tables_of_a_broker_that_has_not_accepted_the_slave_are_not_read(
    tmp_path: Path,
) -> None:
    masters = [ApacheMaster("4.9.7"), ApacheMaster("4.9.7")]
    client = Client()
    async with (
        serving(masters[0].handle) as (_, first),
        serving(masters[1].handle) as (_, second),
    ):
        addresses = [first]
        with stored_tables(tmp_path / "slave") as (state, scheduled):
            copies = TableCopies(
                state=state, scheduled=scheduled, store=SlaveLog(2**62), client=client,
                master_address=lambda: addresses[-1], is_ours=lambda: False,
            )  # fmt: skip
            await copies.read_due()
            assert masters[0].requests == []
            copies.connected()
            await copies.read_due()
            await copies.apply_ready()
            assert copies.is_complete, "of the first master"
            addresses.append(second)
            await copies.read_due()
            assert masters[1].requests == []
            copies.connected()
            await copies.read_due()
            assert masters[1].requests
            assert not any(row.is_applied for row in copies.status()[:4])
            await copies.apply_ready()
            assert all(row.is_applied for row in copies.status())
            await scheduled.stop()
    await client.close()
