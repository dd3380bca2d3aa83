"""Checks the address of each request against a quota file, and reloads the file when it changes.

A request that finds its bucket empty is answered SYSTEM_BUSY with the limit and its figure: clients
try again, another server first. A oneway request is dropped. Requests that keep clients alive may
overdraw the bucket by its capacity before they are refused, too: a client above its rate must not
lose its queues for it.
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
from tianzhou.remoting.limits import Limits
from tianzhou.remoting.quota.buckets import Buckets, Rate
from tianzhou.remoting.quota.files import ServerRules
from tianzhou.remoting.repeated_failures import RepeatedFailures, and_more

log = logging.getLogger(__name__)

BUCKETS_MAX = 65_536

RulesT = TypeVar("RulesT", bound=ServerRules)


class ClientQuotas(Generic[RulesT]):
    """Checks the addresses of requests by a file that may change at any time."""

    def __init__(
        self,
        path: Path,
        steady: Clock,
        read: Callable[[Path], RulesT],
        on_change: Callable[[RulesT], None],
        keeps_alive: Container[int],
        who: str,
    ) -> None:
        """`on_change` is called with new rules, not with the first. Raises ConfigError.

        `keeps_alive` are the codes of requests that may go into debt, `who` is busy in remarks.
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
        """How many requests were refused, by the name of the limit."""
        self._clients = Buckets(BUCKETS_MAX)
        self._repeats = RepeatedFailures()
        log.info("quotas: %d limits in force from %s", self.rules.count, path)

    def _reload(self) -> str:
        self.rules = self._read(self._path)
        # Tokens were counted by the old rates.
        self.clear()
        self._on_change(self.rules)
        return f"quotas: {self.rules.count} limits in force"

    def clear(self) -> None:
        """Have every bucket full."""
        self._clients.clear()

    def limits_by(self, limits: Limits) -> Limits:
        """The limits of the ports, with what the file says instead."""
        connections, in_flight = self.rules.connections, self.rules.in_flight
        said = {
            "connections": connections.per_server or connections.per_broker,
            "connections_per_address": connections.per_address,
            "kept_bytes": in_flight.unread_bytes,
            "unsent_bytes": in_flight.unsent_bytes,
            "handled_bytes": in_flight.handled_bytes,
        }
        return replace(limits, **{name: value for name, value in said.items() if value is not None})

    def is_free_client(self, peer: str) -> bool:
        """Whether requests of a peer need no check of its address."""
        client = self.rules.client
        return not client or client(_host(peer)) is None

    def check_client(self, peer: str, request: Command) -> None:
        """Raises RequestError with SYSTEM_BUSY if the peer's address asks for too much."""
        client = self.rules.client
        if not client:
            return
        host = _host(peer)
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
        unlogged_count = self._repeats.note((limit, subject), now_ms / 1000)
        text = f"{limit} of {subject} is {rate.per_second:g}"
        if unlogged_count is not None:
            log.warning("quotas: requests are refused, %s%s", text, and_more(unlogged_count))
        raise RequestError(ResponseCode.SYSTEM_BUSY, f"{self._who} busy: {text}")


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]
