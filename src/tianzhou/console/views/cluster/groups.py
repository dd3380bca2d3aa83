"""The consumer groups of a cluster."""

from collections.abc import Callable, Mapping

import msgspec

from tianzhou.console.collect.history import GROUP
from tianzhou.console.collect.snapshot import Group, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.views.cluster import charts
from tianzhou.console.views.cluster.charts import Spark
from tianzhou.console.views.cluster.problems import is_abandoned, is_behind
from tianzhou.console.views.cluster.state import (
    BAD,
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
from tianzhou.console.web.refusals import NotFound
from tianzhou.names import RETRY_TOPIC_PREFIX

TOPICS_SHOWN = 3

ONLY: Mapping[str, Callable[[Group], bool]] = {
    "behind": is_behind,
    "abandoned": is_abandoned,
    "conflict": lambda group: bool(group.contradictions),
    "duplicate": lambda group: bool(group.duplicate_ids),
    "letters": lambda group: bool(group.dead_letters_today),
    "paused": lambda group: group.is_enabled is False,
    "offline": lambda group: group.members == (),
}
"""Values of `?only=`."""


class GroupRow(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer group."""

    name: str
    is_internal: bool
    state: Status
    members: int | None
    members_problem: str
    model: str
    consume_type: str
    topics: tuple[str, ...]
    """The first ones."""
    topic_count: int
    lag: int | None
    is_behind: bool
    consumed_per_s: float | None
    consumed_today: int | None
    oldest_age_ms: int | None
    oldest_is_minimum: bool
    dead_letters: int | None
    dead_letters_today: int | None
    settings_differ: bool
    missing: tuple[str, ...]
    """Brokers whose part is not in the sums."""


class Groups(msgspec.Struct, frozen=True, kw_only=True):
    """Consumer groups; with `?kinds=all` also RocketMQ's own, `?only=` chooses by state."""

    state: ClusterState
    groups: Listing[GroupRow]
    is_all: bool
    only: str
    hidden: int
    """RocketMQ's own groups that are not shown."""
    counts: dict[str, int]
    """By value of `?only=`."""
    sparks: dict[str, Spark]
    """Lag of the last hour."""


async def groups(ask: Ask) -> Groups:
    """The consumer groups of a cluster."""
    snapshot = snapshot_of(ask)
    is_all = ask.query.get("kinds") == "all"
    only = ask.query.get("only", "")
    visible = [each for each in snapshot.groups if ask.scope.sees(each.name)]
    shown = visible if is_all else [each for each in visible if not each.is_internal]
    counts = {name: sum(map(test, shown)) for name, test in ONLY.items()}
    chosen = [each for each in shown if only not in ONLY or ONLY[only](each)]
    topics = {each.name: topics_of(each) for each in chosen} if ask.query.get("find") else {}
    found = listing(
        ask,
        [group_row(each) for each in chosen],
        find=lambda row: (row.name, *topics[row.name]),
        sort={
            "name": lambda row: row.name,
            "members": lambda row: row.members,
            "lag": lambda row: row.lag,
            "rate": lambda row: row.consumed_per_s,
            "today": lambda row: row.consumed_today,
            "age": lambda row: row.oldest_age_ms,
            "letters": lambda row: row.dead_letters,
        },
        first="-lag",
    )
    return Groups(
        state=state_of(ask, snapshot),
        groups=found,
        is_all=is_all,
        only=only if only in ONLY else "",
        hidden=len(visible) - len(shown),
        counts=counts,
        sparks=await charts.sparks(ask, GROUP, [row.name for row in found.rows], charts.lag),
    )


def group_row(group: Group) -> GroupRow:
    """The line of a group in tables."""
    topics = topics_of(group)
    return GroupRow(
        name=group.name,
        is_internal=group.is_internal,
        state=state_of_group(group),
        members=None if group.members is None else len(group.members),
        members_problem=group.members_problem,
        model=group.model,
        consume_type=group.consume_type,
        topics=topics[:TOPICS_SHOWN],
        topic_count=len(topics),
        lag=group.lag,
        is_behind=is_behind(group),
        consumed_per_s=group.consumed_per_s,
        consumed_today=group.consumed_today,
        oldest_age_ms=group.oldest_age_ms,
        oldest_is_minimum=group.oldest_is_minimum,
        dead_letters=group.dead_letters,
        dead_letters_today=group.dead_letters_today,
        settings_differ=group.settings_differ,
        missing=group.missing,
    )


def topics_of(group: Group) -> tuple[str, ...]:
    """The topics that a group consumes or has consumed, without its retry topic."""
    names = {each.topic for each in group.topics}
    names |= {each.topic for each in group.contradictions}
    names |= {topic for topic, _ in group.subscriptions}
    return tuple(sorted(each for each in names if not each.startswith(RETRY_TOPIC_PREFIX)))


def state_of_group(group: Group) -> Status:
    """Whether a group consumes, and if not, why."""
    if group.contradictions:
        return Status(level=BAD, text=Text("contradictory"),
                      reason="; ".join(each.topic for each in group.contradictions))  # fmt: skip
    if group.duplicate_ids:
        return Status(level=WARN, text=Text("duplicate ids"),
                      reason=", ".join(group.duplicate_ids))  # fmt: skip
    if group.is_enabled is False:
        return Status(level=OFF, text=Text("paused"))
    if group.members is None:
        return Status(level=UNKNOWN, text=Text("not known"), reason=group.members_problem)
    if not group.members:
        level = WARN if group.lag else OFF
        return Status(level=level, text=Text("no members"))
    if is_behind(group):
        return Status(level=WARN, text=Text("behind"))
    return Status(level=OK, text=Text("on line"))


def group_of(ask: Ask, snapshot: Snapshot, name: str) -> Group:
    """A group by name. Raises NotFound."""
    found = snapshot.group(name) if ask.scope.sees(name) else None
    if found is None:
        raise NotFound(Text("There is no consumer group {name} in this cluster.", name=name))
    return found
