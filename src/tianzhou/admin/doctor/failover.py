"""Checks of groups whose master is elected: what their replicas report, and what none of them sees.

The alarms come from the replicas themselves (`tianzhou broker group` shows them, too); here each
gets a level and advice. Requests and evaluation are separate, as in `checks`.
"""

from collections.abc import Collection, Mapping

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.replication.groups import TWO_GROUPS, Group, load_group
from tianzhou.errors import TianzhouError
from tianzhou.protocol.bodies.ha import HARuntimeInfo

CHECK = "failover"
_OURS = "id:"
_SINCE_5 = "supportActingMaster"
"""A key that nameservers have which compare the epochs of registrations."""
_ADVICE: Mapping[str, tuple[Level, str]] = {
    "stopped": (
        Level.ERROR, "the reason says what to do; `tianzhou broker resync NAME --id ID` if its log "
        "differs from the master's",
    ),
    "untrusted": (Level.ERROR, "see docs/failover.md: etcd lost or restored"),
    "etcd": (Level.ERROR, "repair etcd: messages pass, but no lost master is replaced"),
    "etcd member": (Level.WARNING, "repair that member before another one fails"),
    "paused": (Level.WARNING, "tianzhou broker resume NAME"),
    "unclean": (
        Level.ERROR, "start all replicas, then `tianzhou broker elect NAME --force`, or set "
        "haUncleanRecovery=auto",
    ),
    "no master": (Level.ERROR, "start an in-sync replica: tianzhou broker group NAME"),
    "too few in sync": (
        Level.ERROR, "start the missing replicas: sends are refused until they are back",
    ),
    "one in sync": (
        Level.WARNING, "start the other replicas: if this one is lost, its messages are lost",
    ),
    "priority": (
        Level.WARNING, "set brokerElectionPriority above 0 on more replicas",
    ),
    TWO_GROUPS: (
        Level.ERROR, "stop the brokers that were set up wrongly; with empty stores they join the "
        "right group",
    ),
    "elections": (
        Level.ERROR, "see the logs of the brokers: the master crashes, or the network flaps",
    ),
}  # fmt: skip


async def check_all(admin: Admin, settings: Mapping[BrokerRef, Mapping[str, str]]) -> list[Finding]:
    """Check every group with haEtcdEndpoints; `settings` are of the brokers that respond."""
    elected: dict[str, list[BrokerRef]] = {}
    for at, pairs in settings.items():
        if pairs.get("haEtcdEndpoints"):
            elected.setdefault(at.name, []).append(at)
    findings: list[Finding] = []
    for name, brokers in sorted(elected.items()):
        try:
            group = await load_group(admin, name)
        except TianzhouError as e:
            findings.append(Finding(Level.ERROR, CHECK, name, str(e), "see its log"))
            continue
        findings += check_group(group)
        findings += check_fixed(name, brokers, settings)
        findings += await _check_readers(admin, group)
    if elected:
        findings += await _check_namesrvs(admin)
    return findings


def check_group(group: Group) -> list[Finding]:
    """The alarms of the replicas, and the replicas that do not answer."""
    findings = [
        Finding(
            _ADVICE.get(alarm.code, (Level.WARNING, ""))[0], CHECK, group.name, alarm.text,
            _ADVICE.get(alarm.code, (Level.WARNING, ""))[1].replace("NAME", group.name),
        )
        for alarm in group.alarms
    ]  # fmt: skip
    findings += [
        Finding(
            Level.ERROR, CHECK, f"{group.name}, {each.label}", f"does not answer: {each.problem}",
            f"start it, or `tianzhou broker retire {group.name} --id {each.seen.id}` if it is gone",
        )
        for each in group.members
        if each.own is None
    ]  # fmt: skip
    findings += _check_behind(group)
    if findings:
        return findings
    members = ", ".join(map(str, group.info.in_sync))
    master = group.info.master
    what = f"epoch {group.info.epoch}, master {master}, in sync {members}"
    return [Finding(Level.OK, CHECK, group.name, what)]


def _check_behind(group: Group) -> list[Finding]:
    """Replicas that answer and are not in sync, without saying why."""
    return [
        Finding(
            Level.WARNING, CHECK, f"{group.name}, {each.label}",
            "is not in sync: "
            + (f"{behind:,} bytes behind" if behind else "it has not caught up for a second yet"),
            "if it stays so, compare its disk and network with the rate of sends",
        )
        for each in group.members
        if each.own is not None and not each.own.stopped and not each.own.untrusted
        and not each.seen.is_in_sync and group.info.in_sync
        for behind in (each.behind_bytes(group.master),)
    ]  # fmt: skip


def check_fixed(
    name: str,
    elected: Collection[BrokerRef],
    settings: Mapping[BrokerRef, Mapping[str, str]],
) -> list[Finding]:
    """Brokers of the same name with fixed roles: two ways to decide who is the master."""
    return [
        Finding(
            Level.ERROR, CHECK, at.label,
            f"has a fixed role, other brokers named {name} elect their master",
            "set haEtcdEndpoints on all brokers of the name, or give this one another name",
        )
        for at in settings
        if at.name == name and at not in elected
    ]  # fmt: skip


async def _check_readers(admin: Admin, group: Group) -> list[Finding]:
    """Slaves by RocketMQ's default HA protocol: they have no identity, so they never count."""
    master = group.master
    if master is None or master.own is None:
        return []
    at = BrokerRef(group.name, 0, master.seen.address, group.info.cluster)
    try:
        info = await admin.brokers.ha_status(at)
    except TianzhouError:
        return []  # a master that was replaced meanwhile
    return check_readers(group.name, info)


def check_readers(name: str, info: HARuntimeInfo) -> list[Finding]:
    """One finding for each slave of Apache's."""
    return [
        Finding(
            Level.WARNING, CHECK, f"{name}, slave {slave.slave_name or slave.addr}",
            "follows by RocketMQ's default HA protocol: it is a reader, never in sync, and cannot "
            "become the master",
            "do not count on it as a copy; use a broker of Tianzhou with haEtcdEndpoints",
        )
        for slave in info.connections
        if not (slave.slave_name or "").startswith(_OURS)
    ]  # fmt: skip


async def _check_namesrvs(admin: Admin) -> list[Finding]:
    findings: list[Finding] = []
    for address in admin.namesrv.addresses:
        try:
            settings = await admin.namesrv.settings(address)
        except TianzhouError:
            continue  # one that does not respond has a finding of its own
        findings += check_namesrv(address, settings)
    return findings


def check_namesrv(address: str, settings: Mapping[str, str]) -> list[Finding]:
    """Nameservers of RocketMQ 4.9 know no epochs, so the last one to register is the master."""
    if _SINCE_5 in settings:
        return []
    return [
        Finding(
            Level.WARNING, CHECK, f"nameserver {address}",
            "is of RocketMQ 4.9, which does not compare epochs: a master that was replaced can "
            "register behind the new one, and clients are refused there until the next "
            "registration",
            "use nameservers of Tianzhou or of RocketMQ 5",
        )
    ]  # fmt: skip
