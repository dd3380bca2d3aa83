"""Checks the address of each request against a quota file, and reloads the file when it changes.

If the bucket of an address is empty, the response is SYSTEM_BUSY with the limit and its value:
clients retry, on another server first. A oneway request is dropped. Heartbeats and the like may
overdraw the bucket by its capacity before they are refused: a client above its rate must not lose
its queues.
"""

import logging
from collections.abc import Callable, Container
from dataclasses import replace
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from tianzhou.clock import Clock
from tianzhou.config.watched_files import WatchedFiles
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.address import host_of
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.quota.buckets import Buckets, Rate
from tianzhou.remoting.quota.files import ServerRules
from tianzhou.remoting.repeated_failures import RepeatedFailures

log = logging.getLogger(__name__)

BUCKETS_MAX = 65_536

RulesT = TypeVar("RulesT", bound=ServerRules)


class ClientQuotas(Generic[RulesT]):
    """Checks the addresses of requests by a quota file."""

    def __init__(
        self,
        path: Path,
        steady: Clock,
        read: Callable[[Path], RulesT],
        on_change: Callable[[RulesT], None],
        keeps_alive: Container[int],
        who: str,
    ) -> None:
        """`on_change` is called with the rules after each reload. Raises ConfigError.

        `keeps_alive` are the codes of requests that may overdraw the bucket; remarks of refusals
        begin with `who`.
        """
        self._who = who
        self._steady = steady
        self._path = path
        self._read = read
        self._on_change = on_change
        self._keeps_alive = keeps_alive
        watched = WatchedFiles(
            lambda: [path], self._reload, "quotas: the last good rules stay in force"
        )
        self.poll = watched.poll
        """Loads a changed file; an invalid one leaves the rules as they are."""
        self.rules = read(path)
        self.refused: dict[str, int] = {}
        """The number of refused requests, by the name of the limit."""
        self._clients = Buckets(BUCKETS_MAX)
        self._repeats = RepeatedFailures()
        log.info("quotas: %d limits in force from %s", self.rules.count, path)

    def _reload(self) -> str:
        self.rules = self._read(self._path)
        # Balances were computed with the old rates.
        self.clear()
        self._on_change(self.rules)
        return f"quotas: {self.rules.count} limits in force"

    def clear(self) -> None:
        """Make all buckets full."""
        self._clients.clear()

    def limits_by(self, limits: Limits) -> Limits:
        """`limits`, with those that the file sets."""
        connections, in_flight = self.rules.connections, self.rules.in_flight
        by_file = {
            "connections": connections.per_server or connections.per_broker,
            "connections_per_address": connections.per_address,
            "kept_bytes": in_flight.unread_bytes,
            "unsent_bytes": in_flight.unsent_bytes,
            "handled_bytes": in_flight.handled_bytes,
        }
        return replace(
            limits, **{name: value for name, value in by_file.items() if value is not None}
        )

    def is_free_client(self, peer: str) -> bool:
        """Whether no rule applies to the address of a peer."""
        client = self.rules.client
        return not client or client(host_of(peer)) is None

    def check_client(self, peer: str, request: Command) -> None:
        """Raises RequestError with SYSTEM_BUSY if the peer's address exceeds its rate."""
        client = self.rules.client
        if not client:
            return
        host = host_of(peer)
        rate = client(host)
        if rate is None:
            return
        now_ms = self._steady()
        left = self._clients.left(host, rate, now_ms)
        reserve = rate.at_once if request.code in self._keeps_alive else 0.0
        if left + reserve < 1:
            self._refuse("requestsPerSecond", f"address {host}", rate, now_ms)
        self._clients.spend(host, rate, 1.0, now_ms)

    def _refuse(self, limit: str, subject: str, rate: Rate, now_ms: int) -> NoReturn:
        self.refused[limit] = self.refused.get(limit, 0) + 1
        text = f"{limit} of {subject} is {rate.per_second:g}"
        if (ending := self._repeats.ending((limit, subject), now_ms / 1000)) is not None:
            log.warning("quotas: requests are refused, %s%s", text, ending)
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"{self._who} busy: {text}")
