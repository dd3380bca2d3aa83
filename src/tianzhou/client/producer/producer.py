"""The producer: sends messages to the queues of a topic, and tells where they were stored.

    async with Producer("billing", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send("orders", b"paid", keys="4711")

RetryRule and time. `send_timeout_ms` covers all tries of a send. What was certainly not sent (no
connection, a broker that restarts or is busy) is tried until the time is up. After a lost
connection the message may be stored: an awaited `send` is tried again on another broker
(`retry_count` times), `submit` too (`async_retry_count` times) or, where its queue is chosen, there
again; an awaited send to a chosen queue, an ordered send and `oneway` never. A send that failed
because its time was up may have been stored all the same: consumers recognise such repetitions by
the message's key.

Back pressure. At most `in_flight_count` messages of `in_flight_bytes` together are on their way; a
send beyond that waits, within its time.

Batches. With `linger_ms` messages wait for others of their topic, and leave together.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import TypedDict, Unpack, overload

from tianzhou.client.connection.hub import Hub
from tianzhou.client.message import Message, ReceivedMessage
from tianzhou.client.observe import trace
from tianzhou.client.producer import request_reply as request
from tianzhou.client.producer.batch_split import (
    SendOutcome,
    SplitRequest,
    merge_outcomes,
    request_sequences,
    split_into_requests,
)
from tianzhou.client.producer.pipeline import SendPipeline, fail
from tianzhou.client.producer.selectors import Selector, by_shard
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.retrying import TimeLimit
from tianzhou.client.sending.send_request import SendResult
from tianzhou.clock import wall_ms
from tianzhou.errors import (
    BrokerError,
    MessageRefused,
    QueueNotFound,
    ReplyTimeout,
    ReplyUndeliverable,
    TianzhouError,
)
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import RecallMessageRequest, RecallMessageResponse

log = logging.getLogger(__name__)

OnDone = Callable[[SendResult | None, BaseException | None], None]
"""Told how a submitted message fared: a result, or an error."""

_BATCHES_AT_ONCE = 8


class MessageOptions(TypedDict, total=False):
    """What `send` takes beside topic and body: fields of `Message`."""

    tags: str | None
    keys: str | tuple[str, ...] | list[str]
    properties: dict[str, str]
    delay_level: int
    delay: float | timedelta | None
    deliver_at: datetime | None
    shard: str | None
    wait_stored: bool
    flag: int


_OPTIONS = tuple(MessageOptions.__annotations__)


class Producer(SendPipeline):
    """Sends messages. Make it, start it (or `async with`), close it; on one event loop."""

    # -- sending -----------------------------------------------------------------------------------

    @overload
    async def send(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult: ...

    @overload
    async def send(
        self,
        topic: str,
        body: bytes | str,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult: ...

    async def send(
        self,
        message: Message | str,
        body: bytes | str | None = None,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult:
        """Send a message and wait until the broker has it.

        `queue` or `select` choose where it goes; such a send is not tried elsewhere. Raises
        MessageRefused, RouteNotFound, BrokerError (the broker says no), SendError and SendTimeout.
        """
        ready = message_of(message, body, options)
        limit = self._limit(timeout_ms)
        if select is not None and queue is None:
            return await self._send_selected(ready, select, limit)
        if queue is not None:
            return await self._send(ready, limit, await self._chosen(ready, queue, None, limit))
        if self._batches is not None and send_request.may_batch(ready):
            return await (
                self._add_to_batch_now(self._batches, ready, limit.timeout_ms)
                or await self._add_to_batch(self._batches, ready, limit)
            )
        return await self._send(ready, limit)

    async def send_ordered(
        self, message: Message, /, *, select: Selector = by_shard, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a message to the queue of its shard, once. Order holds if each send is awaited."""
        return await self.send(message, select=select, timeout_ms=timeout_ms)

    async def submit(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        on_done: OnDone | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendResult]:
        """Put a message on its way and return; the future gives the result.

        Waits only while too much is on its way already, or the route has to be asked for. `queue`
        and `select` are as for `send`. `on_done` is called on the event loop.
        """
        if queue is not None or select is not None:
            future = await self._submit_chosen(message, queue, select, self._limit(timeout_ms))
        else:
            future = await self._submit(message, timeout_ms or self.settings.send_timeout_ms)
        if on_done is not None:
            future.add_done_callback(lambda done: self._tell(on_done, done))
        return future

    async def oneway(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Send a message without asking what became of it.

        Raises MessageRefused, RouteNotFound and RemotingError for what is known at once, and
        SendTimeout if it could not be sent in its time.
        """
        self._check_running()
        limit = self._limit(timeout_ms)
        if queue is not None or select is not None:
            queue = await self._chosen(message, queue, select, limit)
        if self._telemetry is None:
            await self._sender.oneway(self._outgoing(message), limit, queue)
            return
        carrier: dict[str, str] = {}
        with self._telemetry.sending_oneway(message.topic, len(message.payload), carrier):
            await self._sender.oneway(self._outgoing(message, carrier), limit, queue)

    async def send_many(
        self,
        messages: Iterable[Message],
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages in as few requests as their sizes allow; results in their order.

        Messages of one topic share batches; those that no batch takes (delayed ones) go alone. If
        any fails, the others are sent all the same, and SendManyError tells what became of each.
        The time is for each request.

        `queue` is for all of them, `select` is asked for each; batches are then made by queue, and
        those of one queue follow each other.
        """
        ready = list(messages)
        if self._telemetry is not None:
            ready = [
                self._telemetry.created(each) if send_request.may_batch(each) else each
                for each in ready
            ]
        chosen = None
        if queue is not None or select is not None:
            limit = self._limit(timeout_ms)
            chosen = await self._all_chosen(ready, queue, select, limit)
        requests = split_into_requests(
            ready, self._wire_topic, self._packing, namespace=self._namespace, queues=chosen,
            batch_bytes=self.settings.batch_bytes, batch_count=self.settings.batch_count,
        )  # fmt: skip
        room = asyncio.Semaphore(_BATCHES_AT_ONCE)
        again = select if queue is None else None
        outcomes: list[list[SendOutcome]] = [[] for _ in requests]

        async def send_lane(lane: list[int]) -> None:
            for number in lane:
                async with room:
                    outcomes[number] = await self._outcomes_of(
                        ready, requests[number], timeout_ms, again
                    )

        await asyncio.gather(*map(send_lane, request_sequences(requests)))
        return merge_outcomes(self._group, len(ready), requests, outcomes)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Take back a message that waits for its time; returns its id.

        The handle is that of its `SendResult`. Needs a broker with timers. Raises BrokerError.
        """
        self._check_running()
        wire_topic = self._wire_topic(topic)
        broker_name = send_request.recall_broker(recall_handle)
        limit = self._limit(None)
        await self._sender.route_within(wire_topic, limit)
        header = RecallMessageRequest(
            producer_group=self._group, topic=wire_topic, recall_handle=recall_handle,
            target_broker=broker_name,
        )  # fmt: skip
        command = Command(code=RequestCode.RECALL_MESSAGE, ext_fields=headers.encode(header))
        hub = self._sender.hub

        async def ask() -> Command:
            return await hub.call(
                await self._sender.address(Queue(wire_topic, broker_name, 0)),
                command,
                max(int(limit.left_ms(hub.loop.time())), 1),
                subject=f"topic {topic}, group {self._group}: recall by broker {broker_name}",
            )

        answer = await hub.retry_unsent(ask, wire_topic, limit.deadline_s)
        msg_id = headers.decode(RecallMessageResponse, answer.fields).msg_id
        if self._tracer is not None:
            self._tracer.add(
                trace.recalled(
                    group=self._tracer.plain_group, topic=topic, msg_id=msg_id, now_ms=wall_ms()
                )
            )
        return msg_id

    async def request(
        self,
        message: Message,
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> ReceivedMessage:
        """Send a request and wait for the reply of whoever consumes it; one time for both.

        Raises what `send` raises, and ReplyTimeout.
        """
        self._check_running()
        timeout_ms = timeout_ms or self.settings.send_timeout_ms
        hub = self._sender.hub
        correlation_id = str(uuid.uuid4())
        waiter: asyncio.Future[Command] = hub.loop.create_future()
        hub.replies[correlation_id] = waiter
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._introduce(hub, message.topic)
                extra = request.request_properties(correlation_id, hub.client_id, timeout_ms)
                limit = self._limit(timeout_ms)
                chosen = None
                if queue is not None or select is not None:
                    chosen = await self._chosen(message, queue, select, limit)
                await self._send(message, limit, chosen, extra)
                pushed = await waiter
        except TimeoutError:
            raise ReplyTimeout(
                f"topic {message.topic}, group {self._group}: no reply within {timeout_ms} ms"
            ) from None
        finally:
            del hub.replies[correlation_id]
        return request.reply_from(pushed, self.settings.unpacked_bytes_max, wall_ms())

    async def reply(
        self,
        to: ReceivedMessage,
        body: bytes | str,
        /,
        *,
        timeout_ms: int | None = None,
        **options: Unpack[MessageOptions],
    ) -> SendResult | None:
        """Answer a request that was consumed; None, and a line in the log, if nobody waits for it.

        The time is at most that of the request. Raises MessageRefused if the message was no
        request, and what `send` raises.
        """
        extra = request.reply_properties(to)
        topic = request.reply_topic(to)
        # Replies go to the cluster's own topic, whatever the namespace.
        self._wire_topics[topic] = topic
        message = Message(topic, body, **options)
        wanted_ms = timeout_ms or self.settings.send_timeout_ms
        limit = self._limit(request.reply_timeout_ms(to, wanted_ms))
        queue = await self._near(topic, to.broker_name, limit)
        try:
            return await self._send(message, limit, queue, extra)
        except ReplyUndeliverable as error:
            log.warning(
                "topic %s, group %s: the reply to %s is dropped, nobody waits for it any more: %s",
                to.topic, self._group, to.msg_id, error.remark,
            )  # fmt: skip
            return None

    async def _introduce(self, hub: Hub, topic: str) -> None:
        """See that the brokers of a topic know this client, or they could not push a reply."""
        wire_topic = self._wire_topic(topic)
        await self._sender.route(wire_topic)
        await hub.ensure_registered(wire_topic)

    async def _near(self, topic: str, broker_name: str, limit: TimeLimit) -> Queue | None:
        """A queue on the broker that knows who asked; None if the topic is not there."""
        self._check_running()
        route = await self._sender.route_within(topic, limit)
        return next((each for each in route.writable if each.broker_name == broker_name), None)

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues of a topic that messages can be sent to. Raises RouteNotFound."""
        self._check_running()
        route = await self._sender.route(self._wire_topic(topic))
        return tuple(queue._replace(topic=topic) for queue in route.writable)

    # -- inside ------------------------------------------------------------------------------------

    async def _chosen(
        self, message: Message, queue: Queue | None, select: Selector | None, limit: TimeLimit
    ) -> Queue:
        """The queue that the program wants, under its name on the wire."""
        (chosen,) = await self._all_chosen((message,), queue, select, limit)
        return chosen

    async def _all_chosen(
        self,
        messages: Sequence[Message],
        queue: Queue | None,
        select: Selector | None,
        limit: TimeLimit,
    ) -> list[Queue]:
        """The same for many messages. Raises MessageRefused for what is no queue of a topic."""
        self._check_running()
        if queue is not None:
            return [self._wire_queue(each, queue) for each in messages]
        assert select is not None
        own: dict[str, list[Queue]] = {}
        chosen: list[Queue] = []
        for message in messages:
            if (queues := own.get(message.topic)) is None:
                route = await self._sender.route_within(self._wire_topic(message.topic), limit)
                queues = [each._replace(topic=message.topic) for each in route.writable]
                own[message.topic] = queues
            picked = select(queues, message)
            if picked not in queues:
                raise MessageRefused(
                    f"topic {message.topic}: the selector chose {picked}, no queue"
                )
            chosen.append(self._wire_queue(message, picked))
        return chosen

    def _wire_queue(self, message: Message, queue: Queue) -> Queue:
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
            raise MessageRefused(
                f"topic {message.topic}: queue is {queue!r}; it takes a Queue, and "
                "`await producer.queues(topic)` gives those of a topic"
            )
        topic = self._wire_topic(message.topic)
        if self._wire_topic(queue.topic) != topic:
            raise MessageRefused(
                f"topic {message.topic}: the queue chosen is one of topic {queue.topic}"
            )
        return queue._replace(topic=topic)

    async def _send_selected(
        self, message: Message, select: Selector, limit: TimeLimit
    ) -> SendResult:
        """Send to the queue that a selector chooses; it chooses again if there is no such queue."""
        chosen = await self._chosen(message, None, select, limit)
        try:
            return await self._send(message, limit, chosen)
        except QueueNotFound as refused:
            return await self._send_elsewhere(message, select, limit, chosen, refused)

    async def _send_elsewhere(
        self,
        message: Message,
        select: Selector,
        limit: TimeLimit,
        chosen: Queue,
        refused: BrokerError,
    ) -> SendResult:
        """A selector chose by an old route; let it choose by a new one."""
        await self._sender.refresh_route(chosen.topic, limit.deadline_s)
        again = await self._chosen(message, None, select, limit)
        if again == chosen or limit.left_ms(asyncio.get_running_loop().time()) <= 0:
            raise refused
        return await self._send(message, limit, again)

    async def _submit(self, message: Message, timeout_ms: int) -> asyncio.Future[SendResult]:
        batches = self._batches
        future = None if batches is None else self._add_to_batch_now(batches, message, timeout_ms)
        if future is not None:
            return future
        limit = self._limit(timeout_ms)
        if batches is not None and send_request.may_batch(message):
            return await self._add_to_batch(batches, message, limit)
        return await self._start_send(message, self._submitted_rule, limit)

    async def _submit_chosen(
        self, message: Message, queue: Queue | None, select: Selector | None, limit: TimeLimit
    ) -> asyncio.Future[SendResult]:
        """Put a message on its way to a queue; a selector may choose twice, as in `send`."""
        chosen = await self._chosen(message, queue, select, limit)
        first = await self._start_send(message, self._submitted_rule, limit, chosen)
        if select is None or queue is not None:
            return first
        result: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

        async def choose_again(refused: BrokerError) -> None:
            try:
                found = await self._send_elsewhere(message, select, limit, chosen, refused)
            except BaseException as error:
                fail((result,), error)
                if not isinstance(error, TianzhouError):
                    raise
            else:
                if not result.done():
                    result.set_result(found)

        def look(done: asyncio.Future[SendResult]) -> None:
            error = done.exception()
            if isinstance(error, QueueNotFound) and self._running:
                self._run(choose_again(error))
            elif error is not None:
                fail((result,), error)
            elif not result.done():
                result.set_result(done.result())

        first.add_done_callback(look)
        return result

    async def _outcomes_of(
        self,
        messages: Sequence[Message],
        request: SplitRequest,
        timeout_ms: int | None,
        select: Selector | None,
    ) -> list[SendOutcome]:
        """What becomes of the messages of a request; a selector chooses anew where it has to."""
        own = [messages[at] for at in request.indexes]
        try:
            return list(await self._send_split(own, request, timeout_ms))
        except QueueNotFound as refused:
            if select is None:
                return [refused] * len(own)
        except Exception as error:  # noqa: BLE001 - `merge_outcomes` tells it
            return [error] * len(own)
        # The queue is gone. By a new route the messages may belong to several others.
        outcomes: list[SendOutcome] = []
        for message in own:
            try:
                outcomes.append(await self.send(message, select=select, timeout_ms=timeout_ms))
            except Exception as error:  # noqa: BLE001 - as above
                outcomes.append(error)
        return outcomes

    async def _send_split(
        self, own: Sequence[Message], request: SplitRequest, timeout_ms: int | None
    ) -> list[SendResult]:
        limit = self._limit(timeout_ms)
        if request.batch is None:
            return [await self._send(own[0], limit, request.queue)]
        self._check_running()
        size_bytes = len(request.batch.body)
        await self._acquire_capacity(size_bytes, limit)
        try:
            return await self._send_batch(request.batch, own, limit, request.queue)
        finally:
            self._in_flight.remove(size_bytes)

    def _tell(self, on_done: OnDone, future: asyncio.Future[SendResult]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        try:
            on_done(None if error else future.result(), error)
        except Exception:
            log.exception("group %s: the callback of a send failed", self._group)


def message_of(
    message: Message | str, body: bytes | str | None, options: MessageOptions
) -> Message:
    if isinstance(message, Message):
        if body is not None or options:
            raise MessageRefused("give a Message, or topic and body with options; not both")
        return message
    for name in options:
        if name not in _OPTIONS:
            nearest = get_close_matches(name, _OPTIONS, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(_OPTIONS)}"
            raise MessageRefused(f"send has no option {name}; {hint}")
    return Message(message, b"" if body is None else body, **options)
