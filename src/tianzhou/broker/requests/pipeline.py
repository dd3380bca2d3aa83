"""What every request passes on its way to its handler, in this order.

    gap of the loop      after one requests wait until it is known who the master is (`LoopGap`)
    refusals             of writes or reads, under automatic failover (`storing/serving.py`)
    length               a body that is longer than any of its request code is refused unread
    quota of the client  first, so that a flood is refused cheaply
    access control       signature and permissions
    quota of the work    of topic or group, charged only to requests that access control allows
    handler              timed; slow requests are logged

Requests on the kernel's fast path do not pass these checks, so it serves only requests that none
of them concerns: none while access control is on, and no client, topic or group with a quota.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

from tianzhou.broker.acl.control import AccessControl
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer
from tianzhou.broker.quota.body_limits import LONGER
from tianzhou.broker.quota.control import Quotas
from tianzhou.broker.requests.fast_path import FastPath
from tianzhou.broker.requests.loop_gap import LoopGap
from tianzhou.broker.requests.served import check_served
from tianzhou.broker.requests.slow_log import SlowLog
from tianzhou.broker.requests.table import Handle
from tianzhou.broker.storing.serving import Serving
from tianzhou.broker.tables.clients import Subscription
from tianzhou.config.live import LiveSettings
from tianzhou.errors import RequestError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.pull import PullMessageRequest
from tianzhou.remoting.connection import PARKED, Connection
from tianzhou.remoting.quota.body_limits import check_body
from tianzhou.remoting.scheduler import Steps, handle_in_order

OnClosed = Callable[[Connection], None]


class RequestPipeline:
    """The callbacks of a broker's server: requests, buffers for the fast path, closed connections.

    Requests are refused until `open` names the handlers.
    """

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        access: AccessControl | None,
        quotas: Quotas | None,
    ) -> None:
        """`access` and `quotas` are None where access control and quotas are off."""
        self._settings = settings
        self._access = access
        self._quotas = quotas
        self._slow = SlowLog()
        self._handle: Handle = _refusing("the broker is starting")
        self._fast_path: FastPath | None = None
        self._on_closed: Sequence[OnClosed] = ()
        self._serving: Serving | None = None
        self._gap: LoopGap | None = None

    def obey(self, serving: Serving, gap: LoopGap) -> None:
        """Refuse and hold back requests as automatic failover demands it."""
        self._serving, self._gap = serving, gap
        serving.on_refusals = self._refusals_changed
        self._refusals_changed()

    def _refusals_changed(self) -> None:
        if self._fast_path is not None and self._serving is not None:
            self._fast_path.serve_readers(serves_readers=self._serving.reads is None)

    def open(
        self, handle: Handle, fast_path: FastPath | None, on_closed: Sequence[OnClosed]
    ) -> None:
        """Serve requests from now on; `fast_path` is None where the kernel may not be used."""
        self._handle = handle
        self._fast_path = fast_path
        self._on_closed = on_closed
        self._refusals_changed()

    def close(self, why: str) -> None:
        """Refuse requests until `open` is called again."""
        if self._fast_path is not None:
            self._fast_path.close()
            self._fast_path = None
        self._handle = _refusing(why)

    def connections_end(self) -> None:
        """Do not report closed connections any more."""
        self._on_closed = ()

    # -- callbacks of the server -------------------------------------------------------------------

    def handle(self, connection: Connection, request: Command) -> Answer:
        """Check a request and hand it to its handler. Raises RequestError."""
        if self._serving is not None:
            if self._gap is not None and self._gap.is_holding():
                resume = connection.defer(request)
                self._gap.hold(partial(resume, partial(self.handle, connection, request)))
                return PARKED
            check_served(self._serving, request.code)
        check_body(request, LONGER)
        if self._quotas is not None:
            self._quotas.check_client(connection.peer, request)
        if self._access is None:
            return self._handle_timed(connection, request)
        return handle_in_order(
            connection, self._check_and_handle(self._access, connection, request)
        )  # fmt: skip

    def _check_and_handle(
        self, access: AccessControl, connection: Connection, request: Command
    ) -> Steps[Answer]:
        account = yield from access.check(connection.peer, request)
        connection.account = account
        return self._handle_timed(connection, request)

    def _handle_timed(self, connection: Connection, request: Command) -> Answer:
        if self._quotas is not None:
            self._quotas.check_work(request)
        threshold_ms = self._settings.config.slow_request_threshold_mills
        if not threshold_ms:
            return self._handle(connection, request)
        started_s = time.perf_counter()
        answer = self._handle(connection, request)
        return self._slow.watch(connection.peer, request, answer, started_s, threshold_ms)

    def feed(self, connection: Connection, view: memoryview, at: int) -> tuple[int, int] | None:
        """Offer a receive buffer to the fast path; see `remoting.connection.Feed`."""
        if self._fast_path is None or not self._is_free_client(connection.peer):
            return None
        if self._gap is not None and self._gap.is_holding():
            return None
        return self._fast_path.serve(connection, view, at)

    def connection_closed(self, connection: Connection) -> None:
        for on_closed in self._on_closed:
            on_closed(connection)

    # -- permissions of requests that were parked --------------------------------------------------

    def may_publish(self, connection: Connection, account: str | None, topic: str) -> bool:
        """Whether the account may write the topic now."""
        access = self._access
        return access is None or access.may_publish(connection.peer, account, topic)

    def may_consume(
        self, connection: Connection, account: str | None, topic: str, group: str
    ) -> bool:
        """Whether the account may read the topic with the group now."""
        access = self._access
        return access is None or access.may_consume(connection.peer, account, topic, group)

    # -- what the fast path may serve --------------------------------------------------------------

    def _is_free_client(self, peer: str) -> bool:
        return self._quotas is None or self._quotas.is_free_client(peer)

    def is_free_topic(self, topic: str) -> bool:
        """Whether a topic has no quota."""
        return self._quotas is None or self._quotas.is_free_topic(topic)

    def _is_free_group(self, group: str) -> bool:
        return self._quotas is None or self._quotas.is_free_group(group)

    def pull_answered(
        self, header: PullMessageRequest, subscription: Subscription, next_offset: int
    ) -> None:
        """The handlers have answered a pull with messages: the fast path may serve the next."""
        if self._fast_path is not None and self._is_free_group(header.consumer_group):
            self._fast_path.pull_found(header, subscription, next_offset)

    def forget_fast_path(self) -> None:
        """Have the handlers serve the next request of every topic and group, as rules changed."""
        if self._fast_path is not None:
            self._fast_path.forget_all()


def _refusing(why: str) -> Handle:
    def refuse(_: Connection, __: Command) -> Answer:
        raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, why)

    return refuse
