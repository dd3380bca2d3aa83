"""Changes of settings of brokers and nameservers (harmless ones), write permission, KV pairs."""

import re

import msgspec

from tianzhou.admin.changes.harmless_settings import (
    BROKER_SETTINGS,
    NAMESERVER_SETTINGS,
    check_settings,
)
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, gather_any
from tianzhou.console.changes.cluster import (
    BrokerResult,
    Nothing,
    alone,
    answers,
    as_invalid,
    below_root,
    check_unchanged,
    done_with,
    silent_warnings,
)
from tianzhou.console.text import Text
from tianzhou.console.views.operations.settings import master_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import Invalid
from tianzhou.console.web.route import Done, Plan, PlanRow, Prepared
from tianzhou.errors import TianzhouError
from tianzhou.names import PERM_WRITE

_KV_NAME = re.compile(r"[\w%|.:-]{1,255}", re.ASCII)
_KV_VALUE_MAX = 4096


class SetSetting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting with its new value."""

    key: str
    value: str
    is_everywhere: bool = False
    """On all masters, not only on this one."""


class SetNameserver(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of all nameservers."""

    key: str
    value: str


class PutPair(msgspec.Struct, frozen=True, kw_only=True):
    """A KV pair."""

    namespace: str
    key: str
    value: str


class RemovePair(msgspec.Struct, frozen=True, kw_only=True):
    """The KV pair to remove."""

    namespace: str
    key: str


# -- brokers ---------------------------------------------------------------------------------------


async def set_broker(ask: Ask, given: SetSetting) -> Prepared:
    """Change one harmless setting of a broker."""
    admin, at = ask.cluster.admin, await master_of(ask)
    with as_invalid("value"):
        setting = check_settings({given.key: given.value}, BROKER_SETTINGS)[given.key]
    brokers = [at]
    if given.is_everywhere:
        brokers = choose(await admin.clusters.info(), masters=True)
    read = await gather_any(brokers, admin.brokers.settings)
    before = {each: table.get(given.key) for each, table in answers(read).items()}
    changed = [each for each in sorted(before) if before[each] != given.value]
    warnings = silent_warnings(read.failures)
    if setting.loses and changed:
        warnings.append(Text("With a lower value older messages are deleted, for good."))
    if given.key == "brokerPermission" and given.value != "6":
        warnings.append(Text("Clients cannot send to or read from these brokers any more."))
    plan = Plan(
        title=Text("Change {key} on {broker}", key=given.key, broker=at.name),
        rows=tuple(
            PlanRow(
                subject=each.label,
                what=Text("{key}", key=given.key),
                before=before[each],
                after=given.value,
            )
            for each in changed
        ),
        warnings=tuple(warnings),
        is_dangerous=bool(setting.loses),
        confirm=at.name if setting.loses and changed else "",
        button=Text("Change setting"),
    )

    async def change(broker: BrokerRef) -> BrokerResult:
        try:
            remark = await admin.brokers.change_settings(broker, {given.key: given.value})
            now = (await admin.brokers.settings(broker)).get(given.key)
        except TianzhouError as e:
            return BrokerResult(where=broker.label, is_ok=False, detail=str(e))
        if now != given.value:
            detail = f"the broker accepted it and still has {now}; {remark or 'see its log'}"
            return BrokerResult(where=broker.label, is_ok=False, detail=detail)
        return BrokerResult(where=broker.label, is_ok=True, detail=remark or "")

    async def execute() -> Done:
        async with alone(ask, f"setting {given.key}"):
            now = await gather_any(brokers, admin.brokers.settings)
            current = {each: table.get(given.key) for each, table in now.responses.items()}
            check_unchanged({each: before[each] for each in current if each in before}, current)
            results = [await change(each) for each in changed]
            _raise_if_all_failed(results)
            return done_with(
                plan.title,
                f"{at.name} {given.key}",
                results,
                location=_at(ask, "/c/{}/brokers/{}/change", at.name),
                before={each.label: before[each] for each in changed},
                after={each.where: given.value for each in results if each.is_ok},
                notice=Text("{key} was changed.", key=given.key),
            )

    return Prepared(plan, execute)


async def wipe_write(ask: Ask, given: Nothing) -> Prepared:
    """Take the write permission of a broker away: producers send to the others."""
    return await _permission(ask, is_given=False)


async def give_write(ask: Ask, given: Nothing) -> Prepared:
    """Give the write permission of a broker back."""
    return await _permission(ask, is_given=True)


async def _permission(ask: Ask, *, is_given: bool) -> Prepared:
    admin, at = ask.cluster.admin, await master_of(ask)
    others = [
        each for each in choose(await admin.clusters.info(), masters=True) if each.name != at.name
    ]
    configs = await admin.topics.all_configs(at)
    count = sum(bool(each.perm & PERM_WRITE) for each in configs.values())
    warnings: list[Text] = []
    if not is_given:
        warnings.append(
            Text("Producers learn of it within 30 seconds and then send to other brokers.")
            if others
            else Text("There is no other master: producers can send nothing any more.")
        )
        warnings.append(
            Text("It holds until the broker registers changed topics, or the nameserver restarts.")
        )
    values = ("read and write", "read only")
    plan = Plan(
        title=Text("Give {broker} its write permission back", broker=at.name)
        if is_given
        else Text("Wipe the write permission of {broker}", broker=at.name),
        rows=tuple(
            PlanRow(
                subject=address,
                what=Text("{n} topic of {broker}|{n} topics of {broker}", n=count, broker=at.name),
                before=values[is_given],
                after=values[not is_given],
            )
            for address in admin.namesrv.addresses
        ),
        warnings=tuple(warnings),
        is_dangerous=not is_given,
        confirm="" if is_given or others else at.name,
        button=Text("Give it back") if is_given else Text("Wipe"),
    )

    async def change(address: str) -> BrokerResult:
        try:
            if is_given:
                changed = await admin.namesrv.add_write_permission(address, at.name)
            else:
                changed = await admin.namesrv.wipe_write_permission(address, at.name)
        except TianzhouError as e:
            return BrokerResult(where=address, is_ok=False, detail=str(e))
        return BrokerResult(where=address, is_ok=True, detail=f"topics: {changed}")

    async def execute() -> Done:
        async with alone(ask, f"permission {at.name}"):
            results = [await change(address) for address in admin.namesrv.addresses]
            _raise_if_all_failed(results)
            return done_with(
                plan.title,
                at.name,
                results,
                location=_at(ask, "/c/{}/brokers/{}/change", at.name),
                before=values[is_given],
                after={each.where: each.detail for each in results if each.is_ok},
                notice=Text("{broker} has its write permission back.", broker=at.name)
                if is_given
                else Text("{broker} has no write permission any more.", broker=at.name),
            )

    return Prepared(plan, execute)


# -- nameservers -----------------------------------------------------------------------------------


async def set_nameserver(ask: Ask, given: SetNameserver) -> Prepared:
    """Change one harmless setting of all nameservers."""
    namesrv = ask.cluster.admin.namesrv
    with as_invalid("value"):
        check_settings({given.key: given.value}, NAMESERVER_SETTINGS)
    before: dict[str, str | None] = {}
    warnings: list[Text] = []
    for address in namesrv.addresses:
        try:
            before[address] = (await namesrv.settings(address)).get(given.key)
        except TianzhouError as e:
            warnings.append(
                Text(
                    "{broker} does not answer and will not be changed: {why}",
                    broker=address,
                    why=str(e),
                )
            )
    changed = [address for address in before if before[address] != given.value]
    plan = Plan(
        title=Text("Change {key} on the nameservers", key=given.key),
        rows=tuple(
            PlanRow(
                subject=address,
                what=Text("{key}", key=given.key),
                before=before[address],
                after=given.value,
            )
            for address in changed
        ),
        warnings=tuple(warnings),
        button=Text("Change setting"),
    )

    async def execute() -> Done:
        results: list[BrokerResult] = []
        async with alone(ask, f"nameserver setting {given.key}"):
            for address in changed:
                try:
                    await namesrv.change_settings(address, {given.key: given.value})
                    results.append(BrokerResult(where=address, is_ok=True))
                except TianzhouError as e:
                    results.append(BrokerResult(where=address, is_ok=False, detail=str(e)))
        _raise_if_all_failed(results)
        return done_with(
            plan.title,
            given.key,
            results,
            location=_at(ask, "/c/{}/nameservers/change"),
            before=before,
            after={each.where: given.value for each in results if each.is_ok},
            notice=Text("{key} was changed.", key=given.key),
        )

    return Prepared(plan, execute)


async def put_pair(ask: Ask, given: PutPair) -> Prepared:
    """Write a KV pair to all nameservers."""
    if len(given.value) > _KV_VALUE_MAX or "\n" in given.value:
        raise Invalid(
            Text("A value is one line of at most {n} characters.", n=_KV_VALUE_MAX), "value"
        )
    return await _pair(ask, given.namespace, given.key, given.value)


async def remove_pair(ask: Ask, given: RemovePair) -> Prepared:
    """Remove a KV pair from all nameservers."""
    return await _pair(ask, given.namespace, given.key, None)


async def _pair(ask: Ask, namespace: str, key: str, value: str | None) -> Prepared:
    namesrv = ask.cluster.admin.namesrv
    for field, text in (("namespace", namespace), ("key", key)):
        if _KV_NAME.fullmatch(text) is None:
            raise Invalid(Text("A name has letters, digits and % | . : _ - only."), field)
    before = await namesrv.value(namespace, key)
    rows = [PlanRow(subject=namespace, what=Text("{key}", key=key), before=before, after=value)]
    plan = Plan(
        title=Text("Remove the KV pair {key}", key=key)
        if value is None
        else Text("Write the KV pair {key}", key=key),
        rows=tuple(rows) if before != value else (),
        is_dangerous=value is None,
        button=Text("Remove") if value is None else Text("Write"),
    )

    async def execute() -> Done:
        async with alone(ask, f"kv {namespace} {key}"):
            check_unchanged(before, await namesrv.value(namespace, key))
            if value is None:
                await namesrv.remove(namespace, key)
            else:
                await namesrv.put(namespace, key, value)
            return Done(
                subject=f"{namespace} {key}",
                notice=Text("{key} was changed.", key=key),
                location=below_root(
                    ask,
                    ask.url("/c/{}/nameservers/change", ask.cluster.name, namespace=namespace),
                ),
                before=before,
                after=value,
            )

    return Prepared(plan, execute)


def _raise_if_all_failed(results: list[BrokerResult]) -> None:
    if results and not any(each.is_ok for each in results):
        raise TianzhouError("; ".join(f"{each.where}: {each.detail}" for each in results))


def _at(ask: Ask, path: str, *names: str) -> str:
    return below_root(ask, ask.url(path, ask.cluster.name, *names))
