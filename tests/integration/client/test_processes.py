"""Clients in processes that fork and spawn, and where the modules of Unix are missing."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.brokers import DEADLINE_S

from tianzhou.client import Queue, QueueReader
from tianzhou.testing import Cluster

ROOT = Path(__file__).parents[3]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as it:
        yield it


def run_program(*arguments: str) -> str:
    """The output of a Python program, which must succeed without warnings."""
    done = subprocess.run(
        # Newer Pythons warn of every fork beside threads, which is what this is about.
        [sys.executable, "-W", "ignore::DeprecationWarning", *arguments],
        capture_output=True, text=True, timeout=DEADLINE_S * 2, check=False, cwd=ROOT,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


async def texts_in(cluster: Cluster, topic: str) -> list[str]:
    async with QueueReader("lookers", namesrv=cluster.namesrv_address) as reader:
        found: list[str] = []
        for queue in await reader.queues(topic):
            end = await reader.max_offset(queue)
            while (at := _read_count(found, queue)) < end:
                pulled = await reader.pull(queue, at)
                found += [f"{queue.queue_id} {message.text}" for message in pulled.messages]
        return sorted(each.partition(" ")[2] for each in found)


def _read_count(found: list[str], queue: Queue) -> int:
    return sum(each.startswith(f"{queue.queue_id} ") for each in found)


# -- fork and spawn --------------------------------------------------------------------------------

CONSUMER_HELD = """
import os, sys, threading
from tianzhou.client.sync import Producer, PushConsumer

namesrv, topic = sys.argv[1:]
parent = os.getpid()
got = {True: threading.Event(), False: threading.Event()}
consumer = PushConsumer("held", namesrv=namesrv, start="first", rebalance_ms=200)

@consumer.handler(topic)
def take(message):
    got[os.getpid() == parent].set()

consumer.start()
with Producer("held", namesrv=namesrv) as producer:
    producer.send(topic, b"first")
    assert got[True].wait(60)
    child = os.fork()
    if child == 0:
        mine = consumer.client_id  # the first use: the child has a consumer of its own
        good = got[False].wait(60) and str(parent) not in mine
        consumer.close()
        os._exit(0 if good else 3)
    status = None
    while status is None:
        for queue in producer.queues(topic):
            producer.send(topic, b"to each of both", queue=queue)
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else None
    # The parent's goes on as if nothing had happened, and gets all queues back.
    while len([each for each in consumer.assignment if each.topic == topic]) < 2:
        threading.Event().wait(0.05)
    got[True].clear()
    producer.send(topic, b"last")
    assert got[True].wait(60)
consumer.close()
sys.exit(status)
"""


@needs_fork
def test_consumer_across_a_fork(cluster: Cluster) -> None:
    cluster.create_topic("Held", 2)
    run_program("-c", CONSUMER_HELD, cluster.namesrv_address, "Held")


@pytest.mark.parametrize("method", [pytest.param("fork", marks=needs_fork), "spawn"])
async def test_workers_of_multiprocessing(cluster: Cluster, method: str) -> None:
    topic = f"Pooled-{method}"
    cluster.create_topic(topic, 4)
    printed = await asyncio.to_thread(
        run_program, "-m", "tests.support.worker_pool", cluster.namesrv_address, topic, method
    )
    assert printed == "32 messages, none not by workers\n"
    expected = sorted([*map(str, range(30)), "before", "after"])
    assert await texts_in(cluster, topic) == expected


# -- other systems ---------------------------------------------------------------------------------

WITHOUT_UNIX = """
import asyncio, os, sys
for name in ("fcntl", "uvloop", "resource", "pwd", "grp", "termios", "tianzhou_kernel"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "forkpty", "waitpid"):
    delattr(os, name)
from tianzhou.client.database import idempotence, outbox, sql
from tianzhou.client import LitePullConsumer, Message, Producer, PushConsumer, sync

namesrv, topic, folder = sys.argv[1:]

async def work():
    seen, all_seen = [], asyncio.Event()
    push = PushConsumer("portable", namesrv=namesrv, start="first")
    @push.handler(topic)
    def take(message):
        seen.append(message.text)
        if len(seen) == 3:
            loop.call_soon_threadsafe(all_seen.set)
    loop = asyncio.get_running_loop()
    everybody = PushConsumer("broadcast", namesrv=namesrv, start="first", broadcasting=True,
                             offsets_dir=folder)
    told = asyncio.Event()
    @everybody.handler(topic)
    async def tell(message):
        told.set()
    async with Producer("portable", namesrv=namesrv) as producer, push, everybody:
        await producer.send(topic, b"0")
        await producer.send_many([Message(topic, b"1"), Message(topic, b"2")])
        await asyncio.wait_for(asyncio.gather(all_seen.wait(), told.wait()), 60)
    assert sorted(seen) == ["0", "1", "2"], seen

asyncio.run(work())
with sync.LitePullConsumer("blocking", namesrv=namesrv, start="first") as lite:
    lite.subscribe(topic)
    found = []
    while len(found) < 3:
        found += lite.poll(60_000)
"""


def test_sends_and_consumes_without_unix_modules(cluster: Cluster, tmp_path: Path) -> None:
    """Like Windows, as far as possible on Linux: plain event loop, no fork, no Unix modules."""
    cluster.create_topic("Portable", 2)
    run_program("-c", WITHOUT_UNIX, cluster.namesrv_address, "Portable", str(tmp_path))
    assert list(tmp_path.rglob("offsets.json"))
