"""Messages of all kinds, sent to a broker of any kind that may be killed meanwhile."""

import asyncio
import random
import time
from dataclasses import dataclass, field

from tests.support.brokers import Peer, send_fields
from tianzhou.errors import RemotingError
from tianzhou.protocol import properties, sysflag
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.records.batch import BatchItem
from tianzhou.protocol.records.batch import encode as encode_batch
from tianzhou.protocol.records.message_id import decode_offset_id

TOPICS = ("orders", "events", "batches")
GROUP, PRODUCERS = "readers", "producers"
SENDERS = 12
BATCH = 20
BODY_BYTES_MAX = 1500
PATIENCE_S = 300.0
DONE = (
    ResponseCode.SUCCESS, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.FLUSH_DISK_TIMEOUT,
)  # fmt: skip
"""The message is stored."""


@dataclass(slots=True)
class MixedLoad:
    """Sends messages; what each number sends depends on the seed only."""

    peer: Peer
    seed: int
    has_timers: bool
    count: int = 0
    """Messages that were acknowledged."""
    kinds: dict[str, int] = field(default_factory=dict[str, int])
    _number: int = 0

    async def send(self, goal: int) -> None:
        """Send until so many messages are acknowledged in all."""
        senders = [asyncio.create_task(self._send_until(goal)) for _ in range(SENDERS)]
        await asyncio.gather(*senders)

    async def _send_until(self, goal: int) -> None:
        while self.count < goal:
            number = self._number
            self._number += 1
            rng = random.Random(f"{self.seed}-{number}")
            kind, count = await self._send_one(number, rng)
            self.count += count
            self.kinds[kind] = self.kinds.get(kind, 0) + count

    async def _send_one(self, number: int, rng: random.Random) -> tuple[str, int]:
        body = rng.randbytes(rng.randint(1, BODY_BYTES_MAX))
        props = {
            "UNIQ_KEY": f"{self.seed:X}Z{number:X}",
            "KEYS": f"k{number} all",
            "TAGS": "ab"[number % 2],
        }
        match rng.randrange(100):
            case choice if choice < 60:
                stored = await self._store(TOPICS[number % 2], number % 4, body, props)
                await self._after(choice, number, stored)
                return "plain", 1
            case choice if choice < 68:
                return await self._batch(number, rng)
            case choice if choice < 76:
                await self._store(
                    "orders", 0, body, props | {"DELAY": rng.choice(("1", "2", "18"))}
                )
                return "delayed", 1
            case choice if choice < 84 and self.has_timers:
                wait_s = rng.choice(("1", "3", "7200"))
                await self._store("events", 1, body, props | {"TIMER_DELAY_SEC": wait_s})
                return "timed", 1
            case _:
                return await self._half(number, rng, body, props)

    async def _after(self, choice: int, number: int, stored: Command) -> None:
        """Some messages are given back by a consumer; some progress is committed."""
        topic, queue = TOPICS[number % 2], number % 4
        if choice < 5:
            fields = {
                "offset": str(decode_offset_id(stored.fields["msgId"])[1]), "group": GROUP,
                "delayLevel": "0", "originMsgId": stored.fields["msgId"], "originTopic": topic,
                "unitMode": "false", "maxReconsumeTimes": "16",
            }  # fmt: skip
            await self._ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            self.kinds["sent back"] = self.kinds.get("sent back", 0) + 1
        elif choice < 15:
            fields = {
                "consumerGroup": GROUP, "topic": topic, "queueId": str(queue),
                "commitOffset": stored.fields["queueOffset"],
            }  # fmt: skip
            await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def _batch(self, number: int, rng: random.Random) -> tuple[str, int]:
        items = [
            BatchItem(
                rng.randbytes(rng.randint(1, 200)),
                properties.encode({"UNIQ_KEY": f"{self.seed:X}B{number:X}I{item:X}", "KEYS": "b"}),
            )
            for item in range(BATCH)
        ]
        fields = send_fields("batches", queue_id=number % 4, batch=True)
        await self._ask(RequestCode.SEND_BATCH_MESSAGE, fields, encode_batch(items))
        return "batch", BATCH

    async def _half(
        self, number: int, rng: random.Random, body: bytes, props: dict[str, str]
    ) -> tuple[str, int]:
        props |= {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
        flag = sysflag.TRANSACTION_PREPARED
        stored = await self._store("orders", number % 4, body, props, flag)
        state = rng.choice((sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK, 0))
        if state:
            fields = {
                "producerGroup": PRODUCERS, "tranStateTableOffset": stored.fields["queueOffset"],
                "commitLogOffset": str(decode_offset_id(stored.fields["msgId"])[1]),
                "commitOrRollback": str(state), "msgId": props["UNIQ_KEY"],
                "transactionId": props["UNIQ_KEY"], "fromTransactionCheck": "false",
            }  # fmt: skip
            await self._ask(RequestCode.END_TRANSACTION, fields)
        return "half", 1

    # -- requests ----------------------------------------------------------------------------------

    async def _store(
        self, topic: str, queue: int, body: bytes, props: dict[str, str], sys_flag: int = 0
    ) -> Command:
        fields = send_fields(topic, queue_id=queue, props=props, sys_flag=sys_flag)
        return await self._ask(RequestCode.SEND_MESSAGE_V2, fields, body)

    async def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        """Repeated until the broker has accepted it: it may be dead now."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            problem = "no response"
            try:
                answer = await self.peer.ask(code, fields, body, timeout_ms=10_000)
            except RemotingError as error:
                problem = str(error)
            else:
                if answer.code in DONE:
                    return answer
                problem = f"{answer.code}: {answer.remark}"
            assert time.monotonic() < deadline_s, (code, fields, problem)
            await asyncio.sleep(0.1)
