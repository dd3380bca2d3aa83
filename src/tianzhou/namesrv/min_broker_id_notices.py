"""Notifies brokers that the lowest id of their group has changed (5.x, acting masters).

A broker receives notices on its listening port, so they need a connection of their own. A notice is
one oneway request, without retry: a broker that misses it learns the id with its next heartbeat.
"""

import asyncio
import logging

from tianzhou.errors import RemotingError
from tianzhou.namesrv.registrations import MinIdNotice
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import NotifyMinBrokerIdChangeRequest
from tianzhou.remoting.client import Client
from tianzhou.remoting.tls.contexts import Tls

log = logging.getLogger(__name__)

SEND_TIMEOUT_MS = 300
NOTICES_MAX = 1_000
"""Notices in flight; further ones are dropped."""


class Notices:
    """Sends notices in the background."""

    def __init__(self, tls: Tls | None = None) -> None:
        """Raises ConfigError if certificates cannot be loaded."""
        self._client = Client(tls=tls)
        self.reload_tls = self._client.reload_tls
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, notice: MinIdNotice) -> None:
        """Send a notice to its targets; does not wait."""
        header = NotifyMinBrokerIdChangeRequest(
            min_broker_id=notice.min_id,
            min_broker_addr=notice.min_addr,
            offline_broker_addr=notice.offline_addr,
            ha_broker_addr=notice.ha_addr,
        )
        log.info(
            "lowest broker id is now %d at %s, notifying %s",
            notice.min_id, notice.min_addr, ", ".join(notice.targets),
        )  # fmt: skip
        for target in notice.targets:
            if len(self._tasks) >= NOTICES_MAX:
                log.warning(
                    "broker %s: not notified, %d notices are in flight", target, NOTICES_MAX
                )
                return
            task = asyncio.create_task(self._send(target, headers.encode(header)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, target: str, ext_fields: dict[str, str]) -> None:
        request = Command(code=RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext_fields=ext_fields)
        try:
            await self._client.oneway(target, request, SEND_TIMEOUT_MS)
        except RemotingError as e:
            log.warning("broker %s: not notified of the lowest broker id: %s", target, e)

    async def close(self) -> None:
        """Cancel the notices in flight."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.close()
