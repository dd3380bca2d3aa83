"""Planning changes of consumer groups: where a group is, and what its deletion would affect."""

from collections.abc import Iterable
from dataclasses import dataclass

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.clusters import choose
from tianzhou.admin.fanout import BrokerRef, Gathered, gather_any
from tianzhou.client.sending.send_request import check_group
from tianzhou.errors import MessageRefused, TargetError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX, is_internal_group
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig

RETRIES_MAX = 10_000


def check_new_group(name: str) -> None:
    """Raises TargetError for a name that a new group cannot have."""
    try:
        check_group(name)
    except MessageRefused as e:
        raise TargetError(str(e)) from e
    check_own_group(name)


def check_own_group(name: str) -> None:
    """Raises TargetError for groups of RocketMQ itself, which no one may change or delete."""
    if is_internal_group(name):
        raise TargetError(f"group {name} belongs to RocketMQ itself; it cannot be changed here")


async def group_on_masters(admin: Admin, group: str) -> Gathered[SubscriptionGroupConfig | None]:
    """The settings of a group on each master of the cluster; None: the broker does not have it."""
    brokers = choose(await admin.clusters.info(), masters=True)
    return await gather_any(brokers, lambda at: admin.groups.config(at, group))


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group has on some brokers."""

    members: tuple[str, ...] | None
    """Client ids on line; None: unknown."""
    lag_by_topic: tuple[tuple[str, int], ...]
    """Its backlog by topic, without the retry and dead-letter topic."""
    retry_count: int
    """Messages that wait for a retry."""
    dead_letter_count: int | None
    """None: unknown."""
    warnings: tuple[str, ...] = ()


async def group_state(admin: Admin, group: str, brokers: Iterable[BrokerRef]) -> GroupState:
    """Members, backlog and dead letters of a group on these brokers."""
    on = list(brokers)
    progress = await gather_any(on, lambda at: admin.groups.progress_on(at, group))
    views = await gather_any(on, lambda at: admin.groups.connection(at, group))
    letters = await gather_any(on, lambda at: _dead_letters(admin, at, group))
    lags: dict[str, int] = {}
    for stats in progress.responses.values():
        for queue, each in stats.offsets.items():
            topic = queue.topic or ""
            lags[topic] = lags.get(topic, 0) + max(each.broker_offset - each.consumer_offset, 0)
    retry_count = sum(lag for topic, lag in lags.items() if topic.startswith(RETRY_TOPIC_PREFIX))
    members = {
        connection.client_id or ""
        for view in views.responses.values()
        if view is not None
        for connection in view.connections
    }
    own = (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)
    return GroupState(
        members=tuple(sorted(members)) if members or not views.failures else None,
        lag_by_topic=tuple(
            (topic, lag) for topic, lag in sorted(lags.items()) if not topic.startswith(own)
        ),
        retry_count=retry_count,
        dead_letter_count=None if letters.failures else sum(letters.responses.values()),
        warnings=tuple(dict.fromkeys((*progress.warnings, *views.warnings))),
    )


async def _dead_letters(admin: Admin, broker: BrokerRef, group: str) -> int:
    topic = DLQ_TOPIC_PREFIX + group
    if await admin.topics.config(broker, topic) is None:
        return 0
    stats = await admin.topics.stats_on(broker, topic)
    return sum(each.max_offset - each.min_offset for each in stats.offsets.values())
