"""Which broker follows which, and how far behind, with Tianzhou's and Apache's brokers.

Brokers of 5.x report it (GET_BROKER_HA_STATUS), those of Tianzhou with more fields. Of a broker of
4.9 only the end of its log is known; its links are derived from the nameserver's list. Of two ends
that of the slave is always read first, so that a slave in order never looks as if it were ahead.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any
from tianzhou.errors import RequestError, TianzhouError
from tianzhou.protocol.bodies.ha import HAClientInfo, HAConnectionInfo, HARuntimeInfo
from tianzhou.protocol.codes import ResponseCode

BEHIND_BYTES_MAX = 256 * 1024 * 1024
"""haSlaveFallbehindMax of RocketMQ: a slave farther behind does not count for SYNC_MASTER."""


SILENT_MS = 20_000
"""haHousekeepingInterval of RocketMQ. A master sends a heartbeat every 5 s."""


@dataclass(frozen=True, slots=True)
class Links:
    """A broker and those that it is connected to."""

    info: HARuntimeInfo
    is_reported: bool = True
    """False for a broker of 4.9: the slaves are those of the nameserver, connected or not."""
    master_first_offset: int | None = None
    """On a slave: where the log of its master begins, if that was read."""

    @property
    def is_tianzhou(self) -> bool:
        return self.info.role is not None


def slave_state(client: HAClientInfo, now_ms: int) -> str | None:
    """What a slave does, in few words; None for a slave of 4.9, which does not report it."""
    if client.problem is not None:
        return client.problem
    if client.state is not None:
        return client.state
    if client.behind_bytes is not None and client.behind_bytes < 0:
        return "ahead of its master"
    if not client.last_read_timestamp:
        return None if client.master_addr is None else "not connected"
    silent_ms = now_ms - client.last_read_timestamp
    return f"silent for {silent_ms // 1000:,} s" if silent_ms > SILENT_MS else "connected"


async def load_links(
    admin: Admin, brokers: Iterable[BrokerRef], registered: Sequence[BrokerRef]
) -> Gathered[Links]:
    """The links of some brokers; `registered` are all brokers that the nameserver knows."""

    def group_of(at: BrokerRef) -> list[BrokerRef]:
        return [each for each in registered if (each.cluster, each.name) == (at.cluster, at.name)]

    return await gather_any(brokers, lambda at: _links_of(admin, at, group_of(at)))


async def _links_of(admin: Admin, at: BrokerRef, group: Sequence[BrokerRef]) -> Links:
    try:
        info = await admin.brokers.ha_status(at)
    except RequestError as e:
        if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        if at.is_master:
            return await _derived_master(admin, at, group)
        end, _ = await _log_range(admin, at)
        info = HARuntimeInfo(client=HAClientInfo(max_offset=end))
        return await _with_master(admin, Links(info, is_reported=False), group)
    links = Links(info)
    return links if info.master else await _with_master(admin, links, group)


async def _with_master(admin: Admin, links: Links, group: Sequence[BrokerRef]) -> Links:
    """The links of a slave, with what its master says of its own log."""
    client = links.info.client
    master = next((each for each in group if each.is_master), None)
    if master is None:
        return links
    try:
        end, first = await _log_range(admin, master)
    except TianzhouError:
        return links
    # What the slave itself knows is older than this.
    client = replace(
        client,
        broker_addr=client.broker_addr or master.address,
        master_max_offset=end,
        behind_bytes=end - client.max_offset,
    )
    info = replace(links.info, client=client)
    return Links(info, is_reported=links.is_reported, master_first_offset=first)


async def _derived_master(admin: Admin, at: BrokerRef, group: Sequence[BrokerRef]) -> Links:
    slaves = [each for each in group if not each.is_master]
    gathered = await gather_any(slaves, lambda slave: _log_range(admin, slave))
    end, _ = await _log_range(admin, at)
    connections = [
        HAConnectionInfo(
            addr=slave.address,
            slave_ack_offset=slave_end,
            diff=end - slave_end,
            in_sync=0 <= end - slave_end < BEHIND_BYTES_MAX,
            slave_name=slave.label,
        )
        for slave, (slave_end, _) in gathered.responses.items()
    ]
    info = HARuntimeInfo(
        master=True,
        master_max_offset=end,
        in_sync_slave_count=sum(each.in_sync for each in connections),
        connections=connections,
    )
    return Links(info, is_reported=False)


async def _log_range(admin: Admin, at: BrokerRef) -> tuple[int, int]:
    """Where the log of a broker ends, and where it begins."""
    runtime = await admin.brokers.runtime(at)
    return int(runtime.get("commitLogMaxOffset", 0)), int(runtime.get("commitLogMinOffset", 0))
