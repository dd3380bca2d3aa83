"""The brokers of a cluster: rates, disk, time to store, replication and failover."""

import msgspec

from tianzhou.console.collect.history import BROKER_IN, BROKER_OUT
from tianzhou.console.collect.snapshot import Broker
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.charts import Spark
from tianzhou.console.views.cluster.problems import BEHIND_MS, DISK_BAD, DISK_WARN
from tianzhou.console.views.cluster.state import (
    BAD,
    INFO,
    OFF,
    OK,
    UNKNOWN,
    WARN,
    ClusterState,
    Status,
    snapshot_of,
    state_of,
)
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing


class BrokerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One broker process."""

    label: str
    name: str
    broker_id: int
    cluster: str
    address: str
    version: str
    state: Status
    role: Status
    replication: Status
    in_per_s: float | None
    out_per_s: float | None
    in_today: int | None
    out_today: int | None
    put_p99_ms: float | None
    put_max_ms: float | None
    disk_ratio: float | None
    disk_level: str
    waiting_sends: int | None
    boot_ms: int | None
    answer_ms: float | None
    problem: str


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    """All brokers, also those that were seen before and are gone."""

    state: ClusterState
    brokers: Listing[BrokerRow]
    in_sparks: dict[str, Spark]
    out_sparks: dict[str, Spark]


async def brokers(ask: Ask) -> Brokers:
    """All brokers of a cluster."""
    snapshot = snapshot_of(ask)
    found = listing(
        ask,
        [broker_row(each) for each in snapshot.brokers],
        find=lambda row: (row.label, row.address, row.version, row.cluster, str(row.role.text)),
        sort={
            "name": lambda row: (row.name, row.broker_id),
            "in": lambda row: row.in_per_s,
            "out": lambda row: row.out_per_s,
            "today": lambda row: row.in_today,
            "p99": lambda row: row.put_p99_ms,
            "disk": lambda row: row.disk_ratio,
            "boot": lambda row: row.boot_ms,
        },
        first="name",
    )
    shown = [row.label for row in found.rows if row.broker_id == 0]
    return Brokers(
        state=state_of(ask, snapshot),
        brokers=found,
        in_sparks=await charts.sparks(ask, BROKER_IN, shown, charts.per_s),
        out_sparks=await charts.sparks(ask, BROKER_OUT, shown, charts.per_s),
    )


def broker_row(broker: Broker) -> BrokerRow:
    """The line of a broker in tables."""
    return BrokerRow(
        label=broker.label,
        name=broker.name,
        broker_id=broker.broker_id,
        cluster=broker.cluster,
        address=broker.address,
        version=version_text(broker),
        state=state_of_broker(broker),
        role=role_of(broker),
        replication=replication_of(broker),
        in_per_s=broker.in_per_s,
        out_per_s=broker.out_per_s,
        in_today=broker.in_today,
        out_today=broker.out_today,
        put_p99_ms=broker.put_p99_ms,
        put_max_ms=broker.put_max_ms,
        disk_ratio=broker.disk_ratio,
        disk_level=disk_level(broker.disk_ratio),
        waiting_sends=broker.waiting_sends,
        boot_ms=broker.boot_ms,
        answer_ms=broker.answer_ms,
        problem=broker.problem,
    )


def version_text(broker: Broker) -> str:
    """ "4.9.7" for "V4_9_7"; Tianzhou's name in front of its own."""
    plain = broker.version.removeprefix("V").replace("_", ".")
    if not plain:
        return ""
    return plain if broker.is_tianzhou is not True or "Tianzhou" in plain else f"Tianzhou {plain}"


def disk_level(ratio: float | None) -> str:
    """The level of a disk that is so full; empty: enough is free."""
    if ratio is None or ratio < DISK_WARN:
        return ""
    return BAD if ratio >= DISK_BAD else WARN


def state_of_broker(broker: Broker) -> Status:
    """Whether a broker answers."""
    if not broker.answered:
        return Status(level=BAD, text=Text("no answer"), reason=broker.problem)
    if not broker.is_registered:
        return Status(level=WARN, text=Text("not registered"))
    return Status(level=OK, text=Text("up"))


def role_of(broker: Broker) -> Status:
    """Master or slave; with elected masters what the replica is at the moment."""
    failover = broker.failover
    if failover is not None:
        modes = {
            "master": (OK, Text("master")),
            "slave": (INFO, Text("slave")),
            "candidate": (WARN, Text("candidate")),
            "promoting": (WARN, Text("is promoted")),
            "starting": (INFO, Text("starting")),
            "stopped": (BAD, Text("stopped")),
        }
        level, text = modes.get(failover.mode, (UNKNOWN, Text("{mode}", mode=failover.mode)))
        return Status(level=level, text=text, reason=failover.refusal)
    if not broker.is_master:
        return Status(level=INFO, text=Text("slave"))
    is_sync = broker.replication is not None and broker.replication.role == "SYNC_MASTER"
    return Status(level=OK, text=Text("synchronous master") if is_sync else Text("master"))


def replication_of(broker: Broker) -> Status:
    """How replication stands, in a few words."""
    if not broker.answered:
        return Status(level=UNKNOWN, text=Text("not known"), reason=broker.problem)
    failover, replication = broker.failover, broker.replication
    if failover is not None:
        count, all_count = len(failover.in_sync), len(failover.replicas)
        level = OK if count == all_count else WARN
        if count < failover.min_in_sync:
            level = BAD
        text = Text("{count} of {all} in sync, epoch {epoch}", count=count, all=all_count,
                    epoch=str(failover.epoch))  # fmt: skip
        return Status(level=level, text=text, reason="; ".join(failover.alarms))
    if replication is None:
        text = Text("not reported by this version")
        return Status(level=UNKNOWN, text=text)
    if not broker.is_master:
        is_following = replication.state in ("", "following")
        if not is_following:
            return Status(level=WARN, text=Text("does not follow"), reason=replication.state)
        if replication.behind_bytes:
            text = Text("{n} byte behind|{n} bytes behind", n=replication.behind_bytes)
            return Status(level=OK, text=text)
        return Status(level=OK, text=Text("follows"))
    slaves = replication.slaves
    if not slaves:
        return Status(level=OFF, text=Text("no slave"))
    following = [
        each
        for each in slaves
        if not each.problem and each.is_in_sync is not False and (each.behind_ms or 0) < BEHIND_MS
    ]
    problems = "; ".join(f"{each.name}: {each.problem}" for each in slaves if each.problem)
    text = Text("{count} of {n} slave in sync|{count} of {n} slaves in sync", n=len(slaves),
                count=len(following))  # fmt: skip
    level = OK if len(following) == len(slaves) else WARN
    return Status(level=level, text=text, reason=problems)
