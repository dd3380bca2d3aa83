"""Checks for common faults of a cluster, each with advice.

Requests and evaluation are separate, so that the evaluation is tested with plain values. A check
that cannot be made (broker down, request not served) is a finding or is left out, never an error.
"""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.doctor import failover, replication
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.doctor.presence import Presence
from tianzhou.admin.fanout import BrokerRef, gather, gather_any, run_limited
from tianzhou.admin.group_detail import GroupOverview, Member, QueueProgress, load_overview
from tianzhou.admin.rates import disk_ratio
from tianzhou.admin.topics import extents
from tianzhou.clock import wall_ms
from tianzhou.errors import TianzhouError
from tianzhou.names import DLQ_TOPIC_PREFIX
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.remoting.address import parse_address

SKEW_MS = 5_000
"""Allowed clock skew; brokers report their age in whole seconds."""
DISK_WARNING, DISK_ERROR = 0.75, 0.85
WATCH_S = 6.0
"""How long queues are observed: clients commit every 5 s."""
_TURN_MS = 60_000
"""How long a member with many queues may work on others before it continues with one."""
_SLOW_FACTOR = 3
"""A message is stuck if it takes this many times the mean consume time."""
_UP = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")
_ADVERTISED = (
    "start it if it is down; otherwise its advertised address cannot be reached from here: "
    "set brokerIP1, open the port"
)


@dataclass(frozen=True, slots=True)
class BrokerState:
    """Run-time figures and settings of one broker."""

    runtime: Mapping[str, str]
    settings: Mapping[str, str]
    asked_ms: int
    """Our clock at the response."""


async def examine(
    admin: Admin,
    presence: Presence | None = None,
    *,
    wait_s: float = WATCH_S,
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> list[Finding]:
    """Make all checks; `wait_s` is how long queues with a backlog are observed, 0: not at all.

    `pause` waits for that time if there is such a queue. `presence` holds the known brokers of the
    cluster; those registered now are added to it.
    """
    findings, info, registered = await _check_namesrvs(admin)
    if info is None:
        return findings
    findings += (presence or Presence()).check(registered, wall_ms())
    if not info.brokers:
        return findings
    brokers = choose(info)
    findings += check_masters(info)
    vitals = await gather_any(brokers, lambda at: _ask_broker(admin, at))
    namesrv_hosts = [parse_address(each)[0] for each in admin.requests.namesrvs]
    findings += check_addresses(brokers, vitals.failures, namesrv_hosts)
    for at in (each for each in brokers if each in vitals.responses):
        state = vitals.responses[at]
        findings += [*check_clock(at, state), *check_disk(at, state), *check_settings(at, state)]
    settings = {at: state.settings for at, state in vitals.responses.items()}
    findings += await replication.check_all(admin, brokers, settings, wall_ms())
    findings += await failover.check_all(admin, settings)
    findings += check_versions({at: state.runtime for at, state in vitals.responses.items()})
    masters = [at for at in vitals.responses if at.is_master]
    if masters:
        findings += await _check_groups(admin, masters, wait_s, pause)
        findings += await _check_dead_letters(admin)
    return findings


# -- nameservers and brokers -----------------------------------------------------------------------


async def _check_namesrvs(
    admin: Admin,
) -> tuple[list[Finding], ClusterInfo | None, list[BrokerRef]]:
    """Findings, the cluster as one nameserver knows it, and all brokers known to any."""
    views: dict[str, ClusterInfo] = {}
    findings: list[Finding] = []
    for address in admin.namesrv.addresses:
        try:
            views[address] = await admin.clusters.info_of(address)
        except TianzhouError as e:
            advice = "start it, or remove it from the list of nameservers"
            findings.append(Finding(Level.ERROR, "nameservers", address, str(e), advice))
    findings += check_views(views)
    known = [at for info in views.values() if info.brokers for at in choose(info)]
    # Continue with the nameserver that knows the most brokers.
    widest = max(views.values(), key=lambda info: len(info.brokers), default=None)
    return findings, widest, known


async def registered_brokers(admin: Admin) -> list[BrokerRef]:
    """The brokers known to any nameserver. Raises RemotingError if none responds."""
    _, info, registered = await _check_namesrvs(admin)
    if info is None:
        await admin.clusters.info()
    return registered


def check_views(views: Mapping[str, ClusterInfo]) -> list[Finding]:
    """All nameservers must know the same brokers: they do not synchronize."""
    all_brokers = {name for info in views.values() for name in info.brokers}
    findings = [
        Finding(
            Level.ERROR,
            "nameservers",
            address,
            f"does not know {', '.join(sorted(all_brokers - set(info.brokers)))}",
            "list every nameserver in namesrvAddr of the brokers",
        )
        for address, info in views.items()
        if all_brokers - set(info.brokers)
    ]
    if not findings and views:
        names = ", ".join(views)
        known = ", ".join(sorted(all_brokers)) or "no broker"
        findings.append(Finding(Level.OK, "nameservers", names, f"know {known}"))
    return findings


def check_masters(info: ClusterInfo) -> list[Finding]:
    """A broker without a master accepts no messages."""
    return [
        Finding(
            Level.ERROR,
            "masters",
            name,
            "has no master, only slaves: it accepts no messages",
            f"start its master, or `tianzhou broker promote {name}`; with automatic failover see "
            f"`tianzhou broker group {name}`",
        )
        for name, data in sorted(info.brokers.items())
        if 0 not in (data.addresses or {})
    ]


async def _ask_broker(admin: Admin, at: BrokerRef) -> BrokerState:
    runtime = await admin.brokers.runtime(at)
    asked_ms = wall_ms()
    return BrokerState(runtime, await admin.brokers.settings(at), asked_ms)


def check_addresses(
    brokers: Sequence[BrokerRef],
    missing: Mapping[BrokerRef, TianzhouError],
    namesrv_hosts: Sequence[str],
) -> list[Finding]:
    """Clients connect to the address that a broker advertises, so it must be reachable."""
    findings = [
        Finding(Level.ERROR, "addresses", f"{at.label} {at.address}", str(why), _ADVERTISED)
        for at, why in missing.items()
    ]
    far = any(not _is_loopback(host) for host in namesrv_hosts)
    findings += [
        Finding(
            Level.WARNING,
            "addresses",
            f"{at.label} {at.address}",
            "advertises a loopback address: clients on other machines cannot reach it",
            "set brokerIP1 to an address that clients can reach",
        )
        for at in brokers
        if far and at not in missing and _is_loopback(parse_address(at.address)[0])
    ]
    if not findings:
        text = "every advertised address is reachable"
        findings.append(Finding(Level.OK, "addresses", ", ".join(at.label for at in brokers), text))
    return findings


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def broker_clock_ms(runtime: Mapping[str, str]) -> int | None:
    """The clock of a broker, from its boot time and age; None if it does not report them."""
    age = _UP.search(runtime.get("runtime", ""))
    boot = runtime.get("bootTimestamp", "")
    if age is None or not boot.isdecimal():
        return None
    days, hours, minutes, seconds = map(int, age.groups())
    return int(boot) + 1000 * (86_400 * days + 3600 * hours + 60 * minutes + seconds)


def check_clock(at: BrokerRef, state: BrokerState) -> list[Finding]:
    """Message times, delays and offset resets by time need synchronized clocks."""
    clock_ms = broker_clock_ms(state.runtime)
    if clock_ms is None:
        return []
    # The age is truncated to whole seconds: half a second is the expected error.
    skew_ms = clock_ms + 500 - state.asked_ms
    if abs(skew_ms) <= SKEW_MS:
        return [Finding(Level.OK, "clocks", at.label, "within 5 s of this machine's")]
    ahead = "ahead of" if skew_ms > 0 else "behind"
    what = f"clock is {abs(skew_ms) / 1000:.0f} s {ahead} this machine's"
    advice = "synchronize both machines by NTP (chronyd, systemd-timesyncd)"
    return [Finding(Level.ERROR, "clocks", at.label, what, advice)]


def check_disk(at: BrokerRef, state: BrokerState) -> list[Finding]:
    """On a full disk old messages are deleted early, then sends are rejected."""
    ratio = disk_ratio(state.runtime)
    if ratio is None:
        return []
    what = f"disk is {ratio:.0%} full"
    if ratio < DISK_WARNING:
        return [Finding(Level.OK, "disks", at.label, what)]
    advice = "free space or reduce fileReservedTime, before old messages go and sends fail"
    level = Level.ERROR if ratio >= DISK_ERROR else Level.WARNING
    return [Finding(level, "disks", at.label, what, advice)]


def check_settings(at: BrokerRef, state: BrokerState) -> list[Finding]:
    """Settings that are dangerous in production."""
    advice = f"tianzhou broker config {at.name} --set KEY=false"
    findings = [
        Finding(Level.WARNING, "settings", at.label, what, advice.replace("KEY", key))
        for key, what in (
            ("autoCreateTopicEnable", "creates topics automatically: a typo becomes a topic"),
            ("autoCreateSubscriptionGroup", "creates groups automatically: any client can add one"),
        )
        if state.settings.get(key) == "true"
    ]
    # It is false for every slave, and for a master that is not in service.
    if at.is_master and state.runtime.get("brokerActive") == "false":
        what = "is registered, but not active"
        findings.append(Finding(Level.ERROR, "settings", at.label, what, "see its log"))
    return findings or [Finding(Level.OK, "settings", at.label, "safe for production")]


def check_versions(runtimes: Mapping[BrokerRef, Mapping[str, str]]) -> list[Finding]:
    """Different versions within a cluster are for the time of an upgrade only."""
    versions: dict[str, dict[str, list[str]]] = {}
    for at, runtime in runtimes.items():
        by_version = versions.setdefault(at.cluster, {})
        by_version.setdefault(runtime.get("brokerVersionDesc", "unknown"), []).append(at.label)
    return [
        Finding(
            Level.WARNING,
            "versions",
            cluster,
            "; ".join(f"{version}: {', '.join(names)}" for version, names in found.items()),
            "finish the upgrade",
        )
        for cluster, found in versions.items()
        if len(found) > 1
    ]


# -- groups ----------------------------------------------------------------------------------------


async def _check_groups(
    admin: Admin,
    masters: Sequence[BrokerRef],
    wait_s: float,
    pause: Callable[[float], Awaitable[None]],
) -> list[Finding]:
    tables = await gather(masters, admin.groups.all_configs)
    names = sorted({name for table in tables.responses.values() for name in table})
    first = await _overviews(admin, names)
    lagging = [name for name, each in first.items() if each.lag_count and each.members]
    second: dict[str, GroupOverview] = {}
    if lagging and wait_s > 0:
        await pause(wait_s)
        second = await _overviews(admin, lagging)
    findings: list[Finding] = []
    for name, each in first.items():
        findings += [*check_subscriptions(each), *check_backlog(each)]
        if name in second:
            findings += check_progress(each, second[name], wait_s * 1000)
    if not findings:
        what = "subscriptions agree" + (", no queue is stuck" if wait_s > 0 else "")
        findings.append(Finding(Level.OK, "groups", f"{len(first)} groups", what))
    return findings


async def _overviews(admin: Admin, names: Sequence[str]) -> dict[str, GroupOverview]:
    async def one(name: str) -> GroupOverview | None:
        try:
            return await load_overview(admin, name)
        except TianzhouError:
            # The group may be deleted meanwhile; brokers that are down are found elsewhere.
            return None

    found = zip(names, await run_limited(names, one), strict=True)
    return {name: each for name, each in found if each is not None}


def check_subscriptions(overview: GroupOverview) -> list[Finding]:
    """Members of a group with different subscriptions lose messages."""
    return [
        Finding(
            Level.ERROR,
            "subscriptions",
            f"group {overview.group}",
            f"members have different subscriptions to {each.describe()}",
            "give these members the same subscriptions, or separate groups",
        )
        for each in overview.conflicts
    ]


def check_backlog(overview: GroupOverview) -> list[Finding]:
    """A backlog without an online member."""
    if overview.members or not overview.lag_count:
        return []
    topics = ", ".join(sorted({queue.topic for queue in overview.queues if queue.lag_count}))
    messages = _plural(overview.lag_count, "message")
    return [
        Finding(
            Level.WARNING,
            "backlog",
            f"group {overview.group}",
            f"backlog of {messages} of {topics}, and no member is online",
            f"start its consumers, or if it is obsolete `tianzhou group delete {overview.group}`",
        )
    ]


def check_progress(before: GroupOverview, after: GroupOverview, watched_ms: float) -> list[Finding]:
    """Queues with a backlog and without progress between two overviews."""
    was = {_key(queue): queue for queue in before.queues}
    still = [
        queue
        for queue in after.queues
        if queue.lag_count
        and (earlier := was.get(_key(queue))) is not None
        and earlier.committed_offset == queue.committed_offset
        and not _is_worked_on(queue, before.members, after.members, watched_ms)
    ]
    if not still or not after.members:
        return []
    lag = sum(queue.lag_count for queue in still)
    queues = ", ".join(f"{q.topic} {q.broker_name}/{q.queue_id}" for q in still[:4])
    more = f" and {len(still) - 4} more" if len(still) > 4 else ""
    what = f"{_plural(lag, 'message')} in stuck queues: {queues}{more}"
    advice = f"see the stacks: tianzhou group members {after.group} --stacks"
    return [Finding(Level.ERROR, "stuck queues", f"group {after.group}", what, advice)]


def _is_worked_on(
    queue: QueueProgress, before: Sequence[Member], after: Sequence[Member], watched_ms: float
) -> bool:
    """Whether the member that holds a queue makes progress, although nothing is committed.

    A queue that has just moved to another member counts as worked on.
    """
    was, now = _holder(queue, before), _holder(queue, after)
    if now is None:
        return False
    if was is None or was.client_id != now.client_id:
        return True
    wire = _wire_key(queue)
    work = now.queues[wire]
    if work.moved_since(was.queues[wire]):
        return True
    if watched_ms < _SLOW_FACTOR * now.consume_ms.get(queue.topic, 0.0):
        return True
    # Concurrent consumption of a queue waits behind the other queues of the member.
    others_ms = [
        each.consumed_ms
        for other, each in now.queues.items()
        if other in was.queues and each.moved_since(was.queues[other])
    ]
    return bool(others_ms) and not work.in_order and max(others_ms) - work.consumed_ms < _TURN_MS


def _holder(queue: QueueProgress, members: Sequence[Member]) -> Member | None:
    wire = _wire_key(queue)
    return next((member for member in members if wire in member.queues), None)


def _wire_key(queue: QueueProgress) -> MessageQueue:
    return MessageQueue(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)


def _key(queue: QueueProgress) -> tuple[str, str, int]:
    return queue.topic, queue.broker_name, queue.queue_id


async def _check_dead_letters(admin: Admin) -> list[Finding]:
    findings: list[Finding] = []
    for name in await admin.topics.names():
        if not name.startswith(DLQ_TOPIC_PREFIX):
            continue
        try:
            queues = extents(await admin.topics.stats(name))
        except TianzhouError:
            continue
        count = sum(each.max_offset - each.min_offset for _, each in queues)
        if count:
            group = name.removeprefix(DLQ_TOPIC_PREFIX)
            what = _plural(count, "dead letter")
            advice = f"tianzhou dlq list {group}; then dlq resend, or dlq export"
            findings.append(Finding(Level.WARNING, "dead letters", f"group {group}", what, advice))
    return findings


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
