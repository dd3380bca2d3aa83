"""Planning changes: what a topic and a group have, drained queues, what brokers lack."""

from collections.abc import AsyncIterator

import pytest

from tianzhou.admin import Admin
from tianzhou.admin.changes.expansion import copy, expansion
from tianzhou.admin.changes.groups import check_new_group, check_own_group, group_state
from tianzhou.admin.changes.topics import (
    check_new_topic,
    check_own_topic,
    drain,
    put_topic,
    topic_on_masters,
    topic_use,
)
from tianzhou.errors import TargetError
from tianzhou.message import Message
from tianzhou.names import ORDER_TOPIC_NAMESPACE
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.testing import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=2, topics={"orders": 2}) as made:
        yield made


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv_address) as made:
        yield made


@pytest.mark.parametrize(
    "name",
    [
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "rmq_sys_wheel_timer",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "DefaultCluster_REPLY_TOPIC",
        "%RETRY%g",
        "%DLQ%g",
        "broker-0",
    ],
)
def test_topics_of_rocketmq_are_refused(name: str) -> None:
    for check in (check_own_topic, check_new_topic):
        with pytest.raises(TargetError, match="belongs to"):
            check(name, {"broker-0"})


def test_names_of_new_topics_and_groups() -> None:
    check_new_topic("orders-2_x")
    check_new_group("billing")
    for name in ("", "a b", "x" * 128, "主题", "a/b"):
        with pytest.raises(TargetError):
            check_new_topic(name)
    for name in ("", "a b", "CID_RMQ_SYS_X", "DEFAULT_CONSUMER"):
        with pytest.raises(TargetError):
            check_new_group(name)
    with pytest.raises(TargetError, match="RocketMQ itself"):
        check_own_group("TOOLS_CONSUMER")


async def test_use_of_a_topic_and_of_a_group(admin: Admin) -> None:
    brokers = await admin.clusters.brokers(masters=True)
    for at in brokers:
        await admin.groups.put(at, SubscriptionGroupConfig(group_name="billing"))
        await admin.offsets.commit(at, "billing", "orders", 0, 0)
        await admin.offsets.commit(at, "billing", "orders", 1, 0)
    for _ in range(6):
        await admin.messages.send(Message("orders", b"x"))
    use = await topic_use(admin, "orders", brokers)
    assert use.stored_count == 6
    assert use.last_message_ms is not None
    (group,) = use.groups
    assert (group.group, group.lag_count, group.members) == ("billing", 6, 0)
    state = await group_state(admin, "billing", brokers)
    assert state.lag_by_topic == (("orders", 6),)
    assert (state.members, state.retry_count, state.dead_letter_count) == ((), 0, 0)


async def test_a_broker_that_is_down_makes_figures_unknown(cluster: Cluster, admin: Admin) -> None:
    brokers = await admin.clusters.brokers(masters=True)
    await admin.messages.send(Message("orders", b"x"))
    for at in brokers:
        await admin.offsets.commit(at, "billing", "orders", 0, 0)
    cluster.stop_broker("broker-1")
    use = await topic_use(admin, "orders", brokers)
    assert use.stored_count is None
    assert use.warnings
    state = await group_state(admin, "billing", brokers)
    assert state.members is None
    assert state.dead_letter_count is None
    queues = {at: range(1, 2) for at in brokers}
    drained = await drain(admin, "orders", queues, ["billing"])
    assert not drained.is_done


async def test_queues_are_drained_when_every_group_has_consumed_them(admin: Admin) -> None:
    brokers = await admin.clusters.brokers(masters=True)
    at = brokers[0]
    queue = next(
        each
        for each in await admin.messages.read_queues("orders")
        if each.broker == at and each.queue_id == 1
    )
    for body in (b"1", b"2", b"3"):
        await admin.messages.send(Message("orders", body), queue=queue)
    await admin.offsets.commit(at, "billing", "orders", 1, 1)
    wanted = {each: range(1, 2) for each in brokers}
    state = await drain(admin, "orders", wanted, ["billing", "never"])
    (first, _) = state.queues
    assert (first.queue_id, first.left) == (1, (("billing", 2), ("never", 3)))
    assert (state.left_count, state.is_done) == (3, False)
    await admin.offsets.commit(at, "billing", "orders", 1, 3)
    assert (await drain(admin, "orders", wanted, ["billing"])).is_done
    # Without any group the messages would be lost all the same.
    assert not (await drain(admin, "orders", wanted, [])).is_done


async def test_the_order_configuration_follows_the_topic(admin: Admin) -> None:
    brokers = await admin.clusters.brokers(masters=True)
    config = TopicConfig(topic_name="keys", read_queue_count=3, write_queue_count=3, order=True)
    await put_topic(admin, dict.fromkeys(brokers, config))
    assert await admin.namesrv.value(ORDER_TOPIC_NAMESPACE, "keys") == "broker-0:3;broker-1:3"
    plain = TopicConfig(topic_name="keys", read_queue_count=3, write_queue_count=3)
    await put_topic(admin, dict.fromkeys(brokers, plain))
    assert await admin.namesrv.value(ORDER_TOPIC_NAMESPACE, "keys") is None
    configs = await topic_on_masters(admin, "keys")
    assert [each.order for each in configs.responses.values() if each] == [False, False]


async def test_what_a_new_broker_lacks_is_copied(cluster: Cluster, admin: Admin) -> None:
    first, second = await admin.clusters.brokers(masters=True)
    await admin.topics.put(first, TopicConfig(topic_name="only-first"))
    ordered = TopicConfig(topic_name="sorted", order=True)
    await admin.topics.put(first, ordered)
    await admin.groups.put(first, SubscriptionGroupConfig(group_name="g1", retry_max_times=3))
    before = await expansion(admin)
    lacks = {(each.kind, each.name): each for each in before.missing}
    assert set(lacks) == {("topic", "only-first"), ("topic", "sorted"), ("group", "g1")}
    assert lacks["topic", "sorted"].is_ordered
    assert all(each.target == second and each.source == first for each in before.missing)
    steps: list[str] = []
    wanted = [each for each in before.missing if not each.is_ordered]
    done = await copy(admin, wanted, lambda each: steps.append(each.missing.name))
    assert [each.problem for each in done] == ["", ""]
    assert sorted(steps) == ["g1", "only-first"]
    config = await admin.groups.config(second, "g1")
    assert config is not None
    assert config.retry_max_times == 3
    after = await expansion(admin)
    assert [each.name for each in after.missing] == ["sorted"]
    cluster.stop_broker("broker-1")
    (failed,) = await copy(admin, after.missing)
    assert failed.problem


async def test_a_clone_is_planned_queue_by_queue(admin: Admin) -> None:
    at = (await admin.clusters.brokers(masters=True))[0]
    await admin.offsets.commit(at, "a", "orders", 0, 5)
    await admin.offsets.commit(at, "b", "orders", 0, 2)
    (move,) = await admin.offsets.plan_clone(at, "a", "b", "orders")
    assert (move.queue.queue_id, move.before, move.after) == (0, 2, 5)
