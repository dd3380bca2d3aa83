"""Producers of all kinds of messages, and which of them were acknowledged at which queue offset.

    load = Load()
    async with load.running(address, seed=1):
        await load.reach(500)
        ...kill the broker...
    await check(peer, load)

A message counts as acknowledged if the response was SEND_OK. The producers end when the broker
does; unless they persist, then they go on until the block ends.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.brokers import Peer, eventually, messages_in, peer_of, send_fields
from tianzhou.errors import RemotingError
from tianzhou.names import HALF_TOPIC, SCHEDULE_TOPIC
from tianzhou.protocol import sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records import batch
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.message_id import decode_offset_id

Place = tuple[str, int, int]
"""Topic, queue and queue offset."""

TOPICS = ("plain", "special", "batches", "orders", "late")
Kind = Callable[[Peer, random.Random], Coroutine[Any, Any, None]]

QUEUES = 4
PLAIN_CONNECTIONS = 3
PLAIN_EACH = 6
"""Senders of ordinary messages on each of their connections."""
DELAY_LEVEL = 18
LESS_DURABLE = (
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
)
BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
TOO_FEW = "in-sync replicas not enough"
PULLED_MAX = 32


class Load:
    """What was sent and acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[Place, bytes] = {}
        self.committed: set[bytes] = set()
        """Transactions whose commit was acknowledged; they are in "orders" anywhere."""
        self.codes = Counter[int]()
        self._is_over = False
        self._number = 0

    @asynccontextmanager
    async def running(
        self, address: str, *, seed: int, persists: bool = False
    ) -> AsyncGenerator[None]:
        """Producers of a broker. With `persists` they go on after the loss of a connection."""
        self._is_over = False
        dice = random.Random(seed)
        kinds: list[Kind] = [
            self._special, self._batch, self._transaction, self._delayed
        ]  # fmt: skip
        async with AsyncExitStack() as stack:
            plain = [
                await stack.enter_async_context(peer_of(address)) for _ in range(PLAIN_CONNECTIONS)
            ]
            other = await stack.enter_async_context(peer_of(address))
            work: list[tuple[Kind, Peer]] = [
                (self._plain, peer) for peer in plain for _ in range(PLAIN_EACH)
            ]
            work += [(kind, other) for kind in kinds for _ in range(2)]
            tasks = [
                asyncio.create_task(self._repeat(kind, peer, dice, persists)) for kind, peer in work
            ]
            try:
                yield
            finally:
                self._is_over = True
                # A killed broker ends them, a living one answers.
                await asyncio.gather(*tasks)

    async def once(self, address: str) -> None:
        """Send one of each kind, so that their topics exist."""
        dice = random.Random(0)
        async with peer_of(address) as peer:
            for kind in (
                self._plain, self._special, self._batch, self._transaction, self._delayed
            ):  # fmt: skip
                await kind(peer, dice)

    async def reach(self, count: int) -> None:
        """Wait until so many more places are acknowledged."""
        wanted = len(self.acknowledged) + count
        await eventually(lambda: len(self.acknowledged) >= wanted, f"{count} acknowledged")

    async def _repeat(
        self,
        kind: Kind,
        peer: Peer,
        dice: random.Random,
        persists: bool,
    ) -> None:
        while not self._is_over:
            try:
                await kind(peer, dice)
            except RemotingError:
                if not persists:
                    return
                await asyncio.sleep(0.02)

    def _body(self, dice: random.Random, size_max: int = 600) -> bytes:
        self._number += 1
        return b"%d:" % self._number + b"x" * dice.randrange(size_max)

    async def _sent(
        self, peer: Peer, code: int, fields: dict[str, str], body: bytes
    ) -> Command | None:
        """The response if it is SEND_OK."""
        response = await peer.ask(code, fields, body)
        self.codes[response.code] += 1
        if response.code == ResponseCode.SUCCESS:
            return response
        is_refused = response.code in BUSY or (response.remark or "").startswith(TOO_FEW)
        assert is_refused or response.code in LESS_DURABLE, (response.code, response.remark)
        await asyncio.sleep(0.01)
        return None

    def _note(
        self, response: Command | None, topic: str, body: bytes, queue_id: int | None = None
    ) -> None:
        if response is None:
            return
        fields = response.fields
        queue_id = int(fields["queueId"]) if queue_id is None else queue_id
        place = (topic, queue_id, int(fields["queueOffset"]))
        assert place not in self.acknowledged, f"{place} was acknowledged twice"
        self.acknowledged[place] = body

    # -- kinds -------------------------------------------------------------------------------------

    async def _plain(self, peer: Peer, dice: random.Random) -> None:
        """By the fast path, but for the first ones of each queue."""
        body, queue_id = self._body(dice), dice.randrange(QUEUES)
        fields = send_fields("plain", queue_id=queue_id)
        sent = await self._sent(peer, RequestCode.SEND_MESSAGE_V2, fields, body)
        self._note(sent, "plain", body)

    async def _special(self, peer: Peer, dice: random.Random) -> None:
        """By the handlers, which alone know this property."""
        body = self._body(dice)
        props = {"RETRY_TOPIC": "x", "KEYS": f"k{self._number} shared", "TAGS": "a"}
        fields = send_fields("special", props=props)
        sent = await self._sent(peer, RequestCode.SEND_MESSAGE_V2, fields, body)
        self._note(sent, "special", body)

    async def _batch(self, peer: Peer, dice: random.Random) -> None:
        parts = [self._body(dice, 200) for _ in range(dice.randint(1, 5))]
        fields = send_fields("batches", queue_id=dice.randrange(2), batch=True)
        encoded = batch.encode([BatchItem(part) for part in parts])
        sent = await self._sent(peer, RequestCode.SEND_BATCH_MESSAGE, fields, encoded)
        if sent is not None:
            first = int(sent.fields["queueOffset"])
            for number, part in enumerate(parts):
                place = ("batches", int(sent.fields["queueId"]), first + number)
                assert place not in self.acknowledged
                self.acknowledged[place] = part

    async def _transaction(self, peer: Peer, dice: random.Random) -> None:
        body = self._body(dice)
        props = {"TRAN_MSG": "true", "PGROUP": "producers", "UNIQ_KEY": f"u{self._number}"}
        flag = sysflag.TRANSACTION_PREPARED
        fields = send_fields("orders", props=props, sys_flag=flag)
        half = await self._sent(peer, RequestCode.SEND_MESSAGE_V2, fields, body)
        if half is None:
            return
        self._note(half, HALF_TOPIC, body, 0)
        is_commit = dice.random() < 0.7
        state = sysflag.TRANSACTION_COMMIT if is_commit else sysflag.TRANSACTION_ROLLBACK
        end = {
            "producerGroup": "producers", "tranStateTableOffset": half.fields["queueOffset"],
            "commitLogOffset": str(decode_offset_id(half.fields["msgId"])[1]),
            "commitOrRollback": str(state), "msgId": props["UNIQ_KEY"],
            "transactionId": props["UNIQ_KEY"], "fromTransactionCheck": "false",
        }  # fmt: skip
        if await self._sent(peer, RequestCode.END_TRANSACTION, end, b"") and is_commit:
            self.committed.add(body)

    async def _delayed(self, peer: Peer, dice: random.Random) -> None:
        body = self._body(dice)
        fields = send_fields("late", props={"DELAY": str(DELAY_LEVEL)})
        sent = await self._sent(peer, RequestCode.SEND_MESSAGE_V2, fields, body)
        self._note(sent, SCHEDULE_TOPIC, body, DELAY_LEVEL - 1)


async def messages_of(peer: Peer, topic: str, queue_id: int, start: int = 0) -> dict[int, bytes]:
    """The bodies of a queue by queue offset, as a consumer receives them."""
    found: dict[int, bytes] = {}
    offset = start
    while True:
        response = await peer.pull("readers", topic, queue_id, offset, count=PULLED_MAX)
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return found
        assert response.code == ResponseCode.SUCCESS, (topic, response.code, response.remark)
        for message in messages_in(response):
            assert (message.topic, message.queue_id) == (topic, queue_id)
            found[message.queue_offset] = message.body
        offset = int(response.fields["nextBeginOffset"])


async def missing(
    address: str, load: Load, already: set[Place] | None = None
) -> dict[Place, bytes]:
    """Acknowledged messages that a broker does not have at their places.

    Places in `already` were checked before. Commits without a message in "orders" count, too.
    """
    wanted = {
        place: body
        for place, body in load.acknowledged.items()
        if not already or place not in already
    }
    starts: dict[tuple[str, int], int] = {}
    for topic, queue_id, queue_offset in wanted:
        at = starts.get((topic, queue_id), queue_offset)
        starts[topic, queue_id] = min(at, queue_offset)
    async with peer_of(address) as peer:
        stored = {
            (topic, queue_id, at): body
            for (topic, queue_id), start in starts.items()
            for at, body in (await messages_of(peer, topic, queue_id, start)).items()
        }
        orders = await messages_of(peer, "orders", 0) if load.committed else {}
    lost = {place: body for place, body in wanted.items() if stored.get(place) != body}
    uncommitted = load.committed - set(orders.values())
    return lost | {("orders", 0, -number): body for number, body in enumerate(uncommitted, 1)}
