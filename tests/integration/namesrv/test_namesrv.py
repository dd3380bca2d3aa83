"""The nameserver over real sockets: every request code, and changes of brokers and settings."""

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.namesrv import (
    OLD_VERSION,
    VERSION_5,
    Asker,
    Broker,
    asking,
    broker_5x,
    eventually,
    namesrv,
)

from tianzhou.namesrv.dispatch import HANDLERS
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.route import (
    ClusterInfo,
    GetBrokerMemberGroupBody,
    QueueData,
    TopicQueueMappingInfo,
    TopicRouteData,
)
from tianzhou.protocol.bodies.topics import DataVersion, KVTable, TopicList
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.server import Server

ORDERS = {"topic": "orders"}


async def topics(asker: Asker, code: RequestCode, **fields: str) -> list[str]:
    answer = await asker.get(code, fields)
    return sorted(bodies.decode(TopicList, answer.body).topics)


# -- routes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", list(HeaderEncoding))
async def test_a_route_is_answered_in_the_encoding_of_its_query(
    tmp_path: Path, encoding: HeaderEncoding
) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ORDERS, encoding=encoding)
        assert (answer.code, answer.encoding) == (ResponseCode.SUCCESS, encoding)
        assert json.loads(answer.body) == {
            "brokerDatas": [
                {
                    "brokerAddrs": {"0": "127.0.0.1:10911"},
                    "brokerName": "broker-a",
                    "cluster": "DefaultCluster",
                    "enableActingMaster": False,
                }
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": "broker-a",
                    "perm": 6,
                    "readQueueNums": 4,
                    "topicSysFlag": 0,
                    "writeQueueNums": 4,
                }
            ],
        }


async def test_old_clients_get_fastjsons_dialect_unless_they_ask_for_standard_json(
    tmp_path: Path,
) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        old = await asker.ask(code, ORDERS, version=OLD_VERSION)
        assert b'"brokerAddrs":{0:"127.0.0.1:10911"}' in old.body
        asked = ORDERS | {"acceptStandardJsonOnly": "true"}
        standard = await asker.ask(code, asked, version=OLD_VERSION)
        assert b'"brokerAddrs":{"0":"127.0.0.1:10911"}' in standard.body
        assert (await asker.ask(code, ORDERS)).body == standard.body


async def test_an_unknown_topic_is_answered_as_rocketmq_does(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ORDERS)
        assert answer.code == ResponseCode.TOPIC_NOT_EXIST
        assert (answer.remark or "").startswith(
            "No topic route info in name server for the topic: orders\nSee "
        )


async def test_a_query_without_topic_is_rejected_and_the_connection_stays_usable(
    tmp_path: Path,
) -> None:
    async with namesrv(tmp_path) as asker:
        answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "'topic'" in (answer.remark or "")
        assert await asker.route("orders") is None


async def test_an_unknown_code_is_answered_as_rocketmq_does(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        answer = await asker.ask(RequestCode.SEND_MESSAGE)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 10 not supported"


@pytest.mark.parametrize("code", sorted(HANDLERS))
async def test_an_empty_request_does_not_harm_the_server(tmp_path: Path, code: RequestCode) -> None:
    async with namesrv(tmp_path) as asker:
        await asker.ask(code, None)
        await asker.ask(code, {"namespace": "", "key": "", "topic": ""}, b"\xff{")
        await Broker().register(asker)
        assert await asker.route("orders") is not None


async def test_route_queries_can_be_rejected_until_brokers_have_registered(tmp_path: Path) -> None:
    now_ms = [1_000_000]
    settings = {"needWaitForService": "true", "waitSecondsForService": 45}
    async with namesrv(tmp_path, settings, clock=lambda: now_ms[0]) as asker:
        await Broker().register(asker)
        answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ORDERS)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "name server not ready",
        )
        now_ms[0] += 45_000
        assert await asker.route("orders") is not None


async def test_a_client_in_zone_mode_sees_its_zone_in_the_old_dialect(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker(more={"__ZONE_NAME": "north"}).register(asker)
        await Broker(name="broker-b", addr="127.0.0.1:2", more={"__ZONE_NAME": "south"}).register(
            asker
        )
        zone = ORDERS | {"__ZONE_MODE": "true", "__ZONE_NAME": "North"}
        answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, zone)
        route = bodies.decode(TopicRouteData, answer.body)
        assert [each.broker_name for each in route.brokers] == ["broker-a"]
        assert b"{0:" in answer.body
        for fields in (zone | {"__ZONE_MODE": "false"}, zone | {"__ZONE_NAME": " "}):
            answer = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ORDERS | fields)
            assert len(bodies.decode(TopicRouteData, answer.body).brokers) == 2
        unknown = await asker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, zone | {"topic": "x"})
        assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


# -- registration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("version", [OLD_VERSION, VERSION_5])
async def test_registrations_of_every_form_are_read(
    tmp_path: Path, compressed: bool, version: int
) -> None:
    mapping = TopicQueueMappingInfo(
        topic="orders", queue_count=4, broker_name="broker-a", epoch=7, current_ids={0: 0}
    )
    mappings = {"orders": mapping} if version == VERSION_5 else None
    broker = Broker(compressed=compressed, version=version, mappings=mappings)
    async with namesrv(tmp_path) as asker:
        answer = await broker.register(asker)
        assert (answer.code, answer.fields, answer.body) == (ResponseCode.SUCCESS, {}, b"")
        route = await asker.route("orders")
        assert route is not None
        assert [queue.read_queue_count for queue in route.queues] == [4]
        assert (route.mappings or None) == ({"broker-a": mapping} if mappings else None)


async def test_a_slave_gets_the_address_of_its_master(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        answer = await Broker(broker_id=1, addr="127.0.0.1:2").register(asker)
        assert answer.fields == {
            "masterAddr": "127.0.0.1:10911",
            "haServerAddr": "127.0.0.1:10911-ha",
        }


async def test_a_broker_gets_the_order_configuration_if_there_is_one(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        pair = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}
        await asker.get(RequestCode.PUT_KV_CONFIG, pair)
        for _ in range(2):  # The second registration is one that has not changed.
            answer = await Broker().register(asker)
            assert bodies.decode(KVTable, answer.body).table == {"orders": "broker-a:4"}
        off = b"returnOrderTopicConfigToBroker=false"
        await asker.get(RequestCode.UPDATE_NAMESRV_CONFIG, body=off)
        assert (await Broker().register(asker)).body == b""


async def test_a_damaged_registration_is_rejected_and_the_old_one_stays(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        broker = Broker()
        await broker.register(asker)
        broker.more = {"bodyCrc32": "12345"}
        answer = await broker.register(asker)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")
        for compressed in (False, True):
            broker = Broker(compressed=compressed)
            answer = await broker.register(asker, b"\x00\xffnonsense")
            assert answer.code == ResponseCode.SYSTEM_ERROR
        assert await asker.route("orders") is not None


async def test_a_first_registration_of_a_single_topic_is_refused(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        answer = await Broker(topics={"orders": 6}).register(asker)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "register broker failed",
        )
        assert await asker.route("orders") is None


async def test_a_broker_can_query_whether_its_data_version_has_changed(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        broker = Broker()
        body = bodies.encode(broker.data_version())
        code = RequestCode.QUERY_DATA_VERSION
        unknown = await asker.get(code, broker.identity(), body)
        assert (unknown.fields, unknown.body) == ({"changed": "true"}, b"")
        await broker.register(asker)
        same = await asker.get(code, broker.identity(), body)
        assert same.fields == {"changed": "false"}
        assert bodies.decode(DataVersion, same.body) == broker.data_version()
        newer = bodies.encode(DataVersion(timestamp=1_700_000_000_000, counter=2))
        assert (await asker.get(code, broker.identity(), newer)).fields == {"changed": "true"}


async def test_topic_changes_of_a_broker_are_in_the_next_route(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        assert await asker.route("payments") is None
        before = await asker.route("orders")
        changed = Broker(topics={"orders": 4, "payments": 6}, counter=2)
        await changed.register(asker)
        after = await asker.route("orders")
        assert before is not None
        assert after is not None
        assert [queue.perm for queue in before.queues + after.queues] == [6, 4]
        assert await asker.route("payments") is not None


async def test_topics_that_a_broker_no_longer_lists_can_be_deleted(tmp_path: Path) -> None:
    async with namesrv(tmp_path, {"deleteTopicWithBrokerRegistration": "true"}) as asker:
        await Broker().register(asker)
        await Broker(topics={"a": 6, "b": 6}, counter=2).register(asker)
        assert await topics(asker, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == ["a", "b"]


# -- brokers that leave ---------------------------------------------------------------------------


async def test_an_unregistered_broker_is_removed(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        broker = Broker()
        await broker.register(asker)
        await asker.get(RequestCode.UNREGISTER_BROKER, broker.identity())
        assert await asker.route("orders") is None


async def test_a_broker_is_removed_when_its_connection_is_closed(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        async with asking(asker.address) as broker_side:
            await Broker().register(broker_side)
            assert await asker.route("orders") is not None
        await asker.until_no_route("orders")


async def test_a_broker_that_comes_back_survives_the_end_of_its_old_connection(
    tmp_path: Path,
) -> None:
    async with namesrv(tmp_path) as asker, asking(asker.address) as new_connection:
        async with asking(asker.address) as old_connection, asking(asker.address) as other:
            await Broker().register(old_connection)
            await Broker().register(new_connection)
            await Broker(name="broker-z", addr="127.0.0.1:9", topics={"z": 6, "y": 6}).register(
                other
            )
        # Both are closed; the removed broker of one shows that the server has noticed.
        await asker.until_no_route("z")
        assert await asker.route("orders") is not None


async def test_silent_brokers_are_dropped_unless_they_send_heartbeats(tmp_path: Path) -> None:
    now_ms = [1_000_000]
    async with (
        namesrv(tmp_path, clock=lambda: now_ms[0]) as asker,
        asking(asker.address) as silent_side,
    ):
        silent = Broker(topics={"silent": 6, "a": 6})
        beating = Broker(name="broker-b", addr="127.0.0.1:2", topics={"beating": 6, "b": 6})
        await silent.register(silent_side)
        await beating.register(asker)
        connection = await silent_side.client.connect(silent_side.address)
        now_ms[0] += 100_000
        await asker.get(RequestCode.BROKER_HEARTBEAT, beating.identity())
        now_ms[0] += 20_001
        await asker.until_no_route("silent")
        assert await asker.route("beating") is not None
        await eventually(lambda: connection.closed, lambda: "the silent broker is still connected")


async def test_a_5_x_broker_sends_its_own_time_out(tmp_path: Path) -> None:
    now_ms = [1_000_000]
    async with (
        namesrv(tmp_path, clock=lambda: now_ms[0]) as asker,
        asking(asker.address) as broker_side,
    ):
        await Broker(more=broker_5x(), version=VERSION_5).register(broker_side)
        now_ms[0] += 10_001
        await asker.until_no_route("orders")


async def test_the_brokers_of_a_group_are_notified_when_its_lowest_id_changes(
    tmp_path: Path,
) -> None:
    notices: list[Command] = []

    def receive(_: Connection, request: Command) -> None:
        notices.append(request)

    slave = Server(receive)
    host, port = await slave.listen("127.0.0.1", 0)
    try:
        settings = {"notifyMinBrokerIdChanged": "true", "supportActingMaster": "true"}
        async with namesrv(tmp_path, settings) as asker:
            slave_addr = f"{host}:{port}"
            await Broker(broker_id=1, addr=slave_addr, more=broker_5x()).register(asker)
            async with asking(asker.address) as master_side:
                await Broker(more=broker_5x()).register(master_side)
                await eventually(lambda: len(notices) == 1, lambda: notices)
            await eventually(lambda: len(notices) == 2, lambda: notices)
            route = await asker.route("orders")
    finally:
        await slave.close()
    assert [each.code for each in notices] == [RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE] * 2
    assert all(each.is_oneway for each in notices)
    assert notices[0].fields == {
        "minBrokerId": "0",
        "minBrokerAddr": "127.0.0.1:10911",
        "haBrokerAddr": "127.0.0.1:10911-ha",
    }
    assert notices[1].fields == {
        "minBrokerId": "1",
        "minBrokerAddr": slave_addr,
        "offlineBrokerAddr": "127.0.0.1:10911",
    }
    assert route is not None
    assert (route.queues[0].perm, route.brokers[0].addresses) == (4, {0: slave_addr})


async def test_a_broker_that_cannot_be_notified_does_not_affect_others(tmp_path: Path) -> None:
    async with namesrv(tmp_path, {"notifyMinBrokerIdChanged": "true"}) as asker:
        for addr in ("127.0.0.1:1", "no address"):
            await Broker(broker_id=1, addr=addr, more=broker_5x()).register(asker)
            master = Broker(more=broker_5x())
            await master.register(asker)
            await asker.get(RequestCode.UNREGISTER_BROKER, master.identity())
        assert await asker.route("orders") is not None


# -- permissions and topics -----------------------------------------------------------------------


async def test_write_permission_can_be_wiped_and_given_back(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        name = {"brokerName": "broker-a"}
        wiped = await asker.get(RequestCode.WIPE_WRITE_PERM_OF_BROKER, name)
        assert wiped.fields == {"wipeTopicCount": "2"}
        route = await asker.route("orders")
        assert route is not None
        assert route.queues[0].perm == 4
        added = await asker.get(RequestCode.ADD_WRITE_PERM_OF_BROKER, name)
        assert added.fields == {"addTopicCount": "2"}
        route = await asker.route("orders")
        assert route is not None
        assert route.queues[0].perm == 6
        nobody = await asker.get(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "x"})
        assert nobody.fields == {"wipeTopicCount": "0"}


async def test_a_single_topic_can_be_added_and_deleted(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        route = TopicRouteData(queues=[QueueData(broker_name="broker-a", perm=6)])
        single = {"topic": "single"}
        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        await asker.get(code, single, bodies.encode(route))
        assert await asker.route("single") is not None
        await asker.get(RequestCode.DELETE_TOPIC_IN_NAMESRV, single | {"clusterName": "other"})
        assert await asker.route("single") is not None
        await asker.get(RequestCode.DELETE_TOPIC_IN_NAMESRV, single)
        assert await asker.route("single") is None
        stranger = TopicRouteData(queues=[QueueData(broker_name="stranger", perm=6)])
        await asker.get(code, single, bodies.encode(stranger))
        assert await asker.route("single") is None


async def test_clusters_brokers_and_members(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        await Broker(broker_id=1, addr="127.0.0.1:2").register(asker)
        answer = await asker.get(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = bodies.decode(ClusterInfo, answer.body)
        assert info.clusters == {"DefaultCluster": ["broker-a"]}
        assert info.brokers["broker-a"].addresses == {0: "127.0.0.1:10911", 1: "127.0.0.1:2"}
        fields = {"clusterName": "DefaultCluster", "brokerName": "broker-a"}
        answer = await asker.get(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
        group = bodies.decode(GetBrokerMemberGroupBody, answer.body).broker_member_group
        assert group is not None
        assert (group.cluster, group.broker_name, group.addresses) == (
            "DefaultCluster",
            "broker-a",
            {0: "127.0.0.1:10911", 1: "127.0.0.1:2"},
        )


async def test_lists_of_topics(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker(topics={"a": 6, "b": 6}).register(asker)
        other = Broker(name="broker-b", addr="127.0.0.1:2", cluster="west", topics={"b": 6, "c": 6})
        await other.register(asker)
        all_topics = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER
        assert await topics(asker, all_topics) == ["a", "b", "c"]
        by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
        assert await topics(asker, by_cluster, cluster="west") == ["b", "c"]
        assert await topics(asker, by_cluster, cluster="nowhere") == []
        system = await asker.get(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        listed = bodies.decode(TopicList, system.body)
        assert sorted(listed.topics) == ["DefaultCluster", "broker-a", "broker-b", "west"]
        assert listed.broker_addr == "127.0.0.1:10911"


async def test_unit_topics_by_their_system_flag(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        for flag in range(4):
            queue = QueueData(broker_name="broker-a", perm=6, topic_sys_flag=flag)
            body = bodies.encode(TopicRouteData(queues=[queue]))
            await asker.get(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": f"f{flag}"}, body)
        assert await topics(asker, RequestCode.GET_UNIT_TOPIC_LIST) == ["f1", "f3"]
        assert await topics(asker, RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST) == ["f2", "f3"]
        assert await topics(asker, RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == ["f2"]


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("enableAllTopicList", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        ("enableTopicList", RequestCode.GET_TOPICS_BY_CLUSTER),
        ("enableTopicList", RequestCode.GET_UNIT_TOPIC_LIST),
        ("enableTopicList", RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST),
        ("enableTopicList", RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST),
    ],
)
async def test_lists_of_topics_can_be_switched_off(
    tmp_path: Path, setting: str, code: RequestCode
) -> None:
    async with namesrv(tmp_path, {setting: "false"}) as asker:
        answer = await asker.ask(code, {"cluster": "x"})
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")


# -- KV configuration -----------------------------------------------------------------------------


async def test_kv_pairs_are_put_got_listed_and_deleted(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        pair = {"namespace": "ns", "key": "k"}
        missing = await asker.ask(RequestCode.GET_KV_CONFIG, pair)
        assert (missing.code, missing.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "No config item, Namespace: ns Key: k",
        )
        empty = await asker.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, pair)
        assert (empty.code, empty.remark) == (
            ResponseCode.QUERY_NOT_FOUND,
            "No config item, Namespace: ns",
        )
        await asker.get(RequestCode.PUT_KV_CONFIG, pair | {"value": "天舟"})
        assert (await asker.get(RequestCode.GET_KV_CONFIG, pair)).fields == {"value": "天舟"}
        listed = await asker.get(RequestCode.GET_KVLIST_BY_NAMESPACE, pair)
        assert json.loads(listed.body) == {"table": {"k": "天舟"}}
        assert json.loads((tmp_path / "kvConfig.json").read_bytes()) == {
            "configTable": {"ns": {"k": "天舟"}}
        }
        await asker.get(RequestCode.DELETE_KV_CONFIG, pair)
        gone = await asker.ask(RequestCode.GET_KV_CONFIG, pair)
        assert gone.code == ResponseCode.QUERY_NOT_FOUND


async def test_kv_pairs_survive_a_restart(tmp_path: Path) -> None:
    pair = {"namespace": "ns", "key": "k"}
    async with namesrv(tmp_path) as asker:
        await asker.get(RequestCode.PUT_KV_CONFIG, pair | {"value": "v"})
    async with namesrv(tmp_path) as asker:
        assert (await asker.get(RequestCode.GET_KV_CONFIG, pair)).fields == {"value": "v"}


async def test_a_change_that_cannot_be_saved_is_an_error_response(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    async with namesrv(tmp_path, {"kvConfigPath": folder / "kvConfig.json"}) as asker:
        folder.write_text("a file where a folder should be")
        pair = {"namespace": "ns", "key": "k", "value": "v"}
        answer = await asker.ask(RequestCode.PUT_KV_CONFIG, pair)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "kvConfig.json cannot be saved" in (answer.remark or "")
        gone = await asker.ask(RequestCode.GET_KV_CONFIG, pair)
        assert gone.code == ResponseCode.QUERY_NOT_FOUND


async def test_the_order_of_a_topic_is_part_of_its_route_if_enabled(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await Broker().register(asker)
        pair = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "broker-a:4"}
        await asker.get(RequestCode.PUT_KV_CONFIG, pair)

        async def order() -> str | None:
            route = await asker.route("orders")
            assert route is not None
            return route.order_conf

        assert await order() is None
        await asker.get(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true")
        assert await order() == "broker-a:4"
        await asker.get(RequestCode.PUT_KV_CONFIG, pair | {"value": "broker-a:8"})
        assert await order() == "broker-a:8"
        await asker.get(RequestCode.DELETE_KV_CONFIG, pair)
        assert await order() is None


# -- settings by request --------------------------------------------------------------------------


async def settings_of(asker: Asker) -> dict[str, str]:
    answer = await asker.get(RequestCode.GET_NAMESRV_CONFIG)
    lines = answer.body.decode().splitlines()
    assert lines == sorted(lines)
    return dict(line.split("=", 1) for line in lines)


async def test_settings_are_shown_changed_and_saved(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text("# mine\nenableTopicList=true\n")
    async with namesrv(tmp_path) as asker:
        before = await settings_of(asker)
        assert (before["listenPort"], before["enableTopicList"]) == ("0", "true")
        body = b"enableTopicList=false\nwaitSecondsForService=7\nnobodyKnows=1\n"
        await asker.get(RequestCode.UPDATE_NAMESRV_CONFIG, body=body)
        after = await settings_of(asker)
        changed = {"enableTopicList": "false", "waitSecondsForService": "7"}
        assert after == before | changed
    assert file.read_text() == "# mine\nenableTopicList=false\nwaitSecondsForService=7\n"


async def test_an_empty_update_succeeds(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:
        await asker.get(RequestCode.UPDATE_NAMESRV_CONFIG)
        assert not (tmp_path / "namesrv.properties").exists()


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"kvConfigPath=/x", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        (b"rocketmqHome=/x", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        (b"enableTopicList=\\u00", ResponseCode.SYSTEM_ERROR, "string2Properties error"),
        (b"listenPort=ninety", ResponseCode.SYSTEM_ERROR, "'ninety' is not a whole number"),
        (b"enableTopicList=maybe", ResponseCode.SYSTEM_ERROR, "'maybe' is not true or false"),
    ],
)
async def test_rejected_updates_change_nothing(
    tmp_path: Path, body: bytes, code: ResponseCode, remark: str
) -> None:
    async with namesrv(tmp_path) as asker:
        before = await settings_of(asker)
        answer = await asker.ask(
            RequestCode.UPDATE_NAMESRV_CONFIG, body=b"waitSecondsForService=1\n" + body
        )
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert await settings_of(asker) == before
        assert not (tmp_path / "namesrv.properties").exists()


async def test_settings_that_cannot_be_saved_have_no_effect(tmp_path: Path) -> None:
    store = tmp_path / "plain file" / "namesrv.properties"
    (tmp_path / "plain file").write_text("")
    async with namesrv(tmp_path, {"configStorePath": store}) as asker:
        answer = await asker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=false")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "cannot be saved" in (answer.remark or "")
        assert (await settings_of(asker))["enableTopicList"] == "true"


# -- many at once ---------------------------------------------------------------------------------


async def test_two_nameservers_respond_alike_and_do_not_share_registrations(tmp_path: Path) -> None:
    async with namesrv(tmp_path / "1") as one, namesrv(tmp_path / "2") as other:
        brokers = [Broker(name=f"broker-{n}", addr=f"127.0.0.1:{n}") for n in range(1, 4)]
        for broker in brokers:
            await broker.register(one)
        assert await other.route("orders") is None
        for broker in reversed(brokers):
            await broker.register(other)
        code = RequestCode.GET_ROUTEINFO_BY_TOPIC
        assert (await one.ask(code, ORDERS)).body == (await other.ask(code, ORDERS)).body


async def test_many_brokers_register_query_and_leave(tmp_path: Path) -> None:
    async with namesrv(tmp_path) as asker:

        async def live(number: int) -> None:
            async with asking(asker.address) as side:
                mine = {f"topic-{number}": 6, "shared": 6}
                broker = Broker(name=f"b{number}", addr=f"127.0.0.1:{number}", topics=mine)
                for counter in range(1, 4):
                    broker.counter = counter
                    assert (await broker.register(side)).code == ResponseCode.SUCCESS
                    route = await side.route("shared")
                    assert route is not None
                    assert f"b{number}" in {each.broker_name for each in route.brokers}

        await asyncio.gather(*(live(number) for number in range(40)))
        await asker.until_no_route("shared")
        assert await topics(asker, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == []
