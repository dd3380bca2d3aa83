"""The first page: the clusters of this console, and whether anything is wrong in one."""

import msgspec

from tianzhou.console.collect.history import CLUSTER
from tianzhou.console.collect.snapshot import Snapshot, Totals
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.brokers import version_text
from tianzhou.console.views.cluster.charts import Spark
from tianzhou.console.views.cluster.problems import Problem, problems_of
from tianzhou.console.views.cluster.state import BAD, OK, UNKNOWN, WARN, Status
from tianzhou.console.web.ask import Ask, WatchedCluster

PROBLEMS_SHOWN = 3


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster."""

    name: str
    namesrv: str
    state: Status
    problems: tuple[Problem, ...]
    """The worst ones."""
    problem_count: int
    totals: Totals | None
    """None before the first round."""
    as_of_ms: int | None
    versions: tuple[str, ...]
    """Of its brokers."""
    in_spark: Spark
    lag_spark: Spark


class Clusters(msgspec.Struct, frozen=True, kw_only=True):
    """The clusters that this console shows."""

    clusters: tuple[ClusterRow, ...]


async def clusters(ask: Ask) -> Clusters:
    """The clusters that this console shows."""
    rows = [await _row(ask, each) for each in ask.console.clusters.values()]
    return Clusters(clusters=tuple(rows))


def version(ask: Ask) -> object:
    """Equal as long as no cluster has a new snapshot."""
    return tuple(
        (each.name, each.snapshot.version if each.snapshot is not None else 0, each.is_stale)
        for each in ask.console.clusters.values()
    )


async def _row(ask: Ask, cluster: WatchedCluster) -> ClusterRow:
    name, snapshot = cluster.name, cluster.snapshot
    if snapshot is None:
        return ClusterRow(
            name=name, namesrv=cluster.settings.namesrv,
            state=Status(level=UNKNOWN, text=Text("first round")), problems=(),
            problem_count=0, totals=None, as_of_ms=None, versions=(), in_spark=(), lag_spark=(),
        )  # fmt: skip
    problems = problems_of(snapshot, is_stale=cluster.is_stale)
    rates = await charts.sparks(ask, CLUSTER, [""], charts.per_s, cluster=name)
    lags = await charts.sparks(ask, CLUSTER, [""], charts.lag, cluster=name)
    return ClusterRow(
        name=name,
        namesrv=cluster.settings.namesrv,
        state=state_of_cluster(problems),
        problems=problems[:PROBLEMS_SHOWN],
        problem_count=len(problems),
        totals=snapshot.totals,
        as_of_ms=snapshot.as_of_ms,
        versions=_versions(snapshot),
        in_spark=rates.get("", ()),
        lag_spark=lags.get("", ()),
    )


def state_of_cluster(problems: tuple[Problem, ...]) -> Status:
    """One badge for a cluster."""
    level = problems[0].level if problems else OK
    if level == BAD:
        return Status(level=BAD, text=Text("needs attention"))
    if level == WARN:
        return Status(level=WARN, text=Text("look at it"))
    return Status(level=OK, text=Text("works"))


def _versions(snapshot: Snapshot) -> tuple[str, ...]:
    return tuple(sorted({text for each in snapshot.brokers if (text := version_text(each))}))
