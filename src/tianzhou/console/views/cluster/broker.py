"""One broker name: its replicas, replication and failover, time to store, settings, clients."""

from itertools import pairwise

import msgspec

from tianzhou.console.collect.history import BROKER_IN, BROKER_OUT, SeriesName
from tianzhou.console.collect.snapshot import Broker, Failover, Replication, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.brokers import BrokerRow, broker_row
from tianzhou.console.views.cluster.charts import ChartData
from tianzhou.console.views.cluster.setting_subjects import subject_of
from tianzhou.console.views.cluster.setting_tables import shown
from tianzhou.console.views.cluster.state import (
    ClusterState,
    ask_brokers,
    ref_of,
    snapshot_of,
    state_of,
)
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing, matching_rows, text_of
from tianzhou.console.web.refusals import NotFound
from tianzhou.protocol.bodies.clients import ProducerTableInfo
from tianzhou.protocol.bodies.ha_group import GroupInfo
from tianzhou.protocol.version import version_name

TABS = ("overview", "settings", "clients")
_ENDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)


class PutTime(msgspec.Struct, frozen=True, kw_only=True):
    """How many messages were stored within a time."""

    from_ms: int
    to_ms: int | None
    """None: longer."""
    count: int
    ratio: float


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the master."""

    at_ms: int
    epoch: int
    master_id: int
    cause: str
    duration_ms: int


class EtcdEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint of etcd, as the broker sees it."""

    endpoint: str
    is_answering: bool
    is_leader: bool
    version: str
    latency_ms: float
    problem: str


class BrokerSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a broker."""

    subject: Text
    key: str
    value: str


class ClientRow(msgspec.Struct, frozen=True, kw_only=True):
    """A client of a broker."""

    kind: str
    """producer or consumer."""
    group: str
    client_id: str
    address: str
    language: str
    version: str


class BrokerPage(msgspec.Struct, frozen=True, kw_only=True):
    """One broker name; figures of one of its replicas."""

    state: ClusterState
    name: str
    broker_id: int
    tab: str
    broker: BrokerRow | None
    """None before the first round."""
    replicas: tuple[BrokerRow, ...] = ()
    problem: str = ""
    """Why settings or clients are not known."""
    in_yesterday: int | None = None
    out_yesterday: int | None = None
    log_begin_offset: int | None = None
    log_end_offset: int | None = None
    oldest_message_ms: int | None = None
    waiting_pulls: int | None = None
    page_cache_lock_ms: float | None = None
    topic_count: int | None = None
    group_count: int | None = None
    is_registered: bool = True
    seen_ms: int | None = None
    put_times: tuple[PutTime, ...] | None = None
    """Since the round before; None: not known."""
    replication: Replication | None = None
    failover: Failover | None = None
    switches: tuple[Switch, ...] = ()
    """Newest first."""
    etcd: tuple[EtcdEndpoint, ...] = ()
    failover_problem: str = ""
    span: str = charts.FIRST_SPAN
    chart: ChartData | None = None
    settings: Listing[BrokerSetting] | None = None
    clients: Listing[ClientRow] | None = None


async def broker(ask: Ask) -> BrokerPage:
    """One broker name; `?id=` chooses a replica, the master first."""
    snapshot, name = snapshot_of(ask), ask.path["broker"]
    state = state_of(ask, snapshot)
    tab = ask.query.get("tab", TABS[0])
    tab = tab if tab in TABS else TABS[0]
    if not snapshot.version:
        return BrokerPage(state=state, name=name, broker_id=0, tab=tab, broker=None)
    replicas = [each for each in snapshot.brokers if each.name == name]
    found = _chosen(replicas, ask.query.get("id", ""))
    if found is None:
        raise NotFound(Text("There is no broker {name} in this cluster.", name=name))
    page = BrokerPage(
        state=state,
        name=name,
        broker_id=found.broker_id,
        tab=tab,
        broker=broker_row(found),
        replicas=tuple(map(broker_row, replicas)),
        problem=found.problem,
        is_registered=found.is_registered,
        seen_ms=found.seen_ms,
    )
    if tab == "settings":
        return await _with_settings(ask, page, found)
    if tab == "clients":
        return await _with_clients(ask, page, snapshot, found)
    return await _with_figures(ask, page, found)


def _chosen(replicas: list[Broker], text: str) -> Broker | None:
    if not text:
        return replicas[0] if replicas else None
    return next((each for each in replicas if str(each.broker_id) == text), None)


async def _with_figures(ask: Ask, page: BrokerPage, found: Broker) -> BrokerPage:
    span = charts.span_of(ask)
    lines = [
        (Text("Incoming"), SeriesName(BROKER_IN, found.label), charts.per_s),
        (Text("Outgoing"), SeriesName(BROKER_OUT, found.label), charts.per_s),
    ]
    page = msgspec.structs.replace(
        page,
        in_yesterday=found.in_yesterday,
        out_yesterday=found.out_yesterday,
        log_begin_offset=found.log_begin_offset,
        log_end_offset=found.log_end_offset,
        oldest_message_ms=found.oldest_message_ms,
        waiting_pulls=found.waiting_pulls,
        page_cache_lock_ms=found.page_cache_lock_ms,
        topic_count=found.topic_count,
        group_count=found.group_count,
        put_times=put_times_of(found),
        replication=found.replication,
        failover=found.failover,
        span=span,
        chart=await charts.chart(ask, span, lines, "/s") if found.is_master else None,
    )
    if found.failover is None or not found.answered:
        return page
    at, brokers = ref_of(found), ask.cluster.admin.brokers
    answered = await ask_brokers(ask, lambda: brokers.group(at), "failover", at.address)
    info: GroupInfo | None = answered.value
    if info is None:
        return msgspec.structs.replace(page, failover_problem=answered.problem)
    return msgspec.structs.replace(
        page,
        switches=tuple(
            Switch(
                at_ms=each.time_ms,
                epoch=each.epoch,
                master_id=each.master,
                cause=each.cause,
                duration_ms=each.duration_ms,
            )
            for each in reversed(info.history)
        ),
        etcd=tuple(
            EtcdEndpoint(
                endpoint=each.endpoint,
                is_answering=each.is_answering,
                is_leader=each.is_leader,
                version=each.version,
                latency_ms=each.latency_ms,
                problem=each.problem,
            )
            for each in info.etcd.members
        ),
    )


def put_times_of(found: Broker) -> tuple[PutTime, ...] | None:
    """How long messages took to be stored, without the empty steps at the end."""
    counts = found.put_counts
    if counts is None:
        return None
    total = sum(counts) or 1
    bounds: list[tuple[int, int | None]] = [(0, 0), *pairwise(_ENDS_MS), (_ENDS_MS[-1], None)]
    last = max((step for step, count in enumerate(counts) if count), default=0)
    return tuple(
        PutTime(from_ms=first, to_ms=end, count=count, ratio=count / total)
        for (first, end), count in list(zip(bounds, counts, strict=False))[: max(last, 3) + 1]
    )


async def _with_settings(ask: Ask, page: BrokerPage, found: Broker) -> BrokerPage:
    if not found.answered:
        return page
    at, brokers = ref_of(found), ask.cluster.admin.brokers
    answered = await ask_brokers(ask, lambda: brokers.settings(at), "broker-settings", at.address)
    if answered.value is None:
        return msgspec.structs.replace(page, problem=answered.problem)
    rows = [
        (*subject_of(key), key, shown(key, value)) for key, value in answered.value.items()
    ]  # fmt: skip
    everything = [
        BrokerSetting(subject=subject, key=key, value=value)
        for _, subject, key, value in sorted(rows, key=lambda row: (row[0], row[2]))
    ]
    text = text_of(ask)
    matching = matching_rows(everything, text, lambda row: (row.key, row.value, str(row.subject)))
    settings = Listing(
        rows=tuple(matching), matching=len(matching), total=len(everything), page=1, pages=1,
        sort="", find=text, first=1,
    )  # fmt: skip
    return msgspec.structs.replace(page, settings=settings)


async def _with_clients(
    ask: Ask, page: BrokerPage, snapshot: Snapshot, found: Broker
) -> BrokerPage:  # fmt: skip
    if not found.answered:
        return page
    at, groups = ref_of(found), ask.cluster.admin.groups
    answered = await ask_brokers(ask, lambda: groups.producers(at), "producers", at.address)
    table: ProducerTableInfo | None = answered.value
    rows = [
        ClientRow(
            kind="producer",
            group=group,
            client_id=each.client_id or "",
            address=each.remote_ip or "",
            language=each.language or "",
            version=version_name(each.version),
        )
        for group, clients in ((table.data or {}) if table is not None else {}).items()
        for each in clients
        if ask.scope.sees(group)
    ]
    rows += [
        ClientRow(
            kind="consumer",
            group=group.name,
            client_id=each.client_id,
            address=each.address,
            language=each.language,
            version=each.version,
        )
        for group in snapshot.groups
        if found.name in group.brokers and ask.scope.sees(group.name)
        for each in group.members or ()
    ]
    clients = listing(
        ask,
        rows,
        find=lambda row: (row.kind, row.group, row.client_id, row.address, row.version),
        sort={
            "kind": lambda row: (row.kind, row.group, row.client_id),
            "group": lambda row: (row.group, row.client_id),
            "client": lambda row: row.client_id,
            "address": lambda row: row.address,
            "version": lambda row: row.version,
        },
        first="kind",
    )
    return msgspec.structs.replace(page, clients=clients, problem=answered.problem)
