"""The broker's tables: saved tables round-trip, and parked pulls are never lost."""

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.longpoll.parked_pulls import SLOT_MS, Parked, ParkedPulls
from tianzhou.broker.tables.groups import GroupTable
from tianzhou.broker.tables.offsets import OffsetTable
from tianzhou.broker.tables.saver import encode_table, load_table, save_table
from tianzhou.broker.tables.topics import TopicTable, system_topics
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig

NAMES = st.text(alphabet="abcXYZ019_-%|", min_size=1, max_size=12)
COUNTS = st.integers(1, 64)


@given(st.dictionaries(NAMES, st.tuples(COUNTS, COUNTS, st.integers(0, 7), st.booleans())))
def test_topics_round_trip_through_their_file(
    topics: dict[str, tuple[int, int, int, bool]],
) -> None:
    config = BrokerConfig(broker_name="b")
    table = TopicTable(system_topics(config), lambda: 5)
    for name, (reads, writes, perm, order) in topics.items():
        if name not in table.system_names:
            topic = TopicConfig(topic_name=name, read_queue_count=reads, perm=perm, order=order)
            table.put(msgspec.structs.replace(topic, write_queue_count=writes))
    again = TopicTable(system_topics(config), lambda: 9)
    reload(encode_table(table.as_file()), again)
    assert again.topics == table.topics
    assert again.data_version == table.data_version


@given(st.dictionaries(NAMES, st.tuples(st.booleans(), st.integers(0, 16))))
def test_groups_round_trip_through_their_file(groups: dict[str, tuple[bool, int]]) -> None:
    table = GroupTable(lambda: 5)
    for name, (enabled, retries) in groups.items():
        table.put(
            SubscriptionGroupConfig(
                group_name=name, consume_enable=enabled, retry_max_times=retries
            )
        )
    again = GroupTable(lambda: 9)
    reload(encode_table(table.as_file()), again)
    assert again.groups == table.groups


@given(
    st.dictionaries(
        st.tuples(NAMES, NAMES, st.integers(0, 1000)), st.integers(0, 2**62), max_size=30
    )
)
def test_offsets_round_trip_through_their_file(offsets: dict[tuple[str, str, int], int]) -> None:
    table = OffsetTable()
    for (group, topic, queue_id), queue_offset in offsets.items():
        table.commit(group, topic, queue_id, queue_offset)
    again = OffsetTable()
    reload(encode_table(table.as_file()), again)
    for (group, topic, queue_id), queue_offset in offsets.items():
        assert again.find(group, topic, queue_id) == queue_offset
    assert again.by_key == table.by_key


def reload(data: bytes, table: TopicTable | GroupTable | OffsetTable) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        save_table(path, data)
        load_table(path, table.load)


class ParkedModel(RuleBasedStateMachine):
    """Parked pulls compared with a list."""

    def __init__(self) -> None:
        super().__init__()
        self.pulls = ParkedPulls[int, int]()
        self.model: list[Parked[int, int]] = []
        self.now_ms = 0

    @rule(owner=st.integers(0, 3), queue=st.integers(0, 2), wait_ms=st.integers(1, 5000))
    def park(self, owner: int, queue: int, wait_ms: int) -> None:
        self.model.append(self.pulls.park(owner, ("t", queue), 0, self.now_ms + wait_ms, 0))

    @rule(number=st.integers(0, 10))
    def remove(self, number: int) -> None:
        if self.model:
            parked = self.model.pop(number % len(self.model))
            self.pulls.remove(parked)
            self.pulls.remove(parked)

    @rule(owner=st.integers(0, 3))
    def close(self, owner: int) -> None:
        self.pulls.remove_owner(owner)
        self.model = [parked for parked in self.model if parked.owner != owner]

    @rule(passed_ms=st.integers(0, 2000))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        due = self.pulls.take_due(self.now_ms)
        assert all(parked.deadline_ms <= self.now_ms for parked in due)
        self.model = [parked for parked in self.model if parked not in due]
        late = [each for each in self.model if each.deadline_ms + SLOT_MS <= self.now_ms]
        assert not late, "nobody waits a slot longer than asked"

    @invariant()
    def agrees(self) -> None:
        assert len(self.pulls) == len(self.model)
        for queue in range(3):
            key = ("t", queue)
            expected = [parked for parked in self.model if parked.key == key]
            assert self.pulls.waiting(key) == expected
            assert self.pulls.has(key) == bool(expected)
        deadline_ms = self.pulls.next_deadline_ms()
        assert (deadline_ms is None) == (not self.model)


TestParkedModel = ParkedModel.TestCase
TestParkedModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
