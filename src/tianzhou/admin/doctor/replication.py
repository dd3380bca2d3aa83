"""Checks of masters and slaves: slaves that do not follow, settings that must agree.

What a broker of Tianzhou reports is taken as it is, with its reason. Of Apache's brokers the ends
of the logs are compared.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.replication.links import (
    BEHIND_BYTES_MAX,
    Links,
    load_links,
    slave_state,
)
from tianzhou.protocol.bodies.ha import FOLLOWING
from tianzhou.remoting.address import parse_address

CHECK = "replication"
BEHIND_BYTES_WARNING = 64 * 1024 * 1024
BEHIND_MS_WARNING = 30_000
_EQUAL_SETTINGS = {
    "mappedFileSizeCommitLog": (
        Level.ERROR, "the log cannot be copied",
        "give the slave the size of the master, and an empty store directory",
    ),
    "slaveReadEnable": (
        Level.WARNING, "consumers are sent to a slave that refuses them, or never sent to one",
        "set it to the same value on both",
    ),
}  # fmt: skip
"""Settings that master and slave must share: level, consequence and advice."""
_COPY_AGAIN = (
    "stop it, move its store directory away, start it with an empty one: it copies the log again"
)
_SEE_LOG = "see its log, and the page about replication"
_OF_THE_LOG = ("log ends at", "logs are equal", "oldest file")
"""What problems say for which an empty store is the remedy; others name their own."""
OUR_NAMES = "id:"
"""How the names of slaves begin that are brokers of Tianzhou."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A broker of a group, as far as it responded."""

    at: BrokerRef
    settings: Mapping[str, str]
    links: Links | None
    """None if it did not report them."""


async def check_all(
    admin: Admin,
    brokers: Sequence[BrokerRef],
    settings: Mapping[BrokerRef, Mapping[str, str]],
    now_ms: int,
) -> list[Finding]:
    """Check every group that has slaves or needs one; `settings` are of those that respond."""
    groups: dict[tuple[str, str], list[BrokerRef]] = {}
    for at in brokers:
        groups.setdefault((at.cluster, at.name), []).append(at)
    replicated = [
        group
        for group in groups.values()
        if len(group) > 1 or any(_is_sync(settings.get(at, {})) for at in group)
    ]
    responding = [at for group in replicated for at in group if at in settings]
    links = (await load_links(admin, responding, brokers)).responses
    findings: list[Finding] = []
    for group in replicated:
        replicas = [Replica(at, settings[at], links.get(at)) for at in group if at in settings]
        findings += check_group(group, replicas, now_ms)
    return findings


def _is_sync(settings: Mapping[str, str]) -> bool:
    return settings.get("brokerRole") == "SYNC_MASTER"


def check_group(
    registered: Sequence[BrokerRef], replicas: Sequence[Replica], now_ms: int
) -> list[Finding]:
    """The findings about one broker name; OK if there is nothing to report."""
    master = next((each for each in replicas if each.at.is_master), None)
    slaves = [each for each in replicas if not each.at.is_master]
    findings: list[Finding] = []
    if master is not None:
        findings += _check_master(master, registered)
        findings += [found for slave in slaves for found in _check_settings(master, slave)]
    if any(at.is_master for at in registered):
        # Without a registered master that is the finding, and no slave can follow.
        count = sum(not at.is_master for at in registered)
        stopped = {
            slave.at.broker_id: _check_slave(slave, master, count, now_ms) for slave in slaves
        }
        findings += [found for few in stopped.values() for found in few]
        if master is not None:
            findings += _check_connections(master, {each for each in stopped if stopped[each]})
    if findings or not slaves:
        return findings
    labels = ", ".join(each.at.label for each in slaves)
    return [Finding(Level.OK, CHECK, labels, "follows its master, a short way behind")]


# -- masters ---------------------------------------------------------------------------------------


def _check_master(master: Replica, registered: Sequence[BrokerRef]) -> list[Finding]:
    if not _is_sync(master.settings) or master.links is None:
        return []
    links, replicas = master.links, _number(master.settings.get("inSyncReplicas"), 1)
    if links.is_reported and not links.is_tianzhou and replicas < 2:
        what = "is a SYNC_MASTER of RocketMQ 5.x with inSyncReplicas=1: it waits for no slave"
        advice = "set inSyncReplicas=2 on it"
        return [Finding(Level.WARNING, CHECK, master.at.label, what, advice)]
    needed = max(replicas, 2) - 1
    in_reach = links.info.in_sync_slave_count
    if in_reach >= needed:
        return []
    slaves = sum(not at.is_master for at in registered)
    what = (
        f"is a SYNC_MASTER that waits for {needed} of its slaves; {in_reach} in reach, {slaves} "
        "registered: no send ends with SEND_OK"
    )
    advice = "start its slave, or set brokerRole=ASYNC_MASTER and restart it"
    return [Finding(Level.ERROR, CHECK, master.at.label, what, advice)]


def _check_connections(master: Replica, stopped: Collection[int]) -> list[Finding]:
    """The slaves as the master sees them, without those that report the fault themselves."""
    links = master.links
    if links is None or not links.is_reported:
        return []
    findings: list[Finding] = []
    for slave in links.info.connections:
        name = slave.slave_name or slave.addr or "?"
        subject = f"{master.at.label}, slave {name}"
        is_default_ha = not name.startswith(OUR_NAMES)
        if links.is_tianzhou and is_default_ha and master.settings.get("aclEnable") == "true":
            findings.append(
                Finding(
                    Level.WARNING, CHECK, subject,
                    "copies the log without an account, although access control is on: RocketMQ's "
                    "HA protocol has none",
                    "limit haAllowedAddresses to hosts you trust, and close the HA port to others",
                )
            )  # fmt: skip
        if name in {f"{OUR_NAMES}{broker_id}" for broker_id in stopped}:
            continue
        if slave.problem is not None:
            needs_copy = any(text in slave.problem for text in _OF_THE_LOG)
            advice = _COPY_AGAIN if needs_copy else _SEE_LOG
            findings.append(Finding(Level.ERROR, CHECK, subject, slave.problem, advice))
        elif slave.diff < 0:
            findings.append(_ahead(subject, -slave.diff))
        else:
            findings += _check_lag(subject, slave.diff, slave.behind_ms)
    return findings


# -- slaves ----------------------------------------------------------------------------------------


def _check_slave(
    slave: Replica, master: Replica | None, slave_count: int, now_ms: int
) -> list[Finding]:
    if slave.links is None:
        return []
    label, client = slave.at.label, slave.links.info.client
    if client.state is not None:
        if client.state == FOLLOWING and client.problem is None:
            return []
        # Its text says what to do.
        what = f"does not follow its master: {slave_state(client, now_ms)}"
        return [Finding(Level.ERROR, CHECK, label, what, _SEE_LOG)]
    behind = client.behind_bytes
    if behind is not None and behind < 0:
        return [_ahead(label, -behind)]
    first = slave.links.master_first_offset
    if first is not None and 0 < client.max_offset < first:
        what = (
            f"ends at {client.max_offset:,}, before the oldest file of its master ({first:,}): it "
            "never gets the next byte"
        )
        return [Finding(Level.ERROR, CHECK, label, what, _COPY_AGAIN)]
    state = slave_state(client, now_ms)
    if state is not None and state.startswith("silent"):
        return [
            Finding(Level.ERROR, CHECK, label, f"gets nothing from its master: {state}", _SEE_LOG)
        ]
    if not _is_connected(slave, master, slave_count):
        what = "is registered, but its master has no connection from it"
        return [Finding(Level.ERROR, CHECK, label, what, _SEE_LOG)]
    # A slave of 5.x at a master that reports its slaves is checked there.
    has_row = master is not None and master.links is not None and master.links.is_reported
    return [] if behind is None or has_row else _check_lag(label, behind, None)


def _is_connected(slave: Replica, master: Replica | None, slave_count: int) -> bool:
    """Whether the master lists a connection from the host of a slave of Apache's, or as many
    connections as it has slaves: a host may have several addresses."""
    links = None if master is None else master.links
    if links is None or not links.is_reported:
        return True
    hosts = [parse_address(each.addr)[0] for each in links.info.connections if each.addr]
    return parse_address(slave.at.address)[0] in hosts or len(hosts) >= slave_count


def _ahead(subject: str, count: int) -> Finding:
    what = f"has {count:,} bytes that its master lacks: it was the master, or another one's slave"
    return Finding(Level.ERROR, CHECK, subject, what, _COPY_AGAIN)


def _check_lag(subject: str, behind_bytes: int, behind_ms: int | None) -> list[Finding]:
    if behind_bytes < BEHIND_BYTES_WARNING and (behind_ms or 0) < BEHIND_MS_WARNING:
        return []
    age = "" if behind_ms is None else f" and {behind_ms / 1000:,.1f} s"
    what = f"is {behind_bytes:,} bytes{age} behind its master"
    if behind_bytes >= BEHIND_BYTES_MAX:
        what += ": too far to count for SYNC_MASTER (haSlaveFallbehindMax)"
    advice = "if it does not get less: compare the disks and the network with the rate of sends"
    return [Finding(Level.WARNING, CHECK, subject, what, advice)]


def _check_settings(master: Replica, slave: Replica) -> list[Finding]:
    findings: list[Finding] = []
    for key, (level, effect, advice) in _EQUAL_SETTINGS.items():
        theirs, own = master.settings.get(key), slave.settings.get(key)
        if theirs is not None and own is not None and theirs != own:
            what = f"has {key}={own}, its master has {theirs}: {effect}"
            findings.append(Finding(level, CHECK, slave.at.label, what, advice))
    return findings


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default
