"""Brokers: settings, run-time figures, statistics, and cleaning on request."""

from collections.abc import Mapping

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.requests import RequestClient
from tianzhou.config.properties import parse_properties
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies.ha import HARuntimeInfo
from tianzhou.protocol.bodies.ha_group import GroupInfo
from tianzhou.protocol.bodies.stats import BrokerStatsData, ConsumeStatsList
from tianzhou.protocol.bodies.topics import KVTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.admin import (
    GetConsumeStatsInBrokerRequest,
    ViewBrokerStatsDataRequest,
)
from tianzhou.protocol.headers.ha import (
    ChangeBrokerRoleRequest,
    GroupCommandRequest,
    GroupCommandResponse,
    ResetMasterFlushOffsetRequest,
)

_CHANGE_ROLE_MS = 30_000


class Brokers:
    """Requests about one broker."""

    def __init__(self, wire: RequestClient) -> None:
        self._requests = wire

    async def runtime(self, broker: BrokerRef) -> dict[str, str]:
        """GET_BROKER_RUNTIME_INFO: figures by RocketMQ's names."""
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._requests.read(broker, KVTable, code)).table

    async def settings(self, broker: BrokerRef) -> dict[str, str]:
        """GET_BROKER_CONFIG."""
        response = await self._requests.request(broker, RequestCode.GET_BROKER_CONFIG)
        return read_settings(response.body, broker.label)

    async def change_settings(self, broker: BrokerRef, changes: Mapping[str, str]) -> str | None:
        """UPDATE_BROKER_CONFIG; returns the remark of the broker, such as "after a restart"."""
        code, body = RequestCode.UPDATE_BROKER_CONFIG, write_settings(changes)
        return (await self._requests.request(broker, code, body=body)).remark

    async def statistic(self, broker: BrokerRef, name: str, key: str) -> BrokerStatsData | None:
        """VIEW_BROKER_STATS_DATA, such as TOPIC_PUT_NUMS of a topic; None if nothing happened."""
        header = ViewBrokerStatsDataRequest(stats_name=name, stats_key=key)
        code = RequestCode.VIEW_BROKER_STATS_DATA
        try:
            return await self._requests.read(broker, BrokerStatsData, code, header)
        except RequestError as e:
            # A statistic that was never counted is reported as a failure.
            if e.code == ResponseCode.SYSTEM_ERROR:
                return None
            raise

    async def consume_stats(self, broker: BrokerRef, *, orderly: bool = False) -> ConsumeStatsList:
        """GET_BROKER_CONSUME_STATS: the progress of every group of a broker."""
        header = GetConsumeStatsInBrokerRequest(is_order=orderly)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        return await self._requests.read(broker, ConsumeStatsList, code, header)

    async def ha_status(self, broker: BrokerRef) -> HARuntimeInfo:
        """GET_BROKER_HA_STATUS (5.x)."""
        return await self._requests.read(broker, HARuntimeInfo, RequestCode.GET_BROKER_HA_STATUS)

    async def group(self, broker: BrokerRef) -> GroupInfo:
        """HA_GROUP (Tianzhou's): the group of a broker whose master is elected."""
        return await self._requests.read(broker, GroupInfo, RequestCode.HA_GROUP)

    async def command_group(
        self, broker: BrokerRef, header: GroupCommandRequest, *, timeout_ms: int
    ) -> tuple[str, GroupCommandResponse]:
        """HA_GROUP_COMMAND (Tianzhou's): what was done, and who the master is then."""
        code = RequestCode.HA_GROUP_COMMAND
        timeout_ms = max(self._requests.timeout_ms, timeout_ms)
        response = await self._requests.request(broker, code, header, timeout_ms=timeout_ms)
        return response.remark or "done", decode(GroupCommandResponse, response.fields)

    async def change_role(self, broker: BrokerRef, role: str, *, force: bool = False) -> str | None:
        """CHANGE_BROKER_ROLE (Tianzhou's): make a slave an ASYNC_MASTER or SYNC_MASTER.

        Returns the remark. It ends when the broker has stored everything it received.
        """
        code, header = (
            RequestCode.CHANGE_BROKER_ROLE,
            ChangeBrokerRoleRequest(role=role, force=force),
        )
        timeout_ms = max(self._requests.timeout_ms, _CHANGE_ROLE_MS)
        return (await self._requests.request(broker, code, header, timeout_ms=timeout_ms)).remark

    async def set_master_flush_offset(self, broker: BrokerRef, log_offset: int) -> None:
        """RESET_MASTER_FLUSH_OFFSET (5.x): the flushed log offset of its master, on a slave."""
        header = ResetMasterFlushOffsetRequest(master_flush_offset=log_offset)
        await self._requests.request(broker, RequestCode.RESET_MASTER_FLUSH_OFFSET, header)

    async def clean(self, broker: BrokerRef, code: RequestCode) -> None:
        """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC (queues of topics that no longer exist) or
        DELETE_EXPIRED_COMMITLOG: now, not at the hour of deleteWhen."""
        await self._requests.request(broker, code)


def read_settings(body: bytes, whose: str) -> dict[str, str]:
    """Parse a properties file. Raises ConfigError."""
    return {found.key: found.value for found in parse_properties(body.decode(), whose)}


def write_settings(changes: Mapping[str, str]) -> bytes:
    """Encode a properties file."""
    lines = (
        f"{key}={value.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + 'n')}\n"
        for key, value in changes.items()
    )
    return "".join(lines).encode()
