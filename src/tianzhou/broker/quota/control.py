"""The check of each request against the quota file of a broker.

Addresses are checked as on every server (`remoting/quota/control`); heartbeats and offsets may go
into debt, so that a client that sends too fast does not lose its queues for it.

The address is charged before access control checks a request, topic and group after it: a client
that may not send to a topic cannot use up its quota.
"""

import struct
from collections.abc import Callable
from pathlib import Path

from tianzhou.broker.quota.rules import Rules, read_rules
from tianzhou.clock import Clock
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.quota.buckets import Buckets
from tianzhou.remoting.quota.control import BUCKETS_MAX, ClientQuotas

_KEEPS_ALIVE = (
    RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
)  # fmt: skip
_TOPIC_FIELDS: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.SEND_REPLY_MESSAGE: "topic",
    RequestCode.SEND_REPLY_MESSAGE_V2: "b",
}
_PULLS = (
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
)  # fmt: skip
_SIZE = struct.Struct(">i")
_ITEM_MIN_BYTES = 22
_TRUE = ("true", "1")
"""How headers spell true."""


class Quotas(ClientQuotas[Rules]):
    """Checks requests by a file that may change at any time."""

    def __init__(self, path: Path, steady: Clock, on_change: Callable[[Rules], None]) -> None:
        """`on_change` is called with new rules, not with the first. Raises ConfigError."""
        self._groups = Buckets(BUCKETS_MAX)
        self._messages, self._bytes = Buckets(BUCKETS_MAX), Buckets(BUCKETS_MAX)
        super().__init__(path, steady, read_rules, on_change, _KEEPS_ALIVE, "broker")

    def clear(self) -> None:
        """Fill every bucket."""
        super().clear()
        for each in (self._groups, self._messages, self._bytes):
            each.clear()

    # -- for paths that do not check ---------------------------------------------------------------

    def is_free_topic(self, topic: str) -> bool:
        """Whether sends to a topic need no check."""
        return self.rules.topic(topic) is None

    def is_free_group(self, group: str) -> bool:
        """Whether pulls of a group need no check."""
        return self.rules.group(group) is None

    # -- checking ----------------------------------------------------------------------------------

    def check_work(self, request: Command) -> None:
        """Raises RequestError with SYSTEM_BUSY above the rate of a topic or group."""
        field = _TOPIC_FIELDS.get(request.code)
        if field is not None:
            if self.rules.topic:
                self._check_send(request, request.fields.get(field) or "")
        elif request.code in _PULLS and self.rules.group:
            self._check_pull(request.fields.get("consumerGroup") or "")

    def _check_send(self, request: Command, topic: str) -> None:
        rates = self.rules.topic(topic)
        if rates is None:
            return
        now_ms = self._steady()
        messages, size_bytes = rates.messages, rates.size_bytes
        # Both are checked before either is charged: a rejected send costs nothing.
        if messages is not None and self._messages.left(topic, messages, now_ms) < 1:
            self._refuse("messagesPerSecond", f"topic {topic}", messages, now_ms)
        if size_bytes is not None and self._bytes.left(topic, size_bytes, now_ms) < 1:
            self._refuse("bytesPerSecond", f"topic {topic}", size_bytes, now_ms)
        if messages is not None:
            self._messages.spend(topic, messages, float(message_count(request)), now_ms)
        if size_bytes is not None:
            self._bytes.spend(topic, size_bytes, float(len(request.body)), now_ms)

    def _check_pull(self, group: str) -> None:
        rate = self.rules.group(group)
        if rate is None:
            return
        now_ms = self._steady()
        if self._groups.left(group, rate, now_ms) < 1:
            self._refuse("pullsPerSecond", f"group {group}", rate, now_ms)
        self._groups.spend(group, rate, 1.0, now_ms)


def message_count(request: Command) -> int:
    """How many messages a send contains; a batch is counted without being decoded."""
    flag = "batch" if _TOPIC_FIELDS.get(request.code) == "topic" else "m"
    is_batch = (
        request.code == RequestCode.SEND_BATCH_MESSAGE
        or request.fields.get(flag, "").lower() in _TRUE
    )
    body = request.body
    if not is_batch or len(body) < _SIZE.size:
        return 1
    count = at = 0
    while at + _SIZE.size <= len(body):
        (size_bytes,) = _SIZE.unpack_from(body, at)
        if size_bytes < _ITEM_MIN_BYTES:
            break  # the handler reports the error
        at += size_bytes
        count += 1
    return max(count, 1)
