"""The snapshot of a state, compared with a plain model of brokers, topics and groups."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import read_rates
from tianzhou.console.collect.computing import (
    RoundFacts,
    at_least,
    compute,
    count_at_least,
    kind_of,
    lag_of,
)
from tianzhou.console.collect.counting import NO_OFFSET, SeriesKey
from tianzhou.console.collect.days import Days, days_at, zone_of
from tianzhou.console.collect.snapshot import (
    DEAD_LETTER,
    NORMAL,
    RETRY,
    SYSTEM,
    Snapshot,
)
from tianzhou.console.collect.state import FORGOTTEN_MS, BrokerReading, ClusterState
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import TopicOffset, TopicStatsTable
from tianzhou.protocol.bodies.topics import TopicConfig

NOW_MS = 1_750_000_000_000
TOPICS, GROUPS = ("PAY_a", "PAY_b", "%RETRY%g1", "%DLQ%g1"), ("g1", "g2")


# -- small functions -------------------------------------------------------------------------------

OFFSETS = st.lists(st.integers(NO_OFFSET, 20), max_size=5).map(tuple)


@given(OFFSETS, st.lists(st.integers(0, 20), max_size=5).map(tuple))
def test_the_lag_counts_each_message_that_is_not_consumed(
    committed: tuple[int, ...], ends: tuple[int, ...]
) -> None:
    waiting = [
        offset
        for queue_id, end in enumerate(ends)
        for offset in range(end)
        if not (queue_id < len(committed) and offset < committed[queue_id])
    ]
    assert lag_of(committed, ends) == len(waiting)


@pytest.mark.parametrize(
    ("values", "is_partial", "expected"),
    [
        ([], False, None),
        ([None], False, None),
        ([0], False, 0),
        ([0], True, None),
        ([0, None], True, None),
        ([3, None], True, 3),
        ([3, 4], False, 7),
    ],
)
def test_a_sum_is_unknown_rather_than_wrongly_zero(
    values: list[int | None], is_partial: bool, expected: int | None
) -> None:
    assert at_least(values, is_partial=is_partial) == expected
    assert count_at_least(values, is_partial=is_partial) == expected


def test_the_kind_of_a_topic() -> None:
    own = frozenset({"DefaultCluster", "broker-a"})
    assert kind_of("PAY_orders", own) == NORMAL
    assert kind_of("%RETRY%g", own) == RETRY
    assert kind_of("%DLQ%g", own) == DEAD_LETTER
    for name in ("TBW102", "rmq_sys_x", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"):
        assert kind_of(name, own) == SYSTEM


# -- a model ---------------------------------------------------------------------------------------


@dataclass
class ModelBroker:
    """What a broker has, in plain dictionaries."""

    name: str
    is_up: bool = True
    ends: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    done: dict[tuple[str, str], list[int]] = field(default_factory=dict[tuple[str, str], list[int]])

    def reading(self, now_ms: int) -> BrokerReading:
        at = BrokerRef(self.name, 0, f"{self.name}:1", "C")
        if not self.is_up:
            return BrokerReading(at, now_ms, now_ms, problem="no connection")
        reading = BrokerReading(at, now_ms, now_ms)
        reading.runtime = {"brokerVersionDesc": "V5_5_0", "putTps": "1.5 1 1"}
        reading.rates = read_rates(at, reading.runtime, 1.0)
        reading.topics = {
            topic: TopicConfig(topic_name=topic, write_queue_count=len(ends))
            for topic, ends in self.ends.items()
        }
        reading.groups = {group: SubscriptionGroupConfig(group_name=group) for group in GROUPS}
        reading.committed = {
            f"{topic}@{group}": dict(enumerate(done)) for (topic, group), done in self.done.items()
        }
        for topic, ends in self.ends.items():
            reading.extents[topic] = TopicStatsTable(
                offsets={
                    MessageQueue(topic=topic, broker_name=self.name, queue_id=queue_id): (
                        TopicOffset(max_offset=end)
                    )
                    for queue_id, end in enumerate(ends)
                }
            )
        return reading


def snapshot_of(state: ClusterState, days: Days, now_ms: int) -> Snapshot:
    facts = RoundFacts("c", state.round_number, now_ms, now_ms, days)
    return compute(state, facts)


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_the_figures_are_those_of_the_model(chance: random.Random) -> None:
    brokers = [ModelBroker(name) for name in ("a", "b", "c")]
    for broker in brokers:
        for topic in TOPICS:
            if chance.random() < 0.8:
                broker.ends[topic] = [0] * chance.randint(1, 3)
                for group in GROUPS:
                    if chance.random() < 0.6:
                        broker.done[topic, group] = [0] * len(broker.ends[topic])
    state, now_ms = ClusterState(), NOW_MS
    days = days_at(now_ms, zone_of("UTC"))
    refs = [BrokerRef(each.name, 0, f"{each.name}:1", "C") for each in brokers]
    produced: dict[str, int] = dict.fromkeys(TOPICS, 0)
    consumed: dict[tuple[str, str], int] = {}
    for number in range(chance.randint(1, 6)):
        if number:
            now_ms += 60_000
            for broker in brokers:
                broker.is_up = chance.random() < 0.8
                for topic, ends in broker.ends.items():
                    grown = chance.randint(0, 5)
                    ends[chance.randrange(len(ends))] += grown
                    produced[topic] += grown
                for (topic, group), done in broker.done.items():
                    for queue_id, end in enumerate(broker.ends[topic]):
                        more = chance.randint(0, end - done[queue_id])
                        done[queue_id] += more
                        key = (topic, group)
                        consumed[key] = consumed.get(key, 0) + more
        state.set_registered(refs, now_ms)
        for broker in brokers:
            state.apply(broker.reading(now_ms), days)
        state.round_number += 1
    found = snapshot_of(state, days, now_ms)
    down = tuple(each.name for each in brokers if not each.is_up)
    up = [each for each in brokers if each.is_up]
    assert tuple(each.name for each in found.unanswered) == down
    assert found.totals.masters_missing == down
    for topic in TOPICS:
        having = [each for each in brokers if topic in each.ends]
        seen = found.topic(topic)
        if not having:
            assert seen is None
            continue
        assert seen is not None
        assert seen.missing == tuple(each.name for each in having if not each.is_up)
        stored = sum(sum(each.ends[topic]) for each in having if each.is_up)
        if stored or (not seen.missing):
            assert seen.stored == stored
        else:
            assert seen.stored is None
        if not seen.missing:
            assert seen.today == produced[topic]
            assert sum(each.produced or 0 for each in seen.queues) == produced[topic]
    for name in GROUPS:
        consumer = found.group(name)
        assert consumer is not None
        assert consumer.missing == down
        lag = 0
        for part in consumer.topics:
            here = [each for each in up if (part.topic, name) in each.done]
            waiting = sum(
                sum(each.ends[part.topic]) - sum(each.done[part.topic, name]) for each in here
            )
            lag += waiting
            assert part.lag == (waiting if waiting or not down else None)
            assert part.committed == sum(sum(each.done[part.topic, name]) for each in here)
            # The day of the first start is not known from its beginning, but counting is exact.
            assert part.consumed_today is None
            if not down:
                days_of = state.ledger.series[SeriesKey(part.topic, name)].days
                counted = sum(each.count for each in days_of.values())
                assert counted == consumed.get((part.topic, name), 0)
                assert part.resets_today == 0
        if not consumer.topics:
            assert consumer.lag is None
        else:
            assert consumer.lag == (lag if lag or not down else None)


def test_rates_are_growth_by_the_time_between_readings() -> None:
    broker, state = ModelBroker("a", ends={"t": [0, 0]}), ClusterState()
    broker.done["t", "g1"] = [0, 0]
    days = days_at(NOW_MS, zone_of("UTC"))
    state.set_registered([BrokerRef("a", 0, "a:1", "C")], NOW_MS)
    state.apply(broker.reading(NOW_MS), days)
    first = snapshot_of(state, days, NOW_MS).topic("t")
    assert first is not None
    assert first.in_per_s is None
    broker.ends["t"], broker.done["t", "g1"] = [30, 0], [12, 0]
    state.apply(broker.reading(NOW_MS + 60_000), days)
    found = snapshot_of(state, days, NOW_MS + 60_000)
    topic, group = found.topic("t"), found.group("g1")
    assert topic is not None
    assert group is not None
    assert (topic.in_per_s, group.consumed_per_s, group.lag) == (0.5, 0.2, 18)
    assert group.oldest_age_ms == 0
    state.apply(broker.reading(NOW_MS + 120_000), days)
    group = snapshot_of(state, days, NOW_MS + 120_000).group("g1")
    assert group is not None
    assert (group.oldest_age_ms, group.oldest_is_minimum) == (60_000, False)


def test_a_broker_that_no_nameserver_lists_is_shown_for_a_week() -> None:
    broker, state = ModelBroker("a", ends={"t": [0]}), ClusterState()
    days = days_at(NOW_MS, zone_of("UTC"))
    state.set_registered([BrokerRef("a", 0, "a:1", "C")], NOW_MS)
    state.apply(broker.reading(NOW_MS), days)
    state.set_registered([], NOW_MS + FORGOTTEN_MS)
    broker.is_up = False
    state.apply(broker.reading(NOW_MS + 60_000), days)
    (found,) = snapshot_of(state, days, NOW_MS + 60_000).brokers
    assert (found.is_registered, found.answered, found.seen_ms) == (False, False, NOW_MS)
    state.set_registered([], NOW_MS + FORGOTTEN_MS + 1)
    assert state.brokers == {}


def test_a_broker_that_was_never_read_may_have_every_topic() -> None:
    known, unknown = ModelBroker("a", ends={"t": [4]}), ModelBroker("b", is_up=False)
    state, days = ClusterState(), days_at(NOW_MS, zone_of("UTC"))
    state.set_registered([BrokerRef(name, 0, f"{name}:1", "C") for name in "ab"], NOW_MS)
    for each in (known, unknown):
        state.apply(each.reading(NOW_MS), days)
    topic = snapshot_of(state, days, NOW_MS).topic("t")
    assert topic is not None
    assert (topic.stored, topic.missing) == (4, ("b",))


def test_hostile_queue_ids_cost_nothing() -> None:
    broker, state = ModelBroker("a", ends={"t": [4]}), ClusterState()
    days = days_at(NOW_MS, zone_of("UTC"))
    state.set_registered([BrokerRef("a", 0, "a:1", "C")], NOW_MS)
    reading = broker.reading(NOW_MS)
    reading.committed = {"t@g1": {2**31 - 1: 5, -7: 3, 0: 1}, "@": {}, "t@": {0: 1}, "x": {0: 1}}
    reading.extents["t"] = TopicStatsTable(
        offsets={
            MessageQueue(topic="t", broker_name="a", queue_id=queue_id): TopicOffset(max_offset=9)
            for queue_id in (2**31 - 1, -5, 0)
        }
    )
    state.apply(reading, days)
    found = snapshot_of(state, days, NOW_MS).group("g1")
    assert found is not None
    (part,) = found.topics
    assert part.lag == 8
