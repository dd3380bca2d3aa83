"""Tables of a slave that become equal to its master's."""

from collections.abc import Mapping

import pytest

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.tables.assignment import ModeTable
from tianzhou.broker.tables.groups import SYSTEM_GROUPS, GroupTable
from tianzhou.broker.tables.offsets import REMOVED_MAX, Changes, OffsetTable
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.broker.tables.versioned import same_version
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from tianzhou.protocol.bodies.queues import MessageRequestModeTable, SetMessageRequestModeBody
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from tianzhou.remoting.scheduler import Steps, at_once

CONFIG = BrokerConfig(broker_name="broker-a")
VERSION = DataVersion(timestamp=77, counter=5)


def test_state_version_of_4_9_is_that_of_fixed_roles() -> None:
    assert same_version(VERSION, DataVersion(timestamp=77, counter=5, state_version=0))
    assert not same_version(VERSION, DataVersion(timestamp=77, counter=5, state_version=1))
    assert not same_version(VERSION, DataVersion(timestamp=77, counter=6))
    assert not same_version(VERSION, DataVersion(timestamp=78, counter=5))


# -- topics and groups -----------------------------------------------------------------------------


def test_topics_are_replaced_but_system_topics_stay() -> None:
    changes: list[int] = []
    table = TopicTable(system_topics(CONFIG), lambda: 1000, lambda: changes.append(1))
    table.put(TopicConfig(topic_name="old"))
    system = {name: table.topics[name] for name in table.system_names}
    master = TopicConfigTable(
        topics={
            "new": TopicConfig(topic_name="new", perm=4),
            "TBW102": TopicConfig(topic_name="TBW102", perm=1),
        },
        data_version=VERSION,
    )
    assert at_once(table.replace(master))
    assert table.topics == system | {"new": TopicConfig(topic_name="new", perm=4)}
    assert table.data_version == VERSION
    assert len(changes) == 2
    assert not at_once(table.replace(master)), "the version is the same"
    assert len(changes) == 2


def test_an_interrupted_replacement_is_repeated() -> None:
    table = TopicTable(system_topics(CONFIG), lambda: 1000)
    topics = {name: TopicConfig(topic_name=name) for name in ("a", "b", "c")}
    steps = table.replace(TopicConfigTable(topics=topics, data_version=VERSION))
    while "b" not in table.topics:
        next(steps)
    steps.close()
    assert "c" not in table.topics
    assert at_once(table.replace(TopicConfigTable(topics=topics, data_version=VERSION)))
    assert set(topics) <= set(table.topics)


def test_a_change_of_the_slave_itself_is_replaced() -> None:
    table = TopicTable(system_topics(CONFIG), lambda: 1000)
    master = TopicConfigTable(topics={"t": TopicConfig(topic_name="t")}, data_version=VERSION)
    at_once(table.replace(master))
    table.mark_ordered(["t"])
    assert at_once(table.replace(master))
    assert not table.topics["t"].order


def test_groups_are_replaced_with_what_is_forbidden_to_them() -> None:
    table = GroupTable(lambda: 1000)
    table.put(SubscriptionGroupConfig(group_name="old"))
    table.forbid("old", "t", forbidden=True)
    master = SubscriptionGroupTable(
        groups={"g": SubscriptionGroupConfig(group_name="g", broker_id=1)},
        forbidden={"g": {"t": 4}},
        data_version=VERSION,
    )
    assert at_once(table.replace(master))
    assert set(table.groups) == SYSTEM_GROUPS | {"g"}
    assert table.groups["g"].broker_id == 1
    assert (table.is_forbidden("g", "t"), table.is_forbidden("old", "t")) == (True, False)
    assert table.as_file()["forbiddenTable"] == {"g": {"t": 4}}
    assert not at_once(table.replace(master))


def test_modes_are_replaced() -> None:
    changes: list[int] = []
    table = ModeTable(lambda: changes.append(1))
    mode = SetMessageRequestModeBody(topic="t", consumer_group="g", mode="POP")
    table.put("old", "g", mode)
    assert table.replace(MessageRequestModeTable(modes={"t": {"g": mode}}))
    assert table.modes == {"t": {"g": mode}}
    assert not table.replace(MessageRequestModeTable(modes={"t": {"g": mode}}))
    assert (len(changes), table.change_count) == (2, 2)


# -- offsets ---------------------------------------------------------------------------------------


def changes_of(table: OffsetTable, change: int, offset_count: int = 1000) -> Changes:
    return at_once(table.changes_after(change, offset_count))


def test_first_all_offsets_are_changes_and_then_those_that_change() -> None:
    table = OffsetTable()
    table.load({"offsetTable": {"t@a": {"0": 1, "1": 2}, "t@b": {"0": 3}}})
    first = changes_of(table, 0)
    assert (first.offsets, first.has_more) == ({"t@a": {0: 1, 1: 2}, "t@b": {0: 3}}, False)
    assert changes_of(table, first.last) == Changes({}, first.last, has_more=False)
    table.commit("a", "t", 1, 9)
    table.commit("c", "t", 0, 7)
    table.commit("a", "t", 1, 10)
    second = changes_of(table, first.last)
    assert list(second.offsets.items()) == [("t@c", {0: 7}), ("t@a", {0: 1, 1: 10})]
    assert changes_of(table, second.last).offsets == {}
    table.reset("b", "t", 0, 1)
    table.copy("a", "d", "t")
    assert set(changes_of(table, second.last).offsets) == {"t@b", "t@d"}


def test_a_removed_key_is_a_change_to_no_offsets() -> None:
    table = OffsetTable()
    table.commit("a", "t", 0, 1)
    table.commit("b", "t", 0, 1)
    last = changes_of(table, 0).last
    table.commit("a", "t", 0, 2)
    at_once(table.remove_group("a"))
    removed = changes_of(table, last)
    assert removed.offsets == {"t@a": {}}
    assert changes_of(table, 0).offsets == {"t@b": {0: 1}, "t@a": {}}
    assert changes_of(table, removed.last).offsets == {}
    table.commit("a", "t", 0, 3)
    at_once(table.remove_topic("t"))
    table.commit("b", "t", 1, 4)
    assert changes_of(table, removed.last).offsets == {"t@a": {}, "t@b": {1: 4}}


def test_so_many_removed_keys_are_known() -> None:
    table = OffsetTable()
    changes_of(table, 0)
    groups = [f"g{number}" for number in range(REMOVED_MAX)]
    for topic in ("first", "again"):
        table.commit("g", topic, 0, 1)
        at_once(table.remove_topic(topic))
    table.commit("g", "again", 0, 2)
    for group in groups:
        table.commit(group, "t", 0, 1)
    at_once(table.remove_topic("t"))
    offsets = changes_of(table, 0, REMOVED_MAX * 2).offsets
    assert offsets.keys() == {"again@g", *(f"t@{group}" for group in groups)}
    assert offsets["again@g"] == {0: 2}
    assert not any(offsets[f"t@{group}"] for group in groups)


@pytest.mark.parametrize("count", [10, 3_000])
def test_changes_are_read_in_pages(count: int) -> None:
    table = OffsetTable()
    for number in range(count):
        table.commit(f"g{number}", "t", 0, number)
    known, pages, seen = 0, 0, dict[str, Mapping[int, int]]()
    while True:
        page = changes_of(table, known, count // 3)
        pages, known = pages + 1, page.last
        seen.update(page.offsets)
        if pages == 1:
            # A change of what was read is read again.
            table.commit("g0", "t", 0, 999)
        if not page.has_more:
            break
    assert pages == 4
    assert seen == table.by_key


def test_changes_while_the_keys_are_numbered_are_not_lost() -> None:
    table = OffsetTable()
    table.load({"offsetTable": {f"t@g{number}": {"0": 1} for number in range(2_000)}})
    one, other = table.changes_after(0, 10_000), table.changes_after(0, 10_000)
    next(one)
    table.commit("g0", "t", 0, 5)
    table.commit("g1999", "t", 0, 5)
    table.commit("new", "t", 0, 5)
    next(other)
    at_once(table.remove_group("g1998"))
    for changes in (at_once(one), at_once(other)):
        assert changes.offsets == table.by_key | {"t@g1998": {}}


def count_of(steps: Steps[None]) -> int:
    return sum(1 for _ in steps)


def test_offsets_are_put_over_those_of_the_slave_key_by_key() -> None:
    changes: list[int] = []
    table = OffsetTable(lambda: changes.append(1))
    table.commit("g", "t", 0, 5)
    table.commit("g", "t", 1, 5)
    table.commit("own", "t", 0, 8)
    table.reset("g", "t", 0, 3)
    table.note_pull("g", "t", 0, 4)
    del changes[:]
    assert count_of(table.put_over({"t@g": {0: 9}, "u@g": {2: 4, 3: 4}})) == 2, "a pause after each"
    assert table.by_key == {"t@g": {0: 9}, "t@own": {0: 8}, "u@g": {2: 4, 3: 4}}
    assert (table.count, len(changes)) == (4, 2)
    assert not table.is_reset("g", "t")
    assert table.pulled("g", "t", 0) == -1
    count_of(table.put_over({"t@g": {0: 9}}))
    assert len(changes) == 2, "it was equal"
    count_of(table.put_over({"u@g": {}, "t@unknown": {}}))
    assert table.by_key == {"t@g": {0: 9}, "t@own": {0: 8}}
    assert (table.count, len(changes)) == (2, 3)
