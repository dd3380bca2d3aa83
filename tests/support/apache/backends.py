"""The clusters that the client suite runs against: ours, and Apache's of both versions.

A test with the fixture `backend` runs three times. `Backend.name` makes names of topics and groups
unique, because all tests of a run share the servers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

from tests.support.apache.servers import apache_broker, apache_namesrv
from tianzhou.client import ClientSettings
from tianzhou.client.connection import hub, shared_hubs
from tianzhou.errors import RouteNotFound
from tianzhou.message import StoredMessage
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.record import decode_records
from tianzhou.testing import Cluster

OURS = "tianzhou"
BACKENDS = (OURS, "5.5.0", "4.9.7")
DEADLINE_S = 120.0

_BROKER: dict[str, Any] = {
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
    # Every level is one second, for fast redelivery.
    "messageDelayLevel": " ".join(["1s"] * 18),
}
"""Settings of every broker; 4.9 ignores unknown ones."""
_numbers = count(1)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backend:
    """A running cluster."""

    kind: str
    namesrv: str
    mark: str = field(default_factory=lambda: f"{time.time_ns() // 1_000_000 % 10**8}")

    @property
    def is_ours(self) -> bool:
        return self.kind == OURS

    @property
    def has_timers(self) -> bool:
        """4.9 has delay levels only."""
        return self.kind != "4.9.7"

    def name(self, text: str) -> str:
        """A unique name of a topic or group."""
        return f"{text}_{self.mark}_{next(_numbers)}"

    async def stored(self, topic: str) -> list[StoredMessage]:
        """All current messages of a topic, by queue and offset."""
        own = shared_hubs.acquire(ClientSettings(namesrv=self.namesrv))
        try:
            route = await own.routes.get(topic, refresh=True)
            found: list[StoredMessage] = []
            for queue in route.readable:
                address = own.routes.master_address(queue.broker_name)
                assert address is not None
                found += await _pull_all(own, address, topic, queue.queue_id)
            return found
        finally:
            await own.release()

    async def await_stored(self, topic: str, number: int) -> list[StoredMessage]:
        """All messages of a topic, once there are `number`; it may not be registered yet."""

        async def probe() -> list[StoredMessage]:
            try:
                return await self.stored(topic)
            except RouteNotFound:
                return []

        return await until(probe, lambda found: len(found) >= number)

    async def await_bodies(self, topic: str, bodies: set[bytes]) -> None:
        """Wait until a topic has exactly these bodies, on our broker each of them once.

        Apache's brokers store a message twice if its commit races with the response to a check.
        """

        async def probe() -> list[bytes]:
            return [message.body for message in await self.await_stored(topic, 1)]

        found = await until(probe, lambda found: set(found) == bodies)
        assert not self.is_ours or len(found) == len(bodies), found


@contextmanager
def running_backend(kind: str) -> Generator[Backend]:
    """Ours runs in this process, Apache's in two processes."""
    if kind == OURS:
        with Cluster(**_BROKER) as cluster:
            yield Backend(kind, cluster.namesrv_address)
    else:
        with (
            apache_namesrv(kind) as namesrv,
            apache_broker(kind, namesrv.address, graceful=False, **_BROKER),
        ):
            yield Backend(kind, namesrv.address)


async def until(probe: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    """Call `probe` until its value is good; after the deadline fail with the last value."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        seen = await probe()
        if good(seen):
            return seen
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {DEADLINE_S} s, last seen: {seen!r}")
        await asyncio.sleep(0.05)


async def _pull_all(own: hub.Hub, address: str, topic: str, queue_id: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    queue_offset = 0
    while True:
        fields = {
            "consumerGroup": "client_suite_reader", "topic": topic, "queueId": str(queue_id),
            "queueOffset": str(queue_offset), "maxMsgNums": "32", "sysFlag": "4",
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
            "subVersion": "0",
        }  # fmt: skip
        command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
        answer = await own.request(address, command, 10_000)
        if answer.code != ResponseCode.SUCCESS:
            assert answer.code in (
                ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
            ), (answer.code, answer.remark)  # fmt: skip
            next_offset = int(answer.fields["nextBeginOffset"])
            if next_offset <= queue_offset:
                return found
            queue_offset = next_offset
            continue
        found += decode_records(answer.body, check_crc=True)
        queue_offset = int(answer.fields["nextBeginOffset"])
