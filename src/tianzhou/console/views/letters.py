"""Dead letters: the groups that have some, and the letters of one group."""

import asyncio

import msgspec

from tianzhou.admin import Admin
from tianzhou.admin.fanout import gather_any
from tianzhou.console.messages.letters import Letter, letter_of, topic_of
from tianzhou.console.messages.searching import Searched, Wanted, search, wanted_of
from tianzhou.console.text import Text
from tianzhou.console.views.messages import QUESTION_S
from tianzhou.console.web.ask import Ask
from tianzhou.console.web.refusals import NotFound
from tianzhou.errors import TargetError, TianzhouError

_HOUR_MS = 3600_000


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The letters of one page."""

    rows: tuple[Letter, ...]


class Letters(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of a group."""

    group: str
    found: Found
    wanted: Wanted
    searched: Searched | None
    problem: Text | None
    count: int | None
    """All that brokers hold, of any time; None: not known."""
    oldest_ms: int | None
    """When the oldest was stored; None: not known, or there is none."""
    expires_ms: int | None
    """When the oldest is deleted; None: not known."""
    kept_hours: int | None
    retry_max: int | None


async def letters(ask: Ask) -> Letters:
    """The dead letters of a group, the newest first."""
    group, admin = group_in(ask), ask.cluster.admin
    wanted = wanted_of(ask)
    retry_max = await _retry_max(admin, group)
    page = Letters(
        group=group, found=Found(rows=()), wanted=wanted, searched=None, problem=None, count=None,
        oldest_ms=None, expires_ms=None, kept_hours=None, retry_max=retry_max,
    )  # fmt: skip
    try:
        queues = await admin.messages.read_queues(topic_of(group))
    except TargetError as e:
        if retry_max is None and not await _exists(admin, group):
            raise NotFound(Text("There is no group {name}.", name=group)) from e
        return msgspec.structs.replace(page, count=0)
    except TianzhouError as e:
        return msgspec.structs.replace(page, problem=Text("{why}", why=str(e)))
    count, oldest_ms = await _extent(admin, group)
    kept_hours = await _kept_hours(admin, group) if count else None
    expires_ms = None
    if oldest_ms is not None and kept_hours is not None:
        expires_ms = oldest_ms + kept_hours * _HOUR_MS
    page = msgspec.structs.replace(
        page, count=count, oldest_ms=oldest_ms, expires_ms=expires_ms, kept_hours=kept_hours
    )
    try:
        found, searched = await search(ask, queues, wanted)
    except TianzhouError as e:
        return msgspec.structs.replace(page, problem=Text("{why}", why=str(e)))
    rows = tuple(letter_of(message, at.broker.name, retry_max) for at, message in found)
    return msgspec.structs.replace(page, found=Found(rows=rows), searched=searched)


def group_in(ask: Ask) -> str:
    """The group in the address. Raises NotFound."""
    group = ask.path["group"]
    if len(group) > 255 or not ask.scope.sees(group):
        raise NotFound(Text("There is no group {name}.", name=group[:80]))
    return group


async def _exists(admin: Admin, group: str) -> bool:
    """Whether a broker has members of a group, or might have: one that did not answer."""
    brokers = await admin.clusters.brokers(masters=True)
    found = await gather_any(brokers, lambda at: admin.groups.connection(at, group))
    return bool(found.failures) or any(each is not None for each in found.responses.values())


async def _retry_max(admin: Admin, group: str) -> int | None:
    """The retries of the group; None: not known, or no broker has the group."""
    try:
        async with asyncio.timeout(QUESTION_S):
            brokers = await admin.clusters.brokers(masters=True)
            found = await gather_any(brokers, lambda at: admin.groups.config(at, group))
    except (TianzhouError, TimeoutError):
        return None
    known = [each.retry_max_times for each in found.responses.values() if each is not None]
    return max(known) if known else None


async def _extent(admin: Admin, group: str) -> tuple[int | None, int | None]:
    """How many letters brokers hold, and when the oldest was stored; None: not known."""
    oldest: int | None = None
    count = 0
    topic = topic_of(group)
    try:
        async with asyncio.timeout(QUESTION_S):
            for at in await admin.messages.read_queues(topic):
                begin = await admin.offsets.begin(at.broker, topic, at.queue_id)
                end = await admin.offsets.end(at.broker, topic, at.queue_id)
                count += max(end - begin, 0)
                if begin < end:
                    first = await admin.messages.at(at, begin)
                    oldest = min(first.store_time_ms, oldest or first.store_time_ms)
    except (TianzhouError, TimeoutError):
        return None, None
    return count, oldest


async def _kept_hours(admin: Admin, group: str) -> int | None:
    """How long the brokers keep messages: the shortest fileReservedTime; None: not known."""
    try:
        async with asyncio.timeout(QUESTION_S):
            brokers = await admin.topics.brokers(topic_of(group))
            found = await gather_any(brokers, admin.brokers.settings)
    except (TianzhouError, TimeoutError):
        return None
    hours = [each.get("fileReservedTime", "") for each in found.responses.values()]
    return min((int(each) for each in hours if each.isdigit()), default=None)
