"""Our consumers and producers with a master and its slave: who is asked, and when a route is.

The slave is a broker with a copy of the master's store; nothing is replicated while a test runs.
Routes come from a scripted nameserver, which counts its queries, and clients poll it once in ten
minutes: what they learn, they learn because a request failed.
"""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.brokers import Peer, eventually, peer_of, running_broker
from tests.support.ports import free_port
from tests.support.remoting import serving

from tianzhou.broker.handlers import Answer
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.requests.table import HANDLERS
from tianzhou.client import Producer, PushConsumer, Queue, QueueReader, ReceivedMessage
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.pull import COMMIT_OFFSET
from tianzhou.remoting.connection import Connection

TOPIC, GROUP, BROKER = "t", "g", "broker-a"
QUEUE = Queue(TOPIC, BROKER, 0)
COUNT = 40
SLAVE_ID = 1
NEVER_MS = 600_000


@dataclass(slots=True)
class Pair:
    """A master and its slave, behind a scripted nameserver."""

    folder: Path
    stops: AsyncExitStack
    namesrv: str = ""
    addresses: dict[int, str] = field(default_factory=dict[int, str])
    """The addresses in routes."""
    query_count: int = 0
    master: AsyncExitStack = field(default_factory=AsyncExitStack)
    master_port: int = 0

    async def start_master(self, **settings: object) -> None:
        broker = await self.master.enter_async_context(
            running_broker(
                self.folder / "master", listenPort=self.master_port, slaveReadEnable="true",
                **settings,
            )
        )  # fmt: skip
        self.addresses[MASTER_ID] = broker.address

    async def start_slave(self, **settings: object) -> None:
        pairs: dict[str, object] = {
            "brokerRole": "SLAVE", "brokerId": SLAVE_ID, "slaveReadEnable": "true"
        }  # fmt: skip
        broker = await self.stops.enter_async_context(
            running_broker(self.folder / "slave", **(pairs | settings))
        )
        self.addresses[SLAVE_ID] = broker.address

    async def stop_master(self, *, unregister: bool = True) -> None:
        """`unregister=False`: the nameserver has not noticed yet."""
        if unregister:
            del self.addresses[MASTER_ID]
        await self.master.aclose()
        self.master = AsyncExitStack()

    def answer(self, _: Connection, request: Command) -> Command:
        """The nameserver."""
        if request.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Command(code=ResponseCode.SUCCESS)
        if request.fields["topic"] != TOPIC:
            return Command(code=ResponseCode.TOPIC_NOT_EXIST)
        self.query_count += 1
        queue = QueueData(broker_name=BROKER, read_queue_count=1, write_queue_count=1, perm=6)
        broker = BrokerData(cluster="c", broker_name=BROKER, addresses=dict(self.addresses))
        route = TopicRouteData(queues=[queue], brokers=[broker])
        return Command(code=ResponseCode.SUCCESS, body=bodies.encode(route))


@asynccontextmanager
async def pair_of(
    folder: Path, slave: dict[str, object] | None = None, master: dict[str, object] | None = None
) -> AsyncGenerator[Pair]:
    async with running_broker(folder / "master") as broker, peer_of(broker.address) as peer:
        for number in range(COUNT):
            await peer.send(TOPIC, str(number).encode(), queue_count=1)
    shutil.copytree(folder / "master", folder / "slave")
    async with AsyncExitStack() as stops:
        pair = Pair(folder, stops, master_port=free_port())
        _, pair.namesrv = await stops.enter_async_context(serving(pair.answer))
        await pair.start_slave(**(slave or {}))
        await pair.start_master(**(master or {}))
        stops.push_async_callback(lambda: pair.master.aclose())
        yield pair


@dataclass(slots=True)
class Asked:
    """Requests that brokers of this process have served, with the id of the broker."""

    pulls: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Broker id and sysFlag."""
    commits: list[int] = field(default_factory=list[int])
    """Broker ids."""
    slave_has_master: bool = False
    """Whether the slave counts as connected to its master."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Records requests; the kernel's fast path is off, which would serve pulls unseen."""
    monkeypatch.setattr("tianzhou.protocol.kernel.new_feed", lambda: None)
    found = Asked()
    pull, update = (
        HANDLERS[code] for code in (RequestCode.PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET)
    )

    def pulled(deps: Deps, connection: Connection, request: Command) -> Answer:
        # Nothing is replicated in these tests.
        object.__setattr__(deps, "has_master", lambda: found.slave_has_master)
        flags = int(request.fields["sysFlag"])
        found.pulls.append((deps.settings.config.broker_id, flags))
        return pull(deps, connection, request)

    def updated(deps: Deps, connection: Connection, request: Command) -> Answer:
        found.commits.append(deps.settings.config.broker_id)
        return update(deps, connection, request)

    monkeypatch.setitem(HANDLERS, RequestCode.PULL_MESSAGE, pulled)
    monkeypatch.setitem(HANDLERS, RequestCode.UPDATE_CONSUMER_OFFSET, updated)
    return found


class Seen:
    """Handles messages; after `pause_at` of them it waits for `go_on`."""

    def __init__(self, pause_at: int = 0) -> None:
        self.offsets: list[int] = []
        self.pause_at = pause_at
        self.paused, self.go_on = asyncio.Event(), asyncio.Event()

    async def take(self, message: ReceivedMessage) -> None:
        self.offsets.append(message.queue_offset)
        if self.pause_at and len(self.offsets) >= self.pause_at:
            self.paused.set()
            await self.go_on.wait()


def consumer_of(pair: Pair, seen: Seen) -> PushConsumer:
    consumer = PushConsumer(
        GROUP, namesrv=pair.namesrv, start="first", pull_batch_size=4, queue_messages_max=4,
        consume_threads=1, poll_namesrv_ms=NEVER_MS, persist_offsets_ms=100,
        pull_error_pause_ms=200, reconnect_max_ms=200, pull_suspend_ms=1_000,
    )  # fmt: skip
    consumer.subscribe(TOPIC, seen.take)
    return consumer


async def committed(address: str) -> int:
    async with peer_of(address) as peer:
        return await committed_at(peer)


async def committed_at(peer: Peer) -> int:
    fields = {
        "consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "setZeroIfNotFound": "false"
    }  # fmt: skip
    answer = await peer.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    return int(answer.fields.get("offset", "-1"))


# -- read-write split ------------------------------------------------------------------------------


async def test_reader_far_behind_reads_from_the_slave_and_commits_at_the_master(
    tmp_path: Path, asked: Asked
) -> None:
    """PullAPIWrapper, RemoteBrokerOffsetStore: no commit flag for a slave, offsets to id 0."""
    old: dict[str, object] = {"accessMessageInMemoryMaxRatio": 0}
    async with pair_of(tmp_path, slave=old, master=old) as pair:
        seen = Seen()
        async with consumer_of(pair, seen):
            await eventually(lambda: len(seen.offsets) >= COUNT, "all messages")
            assert sorted(seen.offsets) == list(range(COUNT))
            await eventually(
                lambda: SLAVE_ID in [id_ for id_, _ in asked.pulls], "pulls at the slave"
            )

            async def is_committed() -> bool:
                return await committed(pair.addresses[MASTER_ID]) == COUNT

            await eventually(is_committed, "the offset at the master")
        assert set(asked.commits) == {MASTER_ID}
        assert await committed(pair.addresses[SLAVE_ID]) == -1
        at_slave = [flags for id_, flags in asked.pulls if id_ == SLAVE_ID]
        assert len(at_slave) > COUNT // 8
        assert not any(flags & COMMIT_OFFSET for flags in at_slave)


# -- a master that is gone, and comes back ---------------------------------------------------------


async def test_consumer_reads_from_the_slave_while_the_master_is_stopped(
    tmp_path: Path, asked: Asked
) -> None:
    async with pair_of(tmp_path) as pair:
        seen = Seen(pause_at=COUNT // 4)
        async with consumer_of(pair, seen):
            await asyncio.wait_for(seen.paused.wait(), 60)
            assert {id_ for id_, _ in asked.pulls} == {MASTER_ID}
            await pair.stop_master()
            seen.go_on.set()
            await eventually(lambda: len(seen.offsets) >= COUNT, "all messages")
            assert sorted(set(seen.offsets)) == list(range(COUNT))

            async def is_committed() -> bool:
                return await committed(pair.addresses[SLAVE_ID]) == COUNT

            # There is no master in the route, so the offset goes to the slave.
            await eventually(is_committed, "the offset at the slave")


async def test_consumer_comes_back_to_the_master(tmp_path: Path, asked: Asked) -> None:
    """A slave that is connected to its master sends back readers that have read everything."""
    async with pair_of(tmp_path) as pair:
        seen = Seen()
        async with consumer_of(pair, seen):
            await eventually(lambda: len(seen.offsets) >= COUNT, "all messages")
            await pair.stop_master()
            await eventually(lambda: asked.pulls[-1][0] == SLAVE_ID, "a pull at the slave")
            await pair.start_master()
            assert (await read_at_end(pair)).code == ResponseCode.PULL_NOT_FOUND
            asked.slave_has_master = True
            await eventually(lambda: asked.pulls[-1][0] == MASTER_ID, "a pull at the master")
            async with Producer("p", namesrv=pair.namesrv) as producer:
                await producer.send(TOPIC, b"new")
            await eventually(lambda: COUNT in seen.offsets, "the new message")
        assert sorted(seen.offsets) == list(range(COUNT + 1)), "nothing is skipped or repeated"


async def read_at_end(pair: Pair) -> Command:
    async with peer_of(pair.addresses[SLAVE_ID]) as peer:
        return await peer.pull(GROUP, TOPIC, 0, COUNT)


async def test_reads_go_to_the_slave_while_the_route_names_a_dead_master(tmp_path: Path) -> None:
    """Nameservers notice a power cut after two minutes."""
    async with pair_of(tmp_path) as pair:
        await pair.stop_master(unregister=False)
        async with QueueReader("readers", namesrv=pair.namesrv, reconnect_max_ms=100) as reader:
            first = await reader.pull(QUEUE, 0, message_count=5)
            assert [message.queue_offset for message in first.messages] == [0, 1, 2, 3, 4]
            assert first.suggested_broker_id == MASTER_ID
            await pair.start_master()

            async def is_at_master() -> bool:
                await reader.pull(QUEUE, 0)
                async with peer_of(pair.addresses[MASTER_ID]) as peer:
                    stats = await peer.expect(RequestCode.GET_BROKER_RUNTIME_INFO)
                return b'"msgGetTotalTodayNow":"0"' not in stats.body

            await eventually(is_at_master, "a pull at the master")


# -- routes after failures -------------------------------------------------------------------------


@pytest.mark.parametrize("is_slave_now", [True, False])
async def test_failed_sends_ask_for_a_new_route_at_once(
    tmp_path: Path, *, is_slave_now: bool
) -> None:
    """The master has become a slave, or is gone; a second after the failure its successor is known.

    Stock Java clients ask for the route every 30 s only.
    """
    async with pair_of(tmp_path) as pair, Producer(
        "p", namesrv=pair.namesrv, poll_namesrv_ms=NEVER_MS, send_timeout_ms=20_000
    ) as producer:  # fmt: skip
        await producer.send(TOPIC, b"first")
        master = pair.addresses[MASTER_ID]
        old = pair.addresses[SLAVE_ID] if is_slave_now else f"127.0.0.1:{free_port()}"
        pair.addresses = {MASTER_ID: old}
        async with Producer(
            "q", namesrv=pair.namesrv, poll_namesrv_ms=NEVER_MS, send_timeout_ms=20_000,
            instance_name="with-the-old-route",
        ) as outdated:  # fmt: skip
            before = pair.query_count
            sends = [asyncio.create_task(outdated.send(TOPIC, b"x")) for _ in range(50)]
            began_s = time.monotonic()
            await eventually(lambda: pair.query_count >= before + 8, "queries of the route")
            assert not any(send.done() for send in sends)
            elapsed_s = time.monotonic() - began_s
            # After 50 ms at first, then after longer pauses, at last one a second.
            assert pair.query_count - before <= 6 + elapsed_s
            pair.addresses = {MASTER_ID: master}
            await asyncio.gather(*sends)


async def test_failing_pulls_ask_for_the_route_once_a_second_at_last(tmp_path: Path) -> None:
    async with pair_of(tmp_path) as pair:
        seen = Seen()
        async with consumer_of(pair, seen):
            await eventually(lambda: len(seen.offsets) >= COUNT, "all messages")
            await pair.stop_master(unregister=False)
            del pair.addresses[SLAVE_ID]
            began_s, before = time.monotonic(), pair.query_count
            await eventually(lambda: pair.query_count >= before + 8, "queries of the route")
            elapsed_s = time.monotonic() - began_s
            # Rebalancing, heartbeats and commits fail as well, and ask for no other route.
            assert pair.query_count - before <= 6 + elapsed_s
