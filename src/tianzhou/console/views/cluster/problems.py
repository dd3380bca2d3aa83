"""What is wrong in a cluster, worst first, from its snapshot; each with the page that shows it."""

from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from tianzhou.console.collect.snapshot import Broker, Group, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.views.cluster.state import BAD, INFO, WARN

DISK_WARN, DISK_BAD = 0.75, 0.85
"""RocketMQ deletes old files above 0.75 and at once above 0.85."""
LAG_WARN = 100
AGE_WARN_MS = 60_000
BEHIND_MS = 10_000
"""A slave that is longer behind does not follow well."""
NAMES_SHOWN = 3

_ORDER = {BAD: 0, WARN: 1, INFO: 2}


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an operator should know."""

    level: str
    text: Text
    path: str = ""
    """Below the cluster, such as "/groups/billing", percent-encoded."""


def problems_of(snapshot: Snapshot, *, is_stale: bool) -> tuple[Problem, ...]:
    """The problems of a cluster, worst first."""
    found = [
        *_of_the_round(snapshot, is_stale=is_stale),
        *(each for broker in snapshot.brokers for each in _of_a_broker(broker)),
        *_of_masters(snapshot),
        *_of_nameservers(snapshot),
        *_of_groups(snapshot),
    ]
    return tuple(sorted(found, key=lambda each: _ORDER[each.level]))


def is_behind(group: Group) -> bool:
    """Whether a backlog is large and does not go away by itself within a minute."""
    is_old = (
        group.oldest_age_ms is None or group.oldest_is_minimum or group.oldest_age_ms >= AGE_WARN_MS
    )
    return not group.is_internal and (group.lag or 0) > LAG_WARN and is_old


def is_abandoned(group: Group) -> bool:
    """Whether messages wait and no member consumes them."""
    return not group.is_internal and bool(group.lag) and group.members == ()


def _of_the_round(snapshot: Snapshot, *, is_stale: bool) -> Iterator[Problem]:
    if snapshot.problem:
        text = Text("Nothing could be read: {why}", why=snapshot.problem)
        yield Problem(level=BAD, text=text, path="/nameservers")
    elif is_stale:
        yield Problem(level=BAD, text=Text("The figures are older than three intervals."))
    if snapshot.interval_reason:
        text = Text("Figures come less often than configured: {why}", why=snapshot.interval_reason)
        yield Problem(level=INFO, text=text)


def _of_a_broker(broker: Broker) -> Iterator[Problem]:
    path = f"/brokers/{quote(broker.name, safe='')}"
    label, failover, replication = broker.label, broker.failover, broker.replication
    if not broker.answered:
        text = Text("{broker} does not answer: {why}", broker=label, why=broker.problem)
        yield Problem(level=BAD, text=text, path=path)
        return
    if not broker.is_registered:
        text = Text("{broker} is not registered with any nameserver.", broker=label)
        yield Problem(level=WARN, text=text, path=path)
    ratio = broker.disk_ratio
    if ratio is not None and ratio >= DISK_WARN:
        text = Text("The disk of {broker} is {percent} % full.", broker=label,
                    percent=round(ratio * 100))  # fmt: skip
        level = BAD if ratio >= DISK_BAD else WARN
        yield Problem(level=level, text=text, path=path)
    if failover is not None:
        yield from _of_failover(broker, path)
    elif replication is not None:
        for slave in replication.slaves:
            if slave.problem:
                text = Text("{slave} does not follow {broker}: {why}", slave=slave.name,
                            broker=label, why=slave.problem)  # fmt: skip
                yield Problem(level=WARN, text=text, path=path)
            elif slave.is_in_sync is False or (slave.behind_ms or 0) >= BEHIND_MS:
                text = Text("{slave} is behind its master {broker}.", slave=slave.name,
                            broker=label)  # fmt: skip
                yield Problem(level=WARN, text=text, path=path)
        if not broker.is_master and replication.state not in ("", "following"):
            text = Text("{slave} does not follow its master: {why}", slave=label,
                        why=replication.state)  # fmt: skip
            yield Problem(level=WARN, text=text, path=path)


def _of_failover(broker: Broker, path: str) -> Iterator[Problem]:
    failover = broker.failover
    if failover is None:
        return
    label = broker.label
    if failover.refusal and failover.mode == "master":
        text = Text("{broker} refuses sends: {why}", broker=label, why=failover.refusal)
        yield Problem(level=BAD, text=text, path=path)
    if failover.mode == "stopped":
        text = Text("{broker} takes no part in elections until an operator acts.", broker=label)
        yield Problem(level=BAD, text=text, path=path)
    if failover.authority_problem:
        text = Text("{broker} cannot reach etcd: {why}", broker=label,
                    why=failover.authority_problem)  # fmt: skip
        yield Problem(level=WARN, text=text, path=path)
    if failover.is_paused and failover.mode == "master":
        text = Text("Elections of {broker} are paused.", broker=broker.name)
        yield Problem(level=WARN, text=text, path=path)
    if failover.mode == "master":
        for alarm in failover.alarms:
            text = Text("{broker}: {why}", broker=broker.name, why=alarm)
            yield Problem(level=WARN, text=text, path=path)


def _of_masters(snapshot: Snapshot) -> Iterator[Problem]:
    silent = {each.name for each in snapshot.brokers if each.is_master and not each.answered}
    for name in snapshot.totals.masters_missing:
        if name not in silent:
            text = Text("{broker} has no master: nothing can be sent to it.", broker=name)
            yield Problem(level=BAD, text=text, path=f"/brokers/{quote(name, safe='')}")


def _of_nameservers(snapshot: Snapshot) -> Iterator[Problem]:
    for each in snapshot.nameservers:
        if not each.answered and not snapshot.problem:
            text = Text("The nameserver {address} does not answer.", address=each.address)
            yield Problem(level=WARN, text=text, path="/nameservers")
    views = {each.brokers for each in snapshot.nameservers if each.answered}
    if len(views) > 1:
        text = Text("The nameservers list different brokers.")
        yield Problem(level=WARN, text=text, path="/nameservers")


def _of_groups(snapshot: Snapshot) -> Iterator[Problem]:
    people = [each for each in snapshot.groups if not each.is_internal]
    abandoned = [each for each in people if is_abandoned(each)]
    behind = [each for each in people if is_behind(each) and not is_abandoned(each)]
    for level, only, chosen, text_of in (
        (BAD, "conflict", [each for each in people if each.contradictions], _contradictory),
        (WARN, "abandoned", abandoned, _abandoned),
        (WARN, "behind", behind, _behind),
        (WARN, "duplicate", [each for each in people if each.duplicate_ids], _duplicate_ids),
        (WARN, "letters", [each for each in people if each.dead_letters_today], _dead_letters),
    ):
        if not chosen:
            continue
        worst = sorted(chosen, key=lambda each: -(each.lag or 0))
        names = ", ".join(each.name for each in worst[:NAMES_SHOWN])
        if len(worst) > NAMES_SHOWN:
            names += " ..."
        path = f"/groups?only={only}"
        if len(worst) == 1:
            path = f"/groups/{quote(worst[0].name, safe='')}"
        yield Problem(level=level, text=text_of(len(worst), names), path=path)


def _contradictory(count: int, names: str) -> Text:
    return Text(
        "Members of {names} subscribe differently: messages get lost."
        "|Members of {n} groups subscribe differently and lose messages: {names}",
        n=count, names=names,
    )  # fmt: skip


def _abandoned(count: int, names: str) -> Text:
    return Text(
        "{names} has messages to consume and no member."
        "|{n} groups have messages to consume and no member: {names}",
        n=count, names=names,
    )  # fmt: skip


def _behind(count: int, names: str) -> Text:
    return Text("{names} is behind.|{n} groups are behind: {names}", n=count, names=names)


def _duplicate_ids(count: int, names: str) -> Text:
    return Text(
        "Several processes of {names} use the same client id: they get the same queues."
        "|Several processes use the same client id in {n} groups: {names}",
        n=count, names=names,
    )  # fmt: skip


def _dead_letters(count: int, names: str) -> Text:
    return Text(
        "{names} has new dead letters today.|{n} groups have new dead letters today: {names}",
        n=count, names=names,
    )  # fmt: skip
