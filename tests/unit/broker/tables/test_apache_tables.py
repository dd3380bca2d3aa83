"""Topics, offsets and names: the rules, and the files of Apache's brokers."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tianzhou.broker import validation
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.broker.tables.saver import encode_table, load_table
from tianzhou.broker.tables.topics import TopicTable, check_queue_counts, system_topics
from tianzhou.errors import BodyError, RequestError
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.protocol.codes import ResponseCode
from tianzhou.remoting.scheduler import at_once

APACHE = Path(__file__).parent / "apache_tables"
CONFIG = BrokerConfig(broker_name="broker-a", default_topic_queue_nums=4)


def topic_table(config: BrokerConfig = CONFIG) -> TopicTable:
    return TopicTable(system_topics(config), lambda: 1000)


# -- topics ----------------------------------------------------------------------------------------


def test_every_broker_has_the_system_topics() -> None:
    table = topic_table()
    assert set(table.topics) == {
        "SELF_TEST_TOPIC", "TBW102", "BenchmarkTest", "DefaultCluster", "broker-a",
        "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX", "DefaultCluster_REPLY_TOPIC",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_wheel_timer",
    }  # fmt: skip
    template = table.get("TBW102")
    assert template is not None
    assert (template.perm, template.write_queue_count) == (7, 4)


def test_switches_of_the_system_topics() -> None:
    config = BrokerConfig(
        broker_name="b", auto_create_topic_enable=False, cluster_topic_enable=False,
        broker_topic_enable=False, trace_topic_enable=True,
    )  # fmt: skip
    table = topic_table(config)
    assert table.get("TBW102") is None
    assert table.topics["DefaultCluster"].perm == 1
    assert table.topics["b"].perm == 1
    assert table.get("RMQ_SYS_TRACE_TOPIC") is not None


@pytest.mark.parametrize(("wanted", "granted"), [(2, 2), (4, 4), (99, 4), (-1, 0)])
def test_an_automatic_topic_gets_at_most_the_queues_of_its_template(
    wanted: int, granted: int
) -> None:
    table = topic_table()
    made = table.create_from_template("new", "TBW102", wanted, auto_create=True)
    assert made is not None
    assert (made.read_queue_count, made.write_queue_count, made.perm) == (granted, granted, 6)
    assert table.get("new") == made
    assert table.data_version.counter == 1


def test_topic_is_not_created_without_a_template() -> None:
    table = topic_table()
    assert table.create_from_template("new", "TBW102", 4, auto_create=False) is None
    assert table.create_from_template("new", "nothing", 4, auto_create=True) is None
    assert table.create_from_template("new", "BenchmarkTest", 4, auto_create=True) is None
    assert table.get("new") is None
    assert table.data_version.counter == 0


def test_a_topic_that_a_stored_message_names_is_restored() -> None:
    table = topic_table()
    assert table.restore("t", 6, CONFIG)
    assert not table.restore("t", 60, CONFIG), "it is there"
    made = table.topics["t"]
    assert (made.read_queue_count, made.write_queue_count, made.perm) == (7, 7, 6)
    assert table.restore("%RETRY%g", 0, CONFIG)
    assert table.topics["%RETRY%g"].write_queue_count == 1


def test_without_automatic_creation_only_topics_of_groups_are_restored() -> None:
    config = BrokerConfig(broker_name="b", auto_create_topic_enable=False)
    table = topic_table(config)
    assert not table.restore("t", 0, config)
    assert table.restore("%DLQ%g", 0, config)
    assert table.get("t") is None


def test_only_a_change_increments_the_version_and_is_reported() -> None:
    changes: list[int] = []
    table = TopicTable([], lambda: 1000, lambda: changes.append(1))
    topic = TopicConfig(topic_name="t", read_queue_count=2, write_queue_count=2)
    assert table.put(topic)
    assert not table.put(topic)
    assert table.put(msgspec.structs.replace(topic, read_queue_count=1))
    table.mark_ordered({"t", "unknown"})
    table.mark_ordered({"t"})
    assert table.topics["t"].order
    assert table.remove("t")
    assert not table.remove("t")
    assert len(changes) == 4
    assert table.data_version.counter == 4


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_the_topics_of_an_apache_broker_are_loaded_and_saved(version: str) -> None:
    table = topic_table(BrokerConfig(broker_name="broker-a", default_topic_queue_nums=2))
    found = load_table(APACHE / f"topics-{version}.json", lambda found: found)
    assert found is not None
    table.load(found)
    orders, ordered = table.topics["Orders"], table.topics["Ordered_1"]
    assert (orders.read_queue_count, orders.write_queue_count, orders.perm) == (4, 8, 6)
    # 4.9 takes the order flag away again unless the nameserver lists the topic.
    assert (ordered.perm, ordered.order) == (4, version == "5.5.0")
    assert table.topics["TBW102"].write_queue_count == 2, "settings decide about system topics"
    again = msgspec.json.decode(encode_table(table.as_file()))
    assert again["dataVersion"] == found["dataVersion"]
    written = again["topicConfigTable"]
    expected = msgspec.convert(found["topicConfigTable"], dict[str, dict[str, object]])
    assert written["Orders"] == expected["Orders"]
    assert written["Ordered_1"] == expected["Ordered_1"]
    assert set(expected) <= set(written)


def test_unknown_keys_are_preserved_in_the_file() -> None:
    table = topic_table()
    table.load({"dataVersion": {"counter": 5}, "topicConfigTable": {}, "future": {"a": [1]}})
    assert table.as_file()["future"] == {"a": [1]}
    assert table.data_version.counter == 5


def test_an_invalid_table_changes_nothing() -> None:
    table = topic_table()
    before = dict(table.topics)
    with pytest.raises(BodyError, match="topics cannot be read"):
        table.load({"topicConfigTable": {"t": {"perm": "many"}}})
    assert table.topics == before


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (65_537, 1), (1, -4)])
def test_invalid_queue_counts_are_rejected(counts: tuple[int, int]) -> None:
    with pytest.raises(RequestError, match="it must be 1 to 2048"):
        check_queue_counts(*counts)


# -- groups ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_the_groups_of_an_apache_broker_are_loaded_and_saved(version: str) -> None:
    table = GroupTable(lambda: 1000)
    found = load_table(APACHE / f"subscriptionGroup-{version}.json", lambda found: found)
    assert found is not None
    table.load(found)
    group = table.get("g1")
    assert group is not None
    assert (group.consume_broadcast_enable, group.retry_max_times) == (False, 16)
    again = msgspec.json.decode(encode_table(table.as_file()))
    expected = msgspec.convert(found["subscriptionGroupTable"], dict[str, dict[str, object]])
    assert {name: again["subscriptionGroupTable"][name] for name in expected} == expected
    assert again["dataVersion"] == found["dataVersion"]
    assert again.get("forbiddenTable") == found.get("forbiddenTable")


def test_groups_are_created_when_allowed() -> None:
    changes: list[int] = []
    table = GroupTable(lambda: 1000, lambda: changes.append(1))
    assert table.find("new", auto_create=False) is None
    made = table.find("new", auto_create=True)
    assert made is not None
    assert table.find("new", auto_create=False) == made
    assert table.find("CID_RMQ_SYS_x", auto_create=False) is not None
    with pytest.raises(RequestError, match="illegal characters"):
        table.find("a b", auto_create=True)
    assert not table.put(made)
    assert table.remove("new")
    assert not table.remove("new")
    assert len(changes) == 3
    with pytest.raises(BodyError, match="groups cannot be read"):
        table.load({"subscriptionGroupTable": {"g": {"retryMaxTimes": "often"}}})


# -- offsets ---------------------------------------------------------------------------------------


def test_offsets_are_by_topic_group_and_queue() -> None:
    table = OffsetTable()
    assert table.find("g", "t", 0) == NOT_FOUND
    assert table.commit("g", "t", 0, 5) is None
    assert table.commit("g", "t", 1, 7) is None
    assert table.commit("h", "t", 0, 1) is None
    assert (table.find("g", "t", 0), table.find("g", "t", 2)) == (5, NOT_FOUND)
    assert table.of_topic_and_group("t", "g") == {0: 5, 1: 7}
    assert at_once(table.topics_of("g")) == {"t"}
    assert at_once(table.groups_of("t")) == {"g", "h"}


def test_going_back_is_allowed_and_reported() -> None:
    table = OffsetTable()
    table.commit("g", "t", 0, 5)
    assert table.commit("g", "t", 0, 3) == 5
    assert table.find("g", "t", 0) == 3


def test_groups_and_topics_can_be_removed_and_copied() -> None:
    changes: list[int] = []
    table = OffsetTable(lambda: changes.append(1))
    table.commit("g", "t", 0, 5)
    table.commit("g", "t", 0, 5)
    assert len(changes) == 1, "the same offset again is no change"
    table.copy("g", "h", "t")
    table.copy("nobody", "x", "t")
    table.commit("h", "u", 0, 2)
    at_once(table.remove_group("g"))
    assert at_once(table.groups_of("t")) == {"h"}
    at_once(table.remove_topic("t"))
    assert at_once(table.topics_of("h")) == {"u"}
    count = len(changes)
    at_once(table.remove_topic("t"))
    assert len(changes) == count


def test_the_offsets_of_apache_brokers_are_loaded() -> None:
    table = OffsetTable()
    found = load_table(APACHE / "consumerOffset-4.9.7.json", lambda found: found)
    assert found is not None
    table.load(found)
    assert table.of_topic_and_group("Orders", "g1") == {0: 0, 3: 0}
    newer = load_table(APACHE / "consumerOffset-5.5.0.json", lambda found: found)
    assert newer is not None
    table.load(newer)
    table.commit("g", "t", 3, 4)
    again = msgspec.json.decode(encode_table(table.as_file()))
    assert again["offsetTable"] == {"t@g": {"3": 4}}
    assert again["dataVersion"] == newer["dataVersion"]
    assert again["pullOffsetTable"] == {}


# -- names and sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["a", "A-1_b|c%d", "x" * 127, "%RETRY%" + "g" * 248])
def test_legal_topics(topic: str) -> None:
    validation.check_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "illegal characters"),
        ("ä", "illegal characters"),
        ("../x", "illegal characters"),
        ("t\n", "illegal characters"),
        ("x" * 128, "128 characters, at most 127"),
        ("%DLQ%" + "g" * 251, "256 characters, at most 255"),
    ],
)
def test_illegal_topics(topic: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        validation.check_topic_name(topic)
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


def test_groups_have_names_like_topics() -> None:
    validation.check_group_name("g" * 255)
    for group in ("", "a b", "g" * 256):
        with pytest.raises(RequestError):
            validation.check_group_name(group)


def test_clients_cannot_send_to_the_brokers_own_topics() -> None:
    with pytest.raises(RequestError, match="SCHEDULE_TOPIC_XXXX is the broker's own") as caught:
        validation.check_sendable("SCHEDULE_TOPIC_XXXX")
    assert caught.value.code == ResponseCode.NO_PERMISSION
    validation.check_sendable("TBW102")
    for name in ("TBW102", "rmq_sys_x"):
        with pytest.raises(RequestError, match="system topic"):
            validation.check_changeable(name)
    validation.check_changeable("Orders")


def test_sizes_have_limits_that_the_remark_names() -> None:
    validation.check_body_size(10, 10)
    with pytest.raises(RequestError, match="11 bytes, maxMessageSize allows 10"):
        validation.check_body_size(11, 10)
    validation.check_properties("x" * 32_767)
    validation.check_properties("ö" * 16_383)
    for text in ("x" * 32_768, "ö" * 16_384):
        with pytest.raises(RequestError, match="32768 bytes, at most 32767"):
            validation.check_properties(text)


def test_permissions_are_shown_as_letters() -> None:
    shown = [validation.describe_permission(each) for each in (0, 2, 4, 6, 7)]
    assert shown == ["---", "-W-", "R--", "RW-", "RWX"]


# -- resets ----------------------------------------------------------------------------------------


def test_commits_are_ignored_until_a_reset_is_received() -> None:
    changes: list[int] = []
    offsets = OffsetTable(lambda: changes.append(1))
    offsets.commit("g", "t", 0, 7)
    offsets.commit("g", "t", 1, 7)
    offsets.reset("g", "t", 0, 3)
    assert offsets.is_reset("g", "t")
    assert offsets.is_reset("g", "t", 0)
    assert not offsets.is_reset("g", "t", 1)
    assert not offsets.is_reset("other", "t")
    offsets.commit("g", "t", 0, 8)
    offsets.commit("g", "t", 1, 8)
    assert offsets.of_topic_and_group("t", "g") == {0: 3, 1: 8}
    assert offsets.take_reset("g", "t", 1) is None
    assert offsets.take_reset("g", "t", 0) == 3
    assert offsets.take_reset("g", "t", 0) is None
    assert not offsets.is_reset("g", "t")
    offsets.commit("g", "t", 0, 8)
    assert offsets.find("g", "t", 0) == 8
    assert len(changes) == 5


def test_a_reset_ends_with_its_group_its_topic_and_a_copy() -> None:
    offsets = OffsetTable()
    ends: list[Callable[[], None]] = [
        lambda: at_once(offsets.remove_group("g")),
        lambda: at_once(offsets.remove_topic("t")),
        lambda: offsets.copy("other", "g", "t"),
    ]
    for end in ends:
        offsets.commit("other", "t", 5, 1)
        offsets.reset("g", "t", 0, 3)
        end()
        assert offsets.take_reset("g", "t", 0) is None
        offsets.commit("g", "t", 0, 9)
        assert offsets.find("g", "t", 0) == 9
