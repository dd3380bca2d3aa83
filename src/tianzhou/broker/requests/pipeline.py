"""What every request passes on its way to its handler, in this order.

    its length           a body that no such request has is refused before anything reads it
    its address' quota   before the costly part: a flood is refused cheaply
    access control       signature and permissions
    its work's quota     of topic or group, which only those use up who may
    the handler          timed; slow ones are logged

What the kernel's feed takes does not come this way, so the feed gets only what none of it concerns:
nothing while there is access control, and no client, topic or group that has a quota.
"""

import time

from tianzhou.broker.acl.control import AccessControl
from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.quota.bodies import LONGER
from tianzhou.broker.quota.control import Quotas
from tianzhou.broker.requests.dispatch import Answer, Handle
from tianzhou.broker.requests.slow_log import SlowLog
from tianzhou.config.live import LiveSettings
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.quota.bodies import check_body


class RequestPipeline:
    """The way in, for as long as a broker runs."""

    def __init__(
        self,
        settings: LiveSettings[BrokerConfig],
        access: AccessControl | None,
        quotas: Quotas | None,
    ) -> None:
        self._settings = settings
        self._access = access
        self.quotas = quotas
        self._slow = SlowLog()

    def pass_on(self, connection: Connection, request: Command, handle: Handle) -> Answer:
        """Raises RequestError for a request that may not pass."""
        check_body(request, LONGER)
        peer, quotas = connection.peer, self.quotas
        if quotas is not None:
            quotas.check_client(peer, request)
        if self._access is not None:
            connection.account = self._access.check(peer, request)
        if quotas is not None:
            quotas.check_work(request)
        threshold_ms = self._settings.config.slow_request_threshold_mills
        if not threshold_ms:
            return handle(connection, request)
        started_s = time.perf_counter()
        answer = handle(connection, request)
        return self._slow.watch(peer, request, answer, started_s, threshold_ms)

    # -- what the feed may take --------------------------------------------------------------------

    def is_free_client(self, peer: str) -> bool:
        """Whether the address of a peer has no quota."""
        return self.quotas is None or self.quotas.is_free_client(peer)

    def is_free_topic(self, topic: str) -> bool:
        """Whether a topic has no quota."""
        return self.quotas is None or self.quotas.is_free_topic(topic)

    def is_free_group(self, group: str) -> bool:
        """Whether a group has no quota."""
        return self.quotas is None or self.quotas.is_free_group(group)
