"""The backlog of all groups, by one request for each broker."""

from collections.abc import AsyncGenerator

import pytest

from tianzhou.admin import Admin
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import progress_by_group, snapshot
from tianzhou.client import Producer
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.stats import ConsumeStatsList
from tianzhou.testing import Cluster

GROUPS, MESSAGES = 40, 12


@pytest.fixture
async def admin() -> AsyncGenerator[Admin]:
    """Two brokers with groups that have consumed 0, 1, 2 ... messages of a queue."""
    with Cluster(brokers=2, topics={"orders": 2}) as cluster:
        async with Admin(cluster.namesrv_address) as found:
            async with Producer("p", namesrv=cluster.namesrv_address) as producer:
                for number in range(MESSAGES):
                    await producer.send("orders", f"{number}")
            for at in await found.clusters.brokers():
                for number in range(GROUPS):
                    name = f"g{number}"
                    await found.groups.put(at, SubscriptionGroupConfig(group_name=name))
                    if number:
                        await found.offsets.commit(at, name, "orders", 0, number % 3)
            yield found


async def test_one_request_tells_the_progress_of_every_group(admin: Admin) -> None:
    for at in await admin.clusters.brokers():
        together = await progress_by_group(admin.brokers, admin.groups, at)
        assert len([name for name in together if name.startswith("g")]) == GROUPS
        for name, stats in together.items():
            single = await admin.groups.progress_on(at, name)
            assert {q: o for each in stats for q, o in each.offsets.items()} == single.offsets


async def test_the_backlog_of_a_cluster_is_not_read_group_by_group(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    singly: list[str] = []
    asked = admin.groups.progress_on

    async def count(at: BrokerRef, group: str, topic: str | None = None) -> object:
        singly.append(group)
        return await asked(at, group, topic)

    monkeypatch.setattr(admin.groups, "progress_on", count)
    found = await snapshot(admin)
    assert singly == []
    # A group without offsets consumes no topic yet.
    backlogs = {each.group: each.lag for each in found.groups}
    assert backlogs["g0"] == 0
    assert backlogs["g3"] == MESSAGES
    assert MESSAGES - 4 <= backlogs["g2"] <= MESSAGES - 1


async def test_a_broker_that_refuses_is_asked_group_by_group(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    (at, _) = await admin.clusters.brokers()
    together = await progress_by_group(admin.brokers, admin.groups, at)

    async def refuse(_: BrokerRef) -> ConsumeStatsList:
        raise RequestError(1, "the topics have more than 100,000 queues")

    monkeypatch.setattr(admin.brokers, "consume_stats", refuse)
    singly = await progress_by_group(admin.brokers, admin.groups, at)
    assert {
        name: {q: o for each in stats for q, o in each.offsets.items()}
        for name, stats in singly.items()
    } == {
        name: {q: o for each in stats for q, o in each.offsets.items()}
        for name, stats in together.items()
    }
