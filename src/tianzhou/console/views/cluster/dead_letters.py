"""The groups of a cluster that have dead letters."""

from collections.abc import Iterable

import msgspec

from tianzhou.console.collect.snapshot import Group, Topic
from tianzhou.console.messages.letters import topic_of
from tianzhou.console.views.cluster.state import ClusterState, snapshot_of, state_of
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.listing import Listing, listing


class LetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group with dead letters."""

    group: str
    count: int | None
    """Letters that brokers hold."""
    today: int | None
    total: int | None
    """Letters ever written."""
    last_ms: int | None
    """When the newest was stored."""
    is_online: bool | None
    """Whether the group has members; None: not known."""
    missing: tuple[str, ...]
    """Brokers that did not answer: the figures are lower bounds."""


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The groups that have dead letters."""

    state: ClusterState
    groups: Listing[LetterGroup]
    count: int | None
    today: int | None
    last_ms: int | None


async def dead_letters(ask: Ask) -> DeadLetters:
    """The groups that have dead letters, the newest letters first."""
    snapshot = snapshot_of(ask)
    topics = {each.name: each for each in snapshot.topics}
    rows = [
        _row(group, topics.get(topic_of(group.name)))
        for group in snapshot.groups
        if group.dead_letters != 0 and ask.scope.sees(group.name)
    ]
    # A group whose figure is unknown is shown only if it has a dead-letter topic.
    shown = [each for each in rows if each.count is not None or topic_of(each.group) in topics]
    return DeadLetters(
        state=state_of(ask, snapshot),
        groups=listing(
            ask,
            shown,
            find=lambda row: (row.group,),
            sort={
                "group": lambda row: row.group,
                "count": lambda row: row.count,
                "today": lambda row: row.today,
                "total": lambda row: row.total,
                "last": lambda row: row.last_ms,
            },
            first="-last",
        ),
        count=_sum(each.count for each in shown),
        today=_sum(each.today for each in shown),
        last_ms=max((each.last_ms for each in shown if each.last_ms), default=None),
    )


def _row(group: Group, topic: Topic | None) -> LetterGroup:
    return LetterGroup(
        group=group.name,
        count=group.dead_letters,
        today=group.dead_letters_today,
        total=group.dead_letters_produced,
        last_ms=topic.last_message_ms if topic is not None else None,
        is_online=None if group.members is None else bool(group.members),
        missing=topic.missing if topic is not None else group.missing,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum; None if a part of it is not known."""
    known = list(values)
    return sum(each for each in known if each is not None) if None not in known else None
