"""The overview of a cluster: is anything wrong?"""

import msgspec

from tianzhou.console.collect.history import BROKER_OUT, CLUSTER, GROUP, TOPIC, SeriesName
from tianzhou.console.collect.snapshot import NORMAL, Snapshot, Totals
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.brokers import BrokerRow, broker_row
from tianzhou.console.views.cluster.charts import ChartData, Spark
from tianzhou.console.views.cluster.groups import GroupRow, group_row
from tianzhou.console.views.cluster.problems import Problem, is_behind, problems_of
from tianzhou.console.views.cluster.state import ClusterState, is_stale, snapshot_of, state_of
from tianzhou.console.views.cluster.topics import TopicRow, topic_row
from tianzhou.console.web.ask import Ask

TOP_ROWS = 6
PROBLEMS_SHOWN = 8


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster on one page."""

    state: ClusterState
    problems: tuple[Problem, ...]
    """Worst first; empty: nothing is wrong."""
    problem_count: int
    totals: Totals
    groups_behind: int
    """Groups with a backlog above 100 messages that is older than a minute."""
    in_yesterday: int | None
    span: str
    rates: ChartData
    lag: ChartData
    sparks: dict[str, Spark]
    """in, out, lag: the last hour."""
    brokers: tuple[BrokerRow, ...]
    busiest: tuple[TopicRow, ...]
    is_rate_known: bool
    """Whether the rate of any topic is known; not before the second round."""
    furthest_behind: tuple[GroupRow, ...]
    topic_sparks: dict[str, Spark]
    group_sparks: dict[str, Spark]


async def overview(ask: Ask) -> Overview:
    """A cluster on one page."""
    snapshot = snapshot_of(ask)
    problems = problems_of(snapshot, is_stale=is_stale(ask))
    span = charts.span_of(ask)
    masters = [each.label for each in snapshot.brokers if each.is_master]
    cluster = SeriesName(CLUSTER)
    lines = [(Text("Incoming"), cluster, charts.per_s)]
    lines += [(Text("Outgoing"), SeriesName(BROKER_OUT, each), charts.per_s) for each in masters]
    busiest = sorted(
        (each for each in snapshot.topics if each.kind == NORMAL and each.in_per_s),
        key=lambda each: -(each.in_per_s or 0),
    )[:TOP_ROWS]
    behind = sorted(
        (each for each in snapshot.groups if each.lag and not each.is_internal),
        key=lambda each: -(each.lag or 0),
    )[:TOP_ROWS]
    out = await charts.sparks(ask, BROKER_OUT, masters, charts.per_s)
    whole_in = await charts.sparks(ask, CLUSTER, [""], charts.per_s)
    whole_lag = await charts.sparks(ask, CLUSTER, [""], charts.lag)
    return Overview(
        state=state_of(ask, snapshot),
        problems=problems[:PROBLEMS_SHOWN],
        problem_count=len(problems),
        totals=snapshot.totals,
        groups_behind=sum(is_behind(each) for each in snapshot.groups),
        in_yesterday=in_yesterday(snapshot),
        span=span,
        rates=await charts.chart(ask, span, lines, "/s"),
        lag=await charts.chart(ask, span, [(Text("Lag"), cluster, charts.lag)]),
        sparks={
            "in": whole_in.get("", ()), "out": charts.added(out.values()),
            "lag": whole_lag.get("", ()),
        },
        brokers=tuple(broker_row(each) for each in snapshot.brokers[:TOP_ROWS]),
        busiest=tuple(map(topic_row, busiest)),
        is_rate_known=any(each.in_per_s is not None for each in snapshot.topics),
        furthest_behind=tuple(map(group_row, behind)),
        topic_sparks=await charts.sparks(
            ask, TOPIC, [each.name for each in busiest], charts.per_s
        ),
        group_sparks=await charts.sparks(ask, GROUP, [each.name for each in behind], charts.lag),
    )  # fmt: skip


def in_yesterday(snapshot: Snapshot) -> int | None:
    """Messages stored yesterday; None if not every master says it."""
    figures = [each.in_yesterday for each in snapshot.brokers if each.is_master]
    return None if None in figures or not figures else sum(each or 0 for each in figures)
