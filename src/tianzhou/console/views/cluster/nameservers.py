"""The nameservers of a cluster: what each of them lists, its KV pairs and settings."""

from collections.abc import Mapping

import msgspec

from tianzhou.admin.fanout import run_limited
from tianzhou.console.collect.snapshot import Snapshot
from tianzhou.console.views.cluster.setting_tables import SettingTable, side_by_side
from tianzhou.console.views.cluster.state import (
    ClusterState,
    ask_brokers,
    snapshot_of,
    state_of,
)
from tianzhou.console.web.ask import Ask
from tianzhou.errors import TianzhouError

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""The namespace in which RocketMQ has the queues of ordered topics."""
TABS = ("brokers", "kv", "settings")


class NameserverRow(msgspec.Struct, frozen=True, kw_only=True):
    """One nameserver of the list."""

    address: str
    answered: bool
    problem: str
    brokers: int
    answer_ms: float | None
    lacks: tuple[str, ...]
    """Brokers that others list and this one does not."""


class SeenBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A broker address, and which nameservers list it."""

    label: str
    name: str
    broker_id: int
    address: str
    listed: tuple[bool | None, ...]
    """By nameserver; None: it did not answer."""


class Nameservers(msgspec.Struct, frozen=True, kw_only=True):
    """The nameservers of a cluster compared."""

    state: ClusterState
    tab: str
    nameservers: tuple[NameserverRow, ...]
    brokers: tuple[SeenBroker, ...]
    is_agreed: bool
    """Whether those that answered list the same brokers."""
    namespace: str
    table: SettingTable | None = None
    """KV pairs of the namespace, or settings, side by side."""
    problem: str = ""


async def nameservers(ask: Ask) -> Nameservers:
    """The nameservers compared; `?tab=kv&namespace=` shows KV pairs, `?tab=settings` settings."""
    snapshot = snapshot_of(ask)
    tab = ask.query.get("tab", TABS[0])
    namespace = ask.query.get("namespace", "").strip()[:255] or ORDER_NAMESPACE
    views = [frozenset(each.brokers) for each in snapshot.nameservers if each.answered]
    everything = frozenset[str]().union(*views)
    page = Nameservers(
        state=state_of(ask, snapshot),
        tab=tab if tab in TABS else TABS[0],
        nameservers=tuple(
            NameserverRow(
                address=each.address,
                answered=each.answered,
                problem=each.problem,
                brokers=len(each.brokers),
                answer_ms=each.answer_ms,
                lacks=tuple(sorted(everything - set(each.brokers))) if each.answered else (),
            )
            for each in snapshot.nameservers
        ),
        brokers=_brokers(snapshot, everything),
        is_agreed=len(set(views)) <= 1,
        namespace=namespace,
    )
    if page.tab == "brokers" or not snapshot.version:
        return page
    names = [each.address for each in snapshot.nameservers]
    server = ask.cluster.admin.namesrv

    async def of_one(address: str) -> Mapping[str, str] | str:
        try:
            if page.tab == "kv":
                return await server.pairs_of(address, namespace)
            return await server.settings(address)
        except TianzhouError as e:
            return str(e)

    async def read() -> dict[str, Mapping[str, str] | str]:
        return dict(zip(names, await run_limited(names, of_one), strict=True))

    answered = await ask_brokers(ask, read, "nameservers", page.tab, namespace)
    if answered.value is None:
        return msgspec.structs.replace(page, problem=answered.problem)
    tables = {name: each for name, each in answered.value.items() if not isinstance(each, str)}
    problems = {name: each for name, each in answered.value.items() if isinstance(each, str)}
    table = side_by_side(
        {name: dict(sorted(each.items())) for name, each in tables.items()}, problems
    )
    return msgspec.structs.replace(page, table=table)


def _brokers(snapshot: Snapshot, everything: frozenset[str]) -> tuple[SeenBroker, ...]:
    known = {each.address: each for each in snapshot.brokers}
    rows: list[SeenBroker] = []
    for address in sorted(everything):
        broker = known.get(address)
        rows.append(
            SeenBroker(
                label=broker.label if broker is not None else address,
                name=broker.name if broker is not None else "",
                broker_id=broker.broker_id if broker is not None else 0,
                address=address,
                listed=tuple(
                    (address in each.brokers) if each.answered else None
                    for each in snapshot.nameservers
                ),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.label, row.address)))
