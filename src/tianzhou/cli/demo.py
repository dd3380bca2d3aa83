"""The demonstration of `tianzhou up --demo`: messages on their way, seen from outside.

It is a client like any other: it asks the nameserver where the topic is, sends a message every
second, and receives each one by long polling on all queues.
"""

import asyncio
import time
from collections.abc import Callable

from tianzhou.clock import wall_ms
from tianzhou.errors import RemotingError, RequestError
from tianzhou.names import AUTO_CREATE_TOPIC, MASTER_ID, PERM_READ, PERM_WRITE
from tianzhou.protocol import headers, properties
from tianzhou.protocol.bodies import decode as decode_body
from tianzhou.protocol.bodies.route import TopicRouteData
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.namesrv import GetRouteInfoRequest
from tianzhou.protocol.headers.offsets import GetMaxOffsetRequest, GetMaxOffsetResponse
from tianzhou.protocol.headers.pull import PullMessageRequest, PullMessageResponse
from tianzhou.protocol.headers.send import SendMessageRequestV2, SendMessageResponse
from tianzhou.protocol.headers.topics import CreateTopicRequest
from tianzhou.protocol.record import decode_records
from tianzhou.remoting.client import Client

TOPIC = "TianzhouDemo"
GROUP = "tianzhou_demo"
QUEUES = 4
INTERVAL_S = 1.0

_HOLD_MS = 15_000
_PULL_FLAGS = 1 << 1 | 1 << 2  # may be held; the subscription is in the header
_RETRY_S = 1.0
_ROUTE_WAIT_S = 10.0


class Demo:
    """Sends and receives until cancelled; `say` gets one line for each thing that happens."""

    def __init__(
        self, namesrv_address: str, broker_address: str, say: Callable[[str], None]
    ) -> None:
        self._namesrv = namesrv_address
        self._broker = broker_address
        self._say = say
        self._client = Client()
        self.received_count = 0

    async def run(self) -> None:
        try:
            await self._create_topic()
            await self._show_route()
            starts = [await self._end_of(queue) for queue in range(QUEUES)]
            async with asyncio.TaskGroup() as tasks:
                for queue, start in enumerate(starts):
                    tasks.create_task(self._receive(queue, start))
                tasks.create_task(self._send())
        finally:
            await self._client.close()

    async def _ask(
        self,
        code: RequestCode,
        header: headers.Header,
        body: bytes = b"",
        *,
        of_namesrv: bool = False,
        timeout_ms: int = 3000,
    ) -> Command:
        request = Command(code=code, ext_fields=headers.encode(header), body=body)
        address = self._namesrv if of_namesrv else self._broker
        answer = await self._client.request(address, request, timeout_ms)
        if answer.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND):
            raise RequestError(answer.code, answer.remark or "no reason given")
        return answer

    async def _create_topic(self) -> None:
        await self._ask(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            CreateTopicRequest(
                topic=TOPIC,
                default_topic=AUTO_CREATE_TOPIC,
                read_queue_count=QUEUES,
                write_queue_count=QUEUES,
                perm=PERM_READ | PERM_WRITE,
                filter_type="SINGLE_TAG",
                order=False,
            ),
        )

    async def _show_route(self) -> None:
        answer = await self._route()
        for broker in decode_body(TopicRouteData, answer.body).brokers:
            address = (broker.addresses or {}).get(MASTER_ID, "an unknown address")
            self._say(f"route of {TOPIC}: {broker.broker_name} at {address}, {QUEUES} queues")

    async def _route(self) -> Command:
        """The broker tells the nameserver of a new topic in its own time, which is soon."""
        deadline_s = time.monotonic() + _ROUTE_WAIT_S
        while True:
            try:
                return await self._ask(
                    RequestCode.GET_ROUTEINFO_BY_TOPIC,
                    GetRouteInfoRequest(topic=TOPIC),
                    of_namesrv=True,
                )
            except RequestError as refused:
                too_late = time.monotonic() > deadline_s
                if refused.code != ResponseCode.TOPIC_NOT_EXIST or too_late:
                    raise
            await asyncio.sleep(0.05)

    async def _end_of(self, queue: int) -> int:
        answer = await self._ask(
            RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic=TOPIC, queue_id=queue)
        )
        return headers.decode(GetMaxOffsetResponse, answer.fields).queue_offset

    async def _send(self) -> None:
        number = 0
        while True:
            number += 1
            started = time.perf_counter()
            answer = await self._ask(
                RequestCode.SEND_MESSAGE_V2,
                SendMessageRequestV2(
                    producer_group=GROUP,
                    topic=TOPIC,
                    default_topic=AUTO_CREATE_TOPIC,
                    default_topic_queue_count=QUEUES,
                    queue_id=number % QUEUES,
                    sys_flag=0,
                    born_timestamp=wall_ms(),
                    flag=0,
                    properties=properties.encode({"TAGS": "demo", "KEYS": f"demo-{number}"}),
                ),
                f"cargo {number}, sent {time.time_ns()}".encode(),
            )
            took_ms = (time.perf_counter() - started) * 1000
            stored = headers.decode(SendMessageResponse, answer.fields)
            self._say(
                f"-> sent     cargo {number} to queue {stored.queue_id}, "
                f"stored at offset {stored.queue_offset} in {took_ms:.1f} ms"
            )
            await asyncio.sleep(INTERVAL_S)

    async def _receive(self, queue: int, queue_offset: int) -> None:
        while True:
            header = PullMessageRequest(
                consumer_group=GROUP,
                topic=TOPIC,
                queue_id=queue,
                queue_offset=queue_offset,
                max_msg_count=32,
                sys_flag=_PULL_FLAGS,
                commit_offset=0,
                suspend_timeout_millis=_HOLD_MS,
                subscription="*",
                sub_version=0,
                expression_type="TAG",
            )
            answer = await self._ask(RequestCode.PULL_MESSAGE, header, timeout_ms=_HOLD_MS + 15_000)
            for message in decode_records(answer.body):
                text = message.body.decode()
                name, _, sent_ns = text.partition(", sent ")
                after_ms = (time.time_ns() - int(sent_ns)) / 1e6
                self.received_count += 1
                self._say(f"<- received {name} from queue {queue}, {after_ms:.1f} ms after it left")
            queue_offset = headers.decode(PullMessageResponse, answer.fields).next_begin_offset


async def keep_running(
    namesrv_address: str, broker_address: str, say: Callable[[str], None]
) -> None:
    """Run the demonstration; when the servers refuse it, say why and try again."""
    while True:
        try:
            await Demo(namesrv_address, broker_address, say).run()
        except* (RemotingError, RequestError) as group:
            say(f"the demonstration stumbled: {group.exceptions[0]}; it goes on in a second")
        await asyncio.sleep(_RETRY_S)
