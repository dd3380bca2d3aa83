"""A consumer of ours that is killed, with our broker and with Apache's of both versions."""

from pathlib import Path

from tests.apache.test_client_producer import create_topic
from tests.support.apache.backends import Backend
from tests.support.killed_process import kill_one

QUEUES = 4


async def test_another_consumer_takes_over(backend: Backend, tmp_path: Path) -> None:
    topic, group = backend.name("Mortal"), backend.name("mortals")
    await create_topic(backend, topic, QUEUES)
    victim, survivor, sent = await kill_one(
        tmp_path, backend.namesrv, group, topic, QUEUES, ordered=False
    )
    interrupted = set(victim.places("begun")) - set(victim.places("done"))
    assert interrupted <= set(survivor.seen)
    assert set(survivor.seen) | set(victim.places("done")) == sent
