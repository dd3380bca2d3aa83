"""The check of each request against the quota file, and the look for changes of it.

A request that finds its bucket empty is answered SYSTEM_BUSY with the limit and its figure: clients
take that for a reason to try again, another broker first. A request that wants no answer is
dropped. What keeps clients alive (heartbeats, offsets) may go into debt by as much as the bucket
holds before it is refused, too: a client that sends too fast must not lose its queues for it.

The address is charged before access control looks at a request, topic and group after it: whoever
may not send to a topic cannot use up its quota.
"""

import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tianzhou.broker.quota.buckets import Buckets, Rate
from tianzhou.broker.quota.rules import Rules, read_rules
from tianzhou.clock import Clock
from tianzhou.errors import ConfigError, RequestError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.repeats import Repeats, and_more

log = logging.getLogger(__name__)

LOOK_S = 0.25
"""How often `look` is to be called, so that a change counts within half a second."""

_BUCKETS_MAX = 65_536

_KEEPS_ALIVE = (
    RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT, RequestCode.UPDATE_CONSUMER_OFFSET,
    RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ, RequestCode.ACK_MESSAGE,
    RequestCode.BATCH_ACK_MESSAGE,
)  # fmt: skip
_TOPIC_FIELDS: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
}
_PULLS = (
    RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
)  # fmt: skip
_SIZE = struct.Struct(">i")
_ITEM_MIN_BYTES = 22

State = tuple[int, int, int] | None
"""Time of change, size and number of the file; None if it is not there."""


class Quotas:
    """Checks requests by a file that may change at any time."""

    def __init__(self, path: Path, clock: Clock, on_change: Callable[[Rules], None]) -> None:
        """`on_change` is told of new rules, not of the first. Raises ConfigError."""
        self._path = path
        self._clock = clock
        self._on_change = on_change
        self._state = _state_of(path)
        self.rules = read_rules(path)
        self.refused: dict[str, int] = {}
        """How many requests were refused, by the name of the limit."""
        self._clients, self._groups = Buckets(_BUCKETS_MAX), Buckets(_BUCKETS_MAX)
        self._messages, self._bytes = Buckets(_BUCKETS_MAX), Buckets(_BUCKETS_MAX)
        self._repeats = Repeats()
        log.info("quotas: %d limits in force from %s", self.rules.count, path)

    def look(self) -> None:
        """Take a changed file; one that cannot be used leaves the rules as they are."""
        state = _state_of(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self.rules = read_rules(self._path)
        except ConfigError as e:
            text = "quotas: the last good rules stay in force: %s"
            log.error(text, e)  # noqa: TRY400 - whoever wrote the file needs no trace of ours
            return
        # Tokens were counted by the old rates.
        for each in (self._clients, self._groups, self._messages, self._bytes):
            each.clear()
        log.info("quotas: %d limits in force", self.rules.count)
        self._on_change(self.rules)

    # -- for paths that do not check ---------------------------------------------------------------

    def is_free_client(self, peer: str) -> bool:
        """Whether requests of a peer need no check of its address."""
        client = self.rules.client
        return not client or client(_host(peer)) is None

    def is_free_topic(self, topic: str) -> bool:
        """Whether sends to a topic need no check."""
        return self.rules.topic(topic) is None

    def is_free_group(self, group: str) -> bool:
        """Whether pulls of a group need no check."""
        return self.rules.group(group) is None

    # -- checking ----------------------------------------------------------------------------------

    def check_client(self, peer: str, request: Command) -> None:
        """Raises RequestError with SYSTEM_BUSY if the peer's address asks for too much."""
        client = self.rules.client
        if not client:
            return
        host = _host(peer)
        rate = client(host)
        if rate is None:
            return
        now_ms = self._clock()
        left = self._clients.left(host, rate, now_ms)
        reserve = rate.at_once if request.code in _KEEPS_ALIVE else 0.0
        if left + reserve < 1:
            self._refuse("requestsPerSecond", f"address {host}", rate, now_ms)
        self._clients.spend(host, rate, 1.0, now_ms)

    def check_work(self, request: Command) -> None:
        """Raises RequestError with SYSTEM_BUSY if a topic takes, or a group pulls, too much."""
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
        now_ms = self._clock()
        messages, size_bytes = rates.messages, rates.size_bytes
        # Both are looked at before either is charged: a refused send costs nothing.
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
        now_ms = self._clock()
        if self._groups.left(group, rate, now_ms) < 1:
            self._refuse("pullsPerSecond", f"group {group}", rate, now_ms)
        self._groups.spend(group, rate, 1.0, now_ms)

    def _refuse(self, limit: str, subject: str, rate: Rate, now_ms: int) -> None:
        self.refused[limit] = self.refused.get(limit, 0) + 1
        untold_count = self._repeats.note((limit, subject), now_ms / 1000)
        text = f"{limit} of {subject} is {rate.per_second:g}"
        if untold_count is not None:
            log.warning("quotas: requests are refused, %s%s", text, and_more(untold_count))
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"broker busy: {text}")


def open_quotas(
    path: Path | None, clock: Clock, on_change: Callable[[Rules], None]
) -> Quotas | None:
    """The quotas of a file, if one is given. Raises ConfigError."""
    return None if path is None else Quotas(path, clock, on_change)


def limits_by(quotas: Quotas | None, limits: Limits) -> Limits:
    """The limits of the ports, with what the quota file says instead."""
    if quotas is None:
        return limits
    connections, in_flight = quotas.rules.connections, quotas.rules.in_flight
    said = {
        "connections": connections.per_broker,
        "connections_per_address": connections.per_address,
        "kept_bytes": in_flight.unread_bytes,
        "unsent_bytes": in_flight.unsent_bytes,
        "handled_bytes": in_flight.handled_bytes,
    }
    return replace(limits, **{name: value for name, value in said.items() if value is not None})


def message_count(request: Command) -> int:
    """How many messages a send carries; a batch is counted without being decoded."""
    flag = "batch" if request.code == RequestCode.SEND_MESSAGE else "m"
    is_batch = request.code == RequestCode.SEND_BATCH_MESSAGE or request.fields.get(flag) == "true"
    body = request.body
    if not is_batch or len(body) < _SIZE.size:
        return 1
    count = at = 0
    while at + _SIZE.size <= len(body):
        (size_bytes,) = _SIZE.unpack_from(body, at)
        if size_bytes < _ITEM_MIN_BYTES:
            break  # the handler says what is wrong with it
        at += size_bytes
        count += 1
    return max(count, 1)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _state_of(path: Path) -> State:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
