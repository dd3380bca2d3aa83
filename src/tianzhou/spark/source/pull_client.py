"""Pulls of undecoded records from the brokers of a cluster, with retries.

The methods block or run on the event loop of the process (`loop_thread`).
"""

import asyncio
import logging
from dataclasses import dataclass

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.hub import Hub
from tianzhou.client.connection.shared_hubs import acquire
from tianzhou.client.group.broker_calls import PULL_STATUSES, BrokerCalls, PullStatus
from tianzhou.client.group.subscriptions import Subscription, subscription_of
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.queues import Queue
from tianzhou.errors import RemotingError, RouteNotFound, TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.filter.tags import SUBSCRIBE_ALL
from tianzhou.protocol.headers.pull import PullMessageResponse, pull_request
from tianzhou.spark.options import ReadFrom, SourceOptions

log = logging.getLogger(__name__)

_TOOLS_GROUP = "TOOLS_CONSUMER"
"""The consumer group of RocketMQ's own tools, which every broker knows."""
_OFFSET_FIELD, _COUNT_FIELD = "queueOffset", "maxMsgNums"

PULL_COUNT_MAX = 4096
_PULL_BYTES_MAX = 1024 * 1024
_ATTEMPTS_MAX = 6
RETRY_DELAY_S = 0.2


@dataclass(frozen=True, slots=True)
class PullResult:
    """The response to a pull, with undecoded records."""

    status: PullStatus
    records: bytes
    next_offset: int
    max_offset: int
    offset_delta: int
    by_replica: bool


class PullClient:
    """Connections to a cluster and pulls, as the options say; `close` releases the connections."""

    def __init__(self, options: SourceOptions, *, tags: str = "") -> None:
        """`tags` is the tag expression for brokers, by default that of the options.

        Raises ConfigError.
        """
        settings = options.client_settings()

        async def start() -> Hub:
            return acquire(settings)

        self._options = options
        self._group = options.group or _TOOLS_GROUP
        self._tags = tags or options.tags
        self._headers: dict[tuple[Queue, str, str], dict[str, str]] = {}
        self._hub = loop_thread.run(start())
        self._calls = BrokerCalls(self._hub, self._group, settings)

    def close(self) -> None:
        loop_thread.run(self._hub.release())

    @property
    def _broker_ids(self) -> list[int]:
        """The ids of the brokers to pull from, in the order of attempts."""
        if self._options.read_from is ReadFrom.REPLICA:
            return [MASTER_ID + 1, MASTER_ID]
        return [MASTER_ID]

    @property
    def _is_filtered(self) -> bool:
        return bool(self._tags or self._options.sql)

    def _subscription(self, topic: str) -> Subscription:
        return subscription_of(topic, self._tags or SUBSCRIBE_ALL, self._options.sql or None, 0)

    async def _pull_with_retry(self, queue: Queue, at: int, count: int) -> PullResult:
        """Pull; retry while brokers restart or replicas lag behind."""
        broker_ids = self._broker_ids
        subscription = self._subscription(queue.topic)
        for number in range(_ATTEMPTS_MAX):
            broker_id = broker_ids[number % len(broker_ids)]
            try:
                reply = await self._pull(queue, at, count, subscription, broker_id)
                # A replica that lags behind, or may not serve reads (slaveReadEnable), returns the
                # same codes as an empty queue: only those of a master count.
                if reply.status is PullStatus.FOUND or not reply.by_replica:
                    return reply
            except TianzhouError as error:
                if number + 1 >= _ATTEMPTS_MAX or not error.retriable:
                    raise
                log.warning("queue %s: pull at %d failed, retrying: %s", queue, at, error)
            if broker_id == broker_ids[-1]:
                await asyncio.sleep(RETRY_DELAY_S * 2**number)
                await self._hub.routes.refresh([queue.topic])
        raise RemotingError(
            f"queue {queue}: only a replica responds, and it has no messages from offset {at} on"
        )

    async def _pull(
        self, queue: Queue, at: int, count: int, subscription: Subscription, broker_id: int
    ) -> PullResult:
        address, by_replica = await self._address(queue, broker_id)
        fields = self._fields(queue, at, min(count, PULL_COUNT_MAX), subscription)
        command = Command(code=RequestCode.PULL_MESSAGE, ext_fields=fields)
        response = await self._hub.request(address, command, self._options.request_timeout)
        status = PULL_STATUSES.get(response.code)
        if status is None:
            raise broker_error(response, f"queue {queue}: pull at {at}")
        header = headers.decode(PullMessageResponse, response.fields)
        return PullResult(
            status,
            bytes(response.body),
            header.next_begin_offset,
            header.max_offset,
            header.offset_delta or 0,
            by_replica,
        )

    def _fields(
        self, queue: Queue, at: int, count: int, subscription: Subscription
    ) -> dict[str, str]:
        """The header of a pull, cached: pulls of one queue differ in two fields only."""
        known = (queue, subscription.expression, subscription.expression_type)
        first = self._headers.get(known)
        if first is None:
            header = pull_request(
                group=self._group,
                topic=queue.topic,
                queue_id=queue.queue_id,
                queue_offset=0,
                max_count=0,
                max_bytes=_PULL_BYTES_MAX,
                expression=subscription.expression,
                expression_type=subscription.expression_type,
                broker_name=queue.broker_name,
            )
            first = self._headers[known] = headers.encode(header)
        return first | {_OFFSET_FIELD: str(at), _COUNT_FIELD: str(count)}

    async def _address(self, queue: Queue, broker_id: int) -> tuple[str, bool]:
        """The address to read from and whether it is a replica, which replaces a missing master."""
        found = self._hub.routes.read_address(queue.broker_name, broker_id)
        if found is None:
            await self._hub.routes.get(queue.topic, refresh=True)
            found = self._hub.routes.read_address(queue.broker_name, broker_id)
        if found is None:
            raise RouteNotFound(f"queue {queue}: no address known for broker {queue.broker_name}")
        return found
