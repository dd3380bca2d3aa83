"""The producer: sends messages to the queues of a topic and returns where they were stored.

    async with Producer("billing", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send("orders", b"paid", keys="4711")

Retries. `send_timeout_ms` covers all attempts of a send. What was certainly not sent (no
connection, a broker that restarts or is busy) is retried until the time-out. After a lost
connection the message may be stored, so retries are limited: an awaited `send` is retried on
another broker (`retry_count` times), `submit` likewise (`async_retry_count` times; to the same
queue if the program chose it). An awaited send to a chosen queue, an ordered send and `oneway` are
not retried. A send that timed out may be stored: consumers recognise duplicates by the message's
key.

Back pressure. At most `in_flight_count` messages and `in_flight_bytes` bytes are in flight; further
sends wait, within their time-out.

Batches. With `linger_ms` messages of a topic wait for each other and are sent together.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import TypedDict, Unpack, overload

from tianzhou.client.connection.retry_policy import NO_RETRY, RetryRule
from tianzhou.client.identity import unique_ids
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
from tianzhou.client.producer.pipeline import SendPipeline
from tianzhou.client.producer.selectors import Selector, by_shard
from tianzhou.client.queues import Queue
from tianzhou.client.sending import send_request
from tianzhou.client.sending.retrying import TimeLimit
from tianzhou.client.sending.send_request import SendResult
from tianzhou.client.settings import nearest_hint
from tianzhou.clock import wall_ms
from tianzhou.errors import MessageRefused, QueueNotFound, ReplyTimeout, ReplyUndeliverable
from tianzhou.names import reply_topic
from tianzhou.protocol import headers, properties
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.send import RecallMessageRequest, RecallMessageResponse

log = logging.getLogger(__name__)

OnDone = Callable[[SendResult | None, BaseException | None], None]
"""Called with the result of a submitted message, or with its error."""

_BATCHES_AT_ONCE = 8


class MessageOptions(TypedDict, total=False):
    """Options of `send` for a topic and a body: the fields of `Message`."""

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
    """Sends messages.

    Use it as `async with Producer(group, namesrv=...)`, or call `start` and `close`, on one event
    loop. Keywords are the fields of `ProducerSettings`.
    """

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
        """Send a message and wait until the broker has stored it.

        Give a `Message`, or a topic and a body with the fields of `Message` as keywords. `queue` or
        `select` choose the queue; such a send is not retried on another one. Raises MessageRefused,
        RouteNotFound, BrokerError, SendError and SendTimeout.
        """
        ready = message_of(message, body, options)
        if queue is not None or select is not None:
            limit = self._limit(timeout_ms)
            return await (await self._start_chosen(ready, NO_RETRY, queue, select, limit))
        return await (await self._start(ready, self._awaited_rule, timeout_ms))

    async def send_ordered(
        self, message: Message, /, *, select: Selector = by_shard, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a message to the queue of its shard, without retries. Await each to keep order."""
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
        """Send a message without waiting for the response; the future gives the result.

        Waits only while too many messages are in flight, or for the route. `queue` and `select` are
        as for `send`. `on_done` is called on the event loop with the result or the error.
        """
        rule = self._submitted_rule
        if queue is not None or select is not None:
            limit = self._limit(timeout_ms)
            future = await self._start_chosen(message, rule, queue, select, limit)
        else:
            future = await self._start(message, rule, timeout_ms)
        if on_done is not None:
            future.add_done_callback(lambda done: self._call_on_done(on_done, done))
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
        """Send a message without a response: the broker does not confirm that it is stored.

        Raises MessageRefused, RouteNotFound, RemotingError, and SendTimeout if it could not be sent
        in time.
        """
        self._check_running()
        limit = self._limit(timeout_ms)
        chosen = await self._chosen_or_none(message, queue, select, limit)
        carrier: dict[str, str] = {}
        with self._telemetry.sending_oneway(message, carrier) if self._telemetry else nullcontext():
            await self._sender.oneway(self._outgoing(message, carrier), limit, chosen)

    async def send_many(
        self,
        messages: Iterable[Message],
        /,
        *,
        queue: Queue | None = None,
        select: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages in as few requests as their sizes allow; results are in the same order.

        Messages of one topic share batches; delayed ones are sent alone. If some fail, the others
        are sent all the same, and SendManyError has the outcome of each. `timeout_ms` is for each
        request.

        `queue` is for all messages, `select` is called for each; a batch then holds messages of one
        queue, and the batches of a queue are sent one after another.
        """
        ready = list(messages)
        if self._telemetry is not None:
            ready = [
                self._telemetry.created(each) if send_request.may_batch(each) else each
                for each in ready
            ]
        chosen = None
        if queue is not None or select is not None:
            chosen = await self._all_chosen(ready, queue, select, self._limit(timeout_ms))
        requests = split_into_requests(ready, self._wire_topic, self.settings, chosen)
        slots = asyncio.Semaphore(_BATCHES_AT_ONCE)
        again = select if queue is None else None
        outcomes: list[list[SendOutcome]] = [[] for _ in requests]

        async def send_sequence(sequence: list[int]) -> None:
            for number in sequence:
                async with slots:
                    outcomes[number] = await self._outcomes_of(
                        ready, requests[number], timeout_ms, again
                    )

        await asyncio.gather(*map(send_sequence, request_sequences(requests)))
        return merge_outcomes(self._group, len(ready), requests, outcomes)

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Cancel a delayed message before its delivery; returns its id.

        `recall_handle` is that of its `SendResult`. Needs a broker with timers. Raises BrokerError.
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
        """Send a request and wait for the reply of its consumer; the time-out covers both.

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
                # Register with the brokers of the topic; they could not push a reply otherwise.
                wire_topic = self._wire_topic(message.topic)
                await self._sender.route(wire_topic)
                await hub.ensure_registered(wire_topic)
                extra = request.request_properties(correlation_id, hub.client_id, timeout_ms)
                limit = self._limit(timeout_ms)
                chosen = await self._chosen_or_none(message, queue, select, limit)
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
        """Reply to a request that was consumed.

        Returns None, and logs a warning, if the sender does not wait for it any more. The time-out
        is at most that of the request. Raises MessageRefused if the message is no request, and what
        `send` raises.
        """
        extra = request.reply_properties(to)
        topic = reply_topic(to.properties[properties.CLUSTER])
        # The reply topic of the cluster has no namespace.
        self._wire_topics[topic] = topic
        message = Message(topic, body, **options)
        wanted_ms = timeout_ms or self.settings.send_timeout_ms
        limit = self._limit(request.reply_timeout_ms(to, wanted_ms))
        self._check_running()
        route = await self._sender.route_within(topic, limit)
        # The broker of the request knows the requester; any queue will do if it lacks the topic.
        queue = next((each for each in route.writable if each.broker_name == to.broker_name), None)
        try:
            return await self._send(message, limit, queue, extra)
        except ReplyUndeliverable as error:
            log.warning(
                "topic %s, group %s: the reply to %s is dropped, its sender stopped waiting: %s",
                to.topic, self._group, to.msg_id, error.remark,
            )  # fmt: skip
            return None

    async def queues(self, topic: str) -> tuple[Queue, ...]:
        """The queues of a topic that messages can be sent to. Raises RouteNotFound."""
        self._check_running()
        route = await self._sender.route(self._wire_topic(topic))
        return tuple(queue._replace(topic=topic) for queue in route.writable)

    # -- inside ------------------------------------------------------------------------------------

    async def _chosen_or_none(
        self, message: Message, queue: Queue | None, select: Selector | None, limit: TimeLimit
    ) -> Queue | None:
        """The queue that the program chose, with the topic's name on the wire."""
        if queue is None and select is None:
            return None
        return (await self._all_chosen((message,), queue, select, limit))[0]

    async def _all_chosen(
        self,
        messages: Sequence[Message],
        queue: Queue | None,
        select: Selector | None,
        limit: TimeLimit,
    ) -> list[Queue]:
        """The chosen queues of messages. Raises MessageRefused for a queue of another topic."""
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
                    f"topic {message.topic}: the selector returned {picked}, not one of its queues"
                )
            chosen.append(self._wire_queue(message, picked))
        return chosen

    def _wire_queue(self, message: Message, queue: Queue) -> Queue:
        if not isinstance(queue, Queue):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
            raise MessageRefused(
                f"topic {message.topic}: queue is {queue!r}; it must be a Queue, "
                "and `await producer.queues(topic)` returns those of a topic"
            )
        topic = self._wire_topic(message.topic)
        if self._wire_topic(queue.topic) != topic:
            raise MessageRefused(
                f"topic {message.topic}: the chosen queue belongs to topic {queue.topic}"
            )
        return queue._replace(topic=topic)

    async def _start(
        self, message: Message, rule: RetryRule, timeout_ms: int | None
    ) -> asyncio.Future[SendResult]:
        """Add a message to its batch, or send it to any queue; the future gives its result."""
        batches = self._batches
        if batches is None or not send_request.may_batch(message):
            return await self._start_send(message, rule, self._limit(timeout_ms))
        if not self._running:
            self._check_running()
        if timeout_ms is None:
            deadline_s = asyncio.get_running_loop().time() + self._timeout_s
        else:
            deadline_s = self._limit(timeout_ms).deadline_s
        unique_id = unique_ids.next()
        pieces = send_request.item_pieces(message, unique_id, self._namespace)
        size_bytes = len(pieces[0]) + len(pieces[1]) + len(pieces[2])
        if size_bytes > self.settings.batch_bytes:
            return await self._start_send(message, rule, self._limit(timeout_ms))
        if self._telemetry is not None:
            message = self._telemetry.created(message)
            pieces = send_request.item_pieces(message, unique_id, self._namespace)
            size_bytes = sum(map(len, pieces))
        topic = self._wire_topics.get(message.topic) or self._wire_topic(message.topic)
        if self._in_flight.is_full:
            await self._acquire_capacity(size_bytes, deadline_s)
        else:
            self._in_flight.add(size_bytes)
        return batches.add(topic, message, pieces, size_bytes, unique_id, deadline_s)

    async def _start_chosen(
        self,
        message: Message,
        rule: RetryRule,
        queue: Queue | None,
        select: Selector | None,
        limit: TimeLimit,
    ) -> asyncio.Future[SendResult]:
        """Send to a chosen queue; the selector is called again if that queue does not exist."""
        (chosen,) = await self._all_chosen((message,), queue, select, limit)

        async def reselect(refused: QueueNotFound) -> Queue:
            await self._sender.refresh_route(chosen.topic, limit.deadline_s)
            (again,) = await self._all_chosen((message,), None, select, limit)
            if again == chosen or limit.left_ms(asyncio.get_running_loop().time()) <= 0:
                raise refused
            return again

        return await self._start_send(
            message, rule, limit, chosen, reselect=reselect if queue is None else None
        )

    async def _outcomes_of(
        self,
        messages: Sequence[Message],
        request: SplitRequest,
        timeout_ms: int | None,
        select: Selector | None,
    ) -> list[SendOutcome]:
        """The outcomes of one request; a selector is called again if its queue does not exist."""
        own = [messages[at] for at in request.indexes]
        try:
            limit = self._limit(timeout_ms)
            if request.batch is None:
                return [await self._send(own[0], limit, request.queue)]
            self._check_running()
            size_bytes = len(request.batch.body)
            await self._acquire_capacity(size_bytes, limit.deadline_s)
            try:
                return list(await self._send_batch(request.batch, own, limit, request.queue))
            finally:
                self._in_flight.remove(size_bytes)
        except QueueNotFound as refused:
            if select is None:
                return [refused] * len(own)
        except Exception as error:  # noqa: BLE001 - `merge_outcomes` raises it
            return [error] * len(own)
        # The queue does not exist any more. With a new route the messages may go to several.
        outcomes: list[SendOutcome] = []
        for message in own:
            try:
                outcomes.append(await self.send(message, select=select, timeout_ms=timeout_ms))
            except Exception as error:  # noqa: BLE001 - as above
                outcomes.append(error)
        return outcomes

    def _call_on_done(self, on_done: OnDone, future: asyncio.Future[SendResult]) -> None:
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        try:
            on_done(None if error else future.result(), error)
        except Exception:
            log.exception("group %s: the callback of a send failed", self._group)


def message_of(
    message: Message | str, body: bytes | str | None, options: MessageOptions
) -> Message:
    """The message that the arguments of `send` describe. Raises MessageRefused."""
    if isinstance(message, Message):
        if body is not None or options:
            raise MessageRefused("give either a Message, or topic and body with options")
        return message
    for name in options:
        if name not in _OPTIONS:
            raise MessageRefused(f"send has no option {name}{nearest_hint(name, _OPTIONS)}")
    return Message(message, b"" if body is None else body, **options)
