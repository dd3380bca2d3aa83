"""The harmless settings of a broker and of the nameservers, write permission, KV pairs."""

import msgspec

from tianzhou.admin.changes.harmless_settings import (
    BROKER_SETTINGS,
    NAMESERVER_SETTINGS,
    HarmlessSetting,
)
from tianzhou.admin.fanout import BrokerRef
from tianzhou.console.text import Text
from tianzhou.console.views.operations.silent import not_there
from tianzhou.console.web.ask import Ask
from tianzhou.errors import TargetError, TianzhouError
from tianzhou.names import ORDER_TOPIC_NAMESPACE


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One setting that may be changed here."""

    key: str
    subject: str
    meaning: str
    kind: str
    options: tuple[str, ...]
    value: str | None
    """None: the server does not know it."""


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be changed of a master."""

    broker: str
    address: str
    problem: str
    """Why its settings are not known; empty: they are."""
    settings: tuple[SettingRow, ...]
    nameservers: tuple[str, ...]


class NameserverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One nameserver."""

    address: str
    problem: str
    settings: tuple[SettingRow, ...]


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    """One KV pair."""

    key: str
    value: str


class NameserversChange(msgspec.Struct, frozen=True, kw_only=True):
    """What can be changed of the nameservers."""

    nameservers: tuple[NameserverSettings, ...]
    namespace: str
    pairs: tuple[Pair, ...]
    pairs_problem: str


async def broker_settings(ask: Ask) -> BrokerSettings:
    """The harmless settings of a master."""
    at = await master_of(ask)
    values: dict[str, str] = {}
    problem = ""
    try:
        values = await ask.cluster.admin.brokers.settings(at)
    except TianzhouError as e:
        problem = str(e)
    return BrokerSettings(
        broker=at.name,
        address=at.address,
        problem=problem,
        settings=_rows(BROKER_SETTINGS, values),
        nameservers=tuple(ask.cluster.admin.namesrv.addresses),
    )


async def nameservers_change(ask: Ask) -> NameserversChange:
    """The harmless settings and the KV pairs of the nameservers."""
    namesrv = ask.cluster.admin.namesrv
    rows: list[NameserverSettings] = []
    for address in namesrv.addresses:
        try:
            values, problem = await namesrv.settings(address), ""
        except TianzhouError as e:
            values, problem = {}, str(e)
        settings = _rows(NAMESERVER_SETTINGS, values)
        rows.append(NameserverSettings(address=address, problem=problem, settings=settings))
    namespace = ask.query.get("namespace", "").strip()[:255] or ORDER_TOPIC_NAMESPACE
    pairs: dict[str, str] = {}
    pairs_problem = ""
    try:
        pairs = await namesrv.pairs(namespace)
    except TianzhouError as e:
        pairs_problem = str(e)
    return NameserversChange(
        nameservers=tuple(rows),
        namespace=namespace,
        pairs=tuple(Pair(key=key, value=value) for key, value in sorted(pairs.items())),
        pairs_problem=pairs_problem,
    )


async def master_of(ask: Ask) -> BrokerRef:
    """The registered master of the name in the address. Raises NotFound."""
    name = ask.path["broker"]
    try:
        brokers = await ask.cluster.admin.clusters.brokers(masters=True)
    except TargetError as e:
        raise not_there(Text("broker"), name, {}) from e
    for at in brokers:
        if at.name == name and at.is_master:
            return at
    raise not_there(Text("broker"), name, {})


def _rows(settings: tuple[HarmlessSetting, ...], values: dict[str, str]) -> tuple[SettingRow, ...]:
    return tuple(
        SettingRow(
            key=each.key,
            subject=each.subject,
            meaning=each.meaning,
            kind=each.kind,
            options=each.options or (("true", "false") if each.kind == "boolean" else ()),
            value=values.get(each.key),
        )
        for each in settings
        if not values or each.key in values
    )
