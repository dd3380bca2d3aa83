"""Making a slave the master by hand: what is known before, and the request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, gather_any
from tianzhou.errors import RequestError, TargetError, TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.protocol.codes import ResponseCode

_LABEL = re.compile(r"(.+)\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class ShownMaster:
    """A master of the same name that a nameserver shows."""

    namesrv: str
    address: str
    responds: bool


@dataclass(frozen=True, slots=True)
class Promotion:
    """A slave that is to become the master, and what may speak against it."""

    slave: BrokerRef
    end_offset: int
    """Where its log ends."""
    masters: tuple[ShownMaster, ...]
    other_ends: Mapping[BrokerRef, int]
    """Where the logs of the other slaves end, those that respond."""
    warnings: tuple[str, ...]

    @property
    def obstacle(self) -> str | None:
        """Why it needs force; None if it does not."""
        for master in self.masters:
            shown = f"{self.slave.name} has the master {master.address} at nameserver"
            if master.responds:
                return (
                    f"{shown} {master.namesrv}, and it responds; stop it first, because two "
                    "masters would store different messages, or pass --force"
                )
        if self.masters:
            first = self.masters[0]
            return (
                f"{self.slave.name} has the master {first.address} at nameserver {first.namesrv}, "
                "which does not respond from here; nameservers forget a dead broker within two "
                "minutes: try again, or pass --force if you know that it is down"
            )
        return None

    @property
    def better(self) -> BrokerRef | None:
        """Another slave whose log is longer, so that less would be lost with it."""
        ahead = {at: end for at, end in self.other_ends.items() if end > self.end_offset}
        return max(ahead, key=lambda at: ahead[at], default=None)


async def plan_promotion(admin: Admin, broker: str) -> Promotion:
    """Look up a slave by name, NAME[ID] or address, and its group at every nameserver.

    Raises TargetError if it is not one slave of Tianzhou's, RemotingError if no nameserver or the
    slave does not respond.
    """
    views: dict[str, ClusterInfo] = {}
    warnings: list[str] = []
    for namesrv in admin.namesrv.addresses:
        try:
            views[namesrv] = await admin.clusters.info_of(namesrv)
        except TianzhouError as e:
            warnings.append(f"nameserver {namesrv}: {e}")
    if not views:
        await admin.clusters.info()  # raises the error of the last one
    registered = sorted({at for info in views.values() if info.brokers for at in choose(info)})
    slave = _find_slave(registered, broker)
    settings = await admin.brokers.settings(slave)
    if settings.get("haEtcdEndpoints"):
        raise TargetError(
            f"the master of {slave.name} is elected (haEtcdEndpoints), so no broker is promoted: "
            f"`tianzhou broker switch {slave.name}` changes the master, and `tianzhou broker elect "
            f"{slave.name} --force` makes one where none can be elected"
        )
    if settings.get("brokerRole") != "SLAVE":
        role = settings.get("brokerRole", "without a role")
        raise TargetError(f"{slave.label} ({slave.address}) is no slave: it is {role} already")
    if slave.is_master:  # it was given by address, and is not registered
        slave = BrokerRef(
            settings.get("brokerName", ""), int(settings.get("brokerId", 0)), slave.address,
            settings.get("brokerClusterName", ""),
        )  # fmt: skip
    end_offset = await _end_offset(admin, slave)
    group = [at for at in registered if (at.cluster, at.name) == (slave.cluster, slave.name)]
    others = [at for at in group if not at.is_master and at != slave]
    ends = await gather_any(others, lambda at: _end_offset(admin, at))
    return Promotion(
        slave, end_offset, await _masters(admin, slave, views), ends.responses,
        (*warnings, *ends.warnings),
    )  # fmt: skip


def _find_slave(registered: list[BrokerRef], broker: str) -> BrokerRef:
    matches = [at for at in registered if broker in (at.address, at.label)]
    if matches and broker == matches[0].address:
        return matches[0]
    slaves = [at for at in registered if at.name == broker and not at.is_master]
    labelled = [at for at in matches if not at.is_master]
    if len(labelled or slaves) == 1:
        return (labelled or slaves)[0]
    if slaves:
        names = ", ".join(f"{at.label} ({at.address})" for at in slaves)
        raise TargetError(f"{broker} has several slaves, name one of them: {names}")
    if ":" in broker and _LABEL.fullmatch(broker) is None:
        return BrokerRef(broker, MASTER_ID, broker, "")
    known = ", ".join(at.label for at in registered if not at.is_master) or "none"
    raise TargetError(f"there is no slave {broker!r}; registered slaves: {known}")


async def _masters(
    admin: Admin, slave: BrokerRef, views: Mapping[str, ClusterInfo]
) -> tuple[ShownMaster, ...]:
    found: list[ShownMaster] = []
    for namesrv, info in views.items():
        data = info.brokers.get(slave.name)
        address = None if data is None else (data.addresses or {}).get(MASTER_ID)
        # A nameserver of 5.x may show a slave that acts for its master as the master.
        if address is None or address == slave.address:
            continue
        try:
            await admin.brokers.runtime(BrokerRef(slave.name, MASTER_ID, address, slave.cluster))
        except TianzhouError:
            responds = False
        else:
            responds = True
        found.append(ShownMaster(namesrv, address, responds))
    return tuple(found)


async def _end_offset(admin: Admin, at: BrokerRef) -> int:
    return int((await admin.brokers.runtime(at)).get("commitLogMaxOffset", 0))


async def promote(admin: Admin, slave: BrokerRef, role: str, *, force: bool) -> str | None:
    """Make a slave the master; returns the remark of its response.

    Raises TargetError for a broker of Apache's, RequestError if the broker refuses.
    """
    try:
        return await admin.brokers.change_role(slave, role, force=force)
    except RequestError as e:
        if e.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        raise TargetError(
            f"{slave.label} ({slave.address}) cannot be promoted by a request: it is a broker of "
            "Apache's, or of an older version. Stop it, set brokerRole=ASYNC_MASTER and brokerId=0 "
            "in its configuration file, and start it again"
        ) from e
