"""What every page of a cluster has: its snapshot, how old it is, which brokers did not answer."""

from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import TypeVar

import msgspec

from tianzhou.admin.fanout import BrokerRef
from tianzhou.console.collect.questions import Answer
from tianzhou.console.collect.snapshot import Broker, Snapshot
from tianzhou.console.text import Text
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import TooMany

WARNINGS_SHOWN = 20

OK, WARN, BAD, INFO, OFF, UNKNOWN = "ok", "warn", "bad", "info", "off", "unknown"
"""Levels: each has a colour and a shape of its own."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a thing, as a badge."""

    level: str
    text: Text
    reason: str = ""
    """More, as a broker says it."""


class Silent(msgspec.Struct, frozen=True, kw_only=True):
    """A broker that did not answer in the last round."""

    name: str
    reason: str
    since_ms: int | None


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """How complete and how fresh the figures of a page are."""

    as_of_ms: int | None
    """When the last round began; None: the first one has not ended."""
    is_stale: bool
    """Older than three intervals."""
    interval_ms: int
    interval_reason: str
    """Why the interval is longer than configured."""
    round_ms: int
    request_count: int
    answered: int
    known: int
    unanswered: tuple[Silent, ...]
    problem: str
    """Why nothing is known about this round."""
    warnings: tuple[str, ...]
    """What else could not be read; the first ones."""
    warning_count: int


def snapshot_of(ask: Ask) -> Snapshot:
    """The newest snapshot; an empty one of version 0 before the first round has ended."""
    cluster = ask.cluster
    if cluster.snapshot is None:
        return Snapshot(cluster=cluster.name, version=0, as_of_ms=0)
    return cluster.snapshot


def is_stale(ask: Ask) -> bool:
    """Whether there is a snapshot, and it is too old to be shown as fresh."""
    return ask.cluster.snapshot is not None and ask.cluster.is_stale


def state_of(ask: Ask, snapshot: Snapshot) -> ClusterState:
    """The head of a page."""
    return ClusterState(
        as_of_ms=snapshot.as_of_ms if snapshot.version else None,
        is_stale=is_stale(ask),
        interval_ms=snapshot.interval_ms,
        interval_reason=snapshot.interval_reason,
        round_ms=snapshot.round_ms,
        request_count=snapshot.request_count,
        answered=snapshot.totals.brokers_answered,
        known=snapshot.totals.brokers_known,
        unanswered=tuple(silent_of(each) for each in snapshot.unanswered),
        problem=snapshot.problem,
        warnings=snapshot.warnings[:WARNINGS_SHOWN],
        warning_count=len(snapshot.warnings),
    )


def silent_of(broker: Broker) -> Silent:
    """A broker that did not answer."""
    return Silent(name=broker.label, reason=broker.problem or "?", since_ms=broker.problem_since_ms)


def version(ask: Ask) -> object:
    """Equal as long as a page that is made of the snapshot alone stays the same."""
    return snapshot_of(ask).version, is_stale(ask)


DETAIL_MS = 10_000


def detail_version(ask: Ask) -> object:
    """The same for a page that also asks brokers: for ten seconds all viewers see one answer."""
    return version(ask), ask.now_ms // DETAIL_MS


# -- questions of detail pages ---------------------------------------------------------------------

T = TypeVar("T")


async def ask_brokers(ask: Ask, action: Callable[[], Awaitable[T]], *key: Hashable) -> Answer[T]:
    """What brokers answer to a detail page within two seconds. Raises TooMany."""
    person = ask.person.login
    found = await ask.console.answers.ask((ask.cluster.name, *key), person, action)
    if found.is_too_many:
        raise TooMany(Text("{why}", why=found.problem), retry_s=2)
    return found


def masters_of(snapshot: Snapshot, names: Iterable[str] | None = None) -> list[BrokerRef]:
    """The masters that answered in the last round; of these names only."""
    chosen = None if names is None else set(names)
    return [
        ref_of(each)
        for each in snapshot.brokers
        if each.is_master and each.answered and (chosen is None or each.name in chosen)
    ]


def ref_of(broker: Broker) -> BrokerRef:
    """The address of a broker for requests."""
    return BrokerRef(broker.name, broker.broker_id, broker.address, broker.cluster)
