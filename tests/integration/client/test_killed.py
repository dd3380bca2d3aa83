"""A killed consumer: another one takes over its queues, and no message is lost."""

from pathlib import Path

from tests.integration.client.test_consumer_failures import TOPIC, create_topic
from tests.support.brokers import cluster
from tests.support.killed_process import assert_in_order, kill_one

QUEUES = 4


async def test_in_any_order(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        await create_topic(it.namesrv, it.broker.address, QUEUES)
        victim, survivor, sent = await kill_one(
            tmp_path, it.namesrv, "mortals", TOPIC, QUEUES, ordered=False
        )
    # What it had begun and not done comes again; what it had done may, as far as it was not saved.
    interrupted = set(victim.places("begun")) - set(victim.places("done"))
    assert interrupted
    assert interrupted <= set(survivor.seen)
    assert set(survivor.seen) | set(victim.places("done")) == sent


async def test_in_order(tmp_path: Path) -> None:
    """The locks of the dead consumer expire (60 s, here 3), then consumption continues in order."""
    locks = {"rocketmq.broker.rebalance.lockMaxLiveTime": 3_000}
    async with cluster(tmp_path, **locks) as it:
        await create_topic(it.namesrv, it.broker.address, QUEUES)
        victim, survivor, sent = await kill_one(
            tmp_path, it.namesrv, "orderly", TOPIC, QUEUES, ordered=True
        )
    assert_in_order(victim, survivor, sent, QUEUES)
