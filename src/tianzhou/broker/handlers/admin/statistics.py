"""Statistics: progress and backlog of groups, message times, and rates."""

from collections.abc import Iterable
from datetime import datetime

from tianzhou.broker import validation
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import find_topic
from tianzhou.broker.handlers.responses import success_with
from tianzhou.broker.pop.inflight import Key
from tianzhou.broker.statistics.history import SEPARATOR
from tianzhou.broker.statistics.series import DAY, HOUR, MINUTE, WindowStats
from tianzhou.broker.tables.offsets import NOT_FOUND, OffsetTable
from tianzhou.errors import RequestError
from tianzhou.limits import SHOWN_QUEUES_MAX
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeOffsets,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueueTimeSpan,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.admin import (
    GetConsumeStatsInBrokerRequest,
    ViewBrokerStatsDataRequest,
)
from tianzhou.protocol.headers.groups import GetConsumeStatsRequest
from tianzhou.protocol.headers.topics import QueryConsumeTimeSpanRequest
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced

_NO_TIME = -1


# -- rates -----------------------------------------------------------------------------------------


def view_stats(deps: Deps, _: Connection, request: Command) -> Command:
    """VIEW_BROKER_STATS_DATA: one statistic over the last minute, hour and day."""
    header = decode(ViewBrokerStatsDataRequest, request.fields)
    windows = deps.history.look_up(header.stats_name, header.stats_key, deps.clock())
    if windows is None:
        name, key = validation.shorten(header.stats_name), validation.shorten(header.stats_key)
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
    data = BrokerStatsData(
        minute=_item(windows[MINUTE]), hour=_item(windows[HOUR]), day=_item(windows[DAY])
    )
    return Command(code=ResponseCode.SUCCESS, body=encode_body(data))


def _item(figures: WindowStats) -> BrokerStatsItem:
    return BrokerStatsItem(sum=figures.sum, tps=figures.per_second, average=figures.per_call)


# -- progress of groups ----------------------------------------------------------------------------


@sliced
def get_consume_stats(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_CONSUME_STATS: the offsets of a group in every queue of its topics."""
    header = decode(GetConsumeStatsRequest, request.fields)
    group = header.consumer_group
    # As in RocketMQ a topic list is used as it is; otherwise topics the group has left are skipped.
    topics = list(dict.fromkeys(header.listed_topics))
    if not topics:
        named = [header.topic] if header.topic else (yield from deps.offsets.topics_of(group))
        topics = _still_read(deps, group, sorted(named))
    stats = yield from _consume_stats(deps, group, topics, SHOWN_QUEUES_MAX)
    return (yield from success_with(stats))


@sliced
def get_all_consume_stats(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_BROKER_CONSUME_STATS: the offsets of every group in each of its topics."""
    header = decode(GetConsumeStatsInBrokerRequest, request.fields)
    stats: list[dict[str, list[ConsumeStats]]] = []
    total_diff = in_flight = 0
    left = SHOWN_QUEUES_MAX
    topics_by_group = yield from _topics_by_group(deps.offsets)
    for group in sorted(deps.groups.groups):
        of_group: list[ConsumeStats] = []
        for name in sorted(topics_by_group.get(group, ())):
            yield
            topic = deps.topics.get(name)
            if topic is None or (header.is_order and not topic.order):
                continue
            read = _still_read(deps, group, [name])
            stats_of_topic = yield from _consume_stats(deps, group, read, left)
            left -= len(stats_of_topic.offsets)
            if stats_of_topic.offsets:
                of_group.append(stats_of_topic)
            for each in stats_of_topic.offsets.values():
                total_diff += each.broker_offset - each.consumer_offset
                in_flight += (each.pull_offset or 0) - each.consumer_offset
        stats.append({group: of_group})
    body = ConsumeStatsList(
        stats=stats,
        broker_addr=deps.address,
        total_diff=total_diff,
        total_inflight_diff=in_flight,
    )
    return (yield from success_with(body))


def _topics_by_group(offsets: OffsetTable) -> Steps[dict[str, list[str]]]:
    topics: dict[str, list[str]] = {}
    for topic, group, _ in offsets.progress():
        topics.setdefault(group, []).append(topic)
        yield
    return topics


def _still_read(deps: Deps, group: str, topics: Iterable[str]) -> list[str]:
    """The topics that the group, if it is online, still subscribes to."""
    online = deps.consumers.get(group)
    return [topic for topic in topics if online is None or not online.has_left(topic)]


def _consume_stats(
    deps: Deps, group: str, topics: Iterable[str], queues_max: int
) -> Steps[ConsumeStats]:
    broker_name, now_ms = deps.settings.config.broker_name, deps.clock()
    deps.stats.collect()  # the kernel's pulls
    table: dict[MessageQueue, ConsumeOffsets] = {}
    per_second = 0.0
    for name in topics:
        topic = deps.topics.get(name)
        if topic is None:
            continue
        if len(table) + topic.read_queue_count > queues_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the topics of group {validation.shorten(group)} and those before have more than "
                f"{SHOWN_QUEUES_MAX} queues, which one answer shows: ask for single topics",
            )
        for queue_id in range(topic.read_queue_count):
            yield
            queue = MessageQueue(topic=name, broker_name=broker_name, queue_id=queue_id)
            table[queue] = _queue_stats(deps, group, name, queue_id)
        per_second += deps.history.per_second("GROUP_GET_NUMS", name + SEPARATOR + group, now_ms)
    return ConsumeStats(offsets=table, consume_tps=per_second)


def _queue_stats(deps: Deps, group: str, topic: str, queue_id: int) -> ConsumeOffsets:
    """The offsets of a group in a queue: consumerOffset (committed), pullOffset (delivered)."""
    committed = deps.offsets.find(group, topic, queue_id)
    consumed = 0 if committed == NOT_FOUND else committed
    last_ms = deps.store.store_time(topic, queue_id, consumed - 1) if consumed > 0 else None
    return ConsumeOffsets(
        broker_offset=deps.store.max_offset(topic, queue_id),
        consumer_offset=consumed,
        pull_offset=max(
            consumed,
            deps.offsets.pulled(group, topic, queue_id),
            deps.pops.table.popped_to(Key(group, topic, queue_id)),
        ),
        last_timestamp=last_ms or 0,
    )


# -- times ----------------------------------------------------------------------------------------


@sliced
def query_time_span(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """QUERY_CONSUME_TIME_SPAN: store times of the first, last and next consumed message."""
    header = decode(QueryConsumeTimeSpanRequest, request.fields)
    topic = find_topic(deps, header.topic)
    spans: list[QueueTimeSpan] = []
    for queue_id in range(topic.write_queue_count):
        spans.append(_time_span(deps, header.group, header.topic, queue_id))
        yield
    return (yield from success_with(QueryConsumeTimeSpanBody(spans=spans)))


def _time_span(deps: Deps, group: str, topic: str, queue_id: int) -> QueueTimeSpan:
    store = deps.store
    high = store.max_offset(topic, queue_id)
    first_ms = store.earliest_time(topic, queue_id)
    last_ms = store.store_time(topic, queue_id, high - 1)
    committed = deps.offsets.find(group, topic, queue_id)
    consumed_ms = store.store_time(topic, queue_id, committed - 1) if committed > 0 else first_ms
    delay_ms = 0
    if max(committed, 0) < high:
        next_offset = max(committed, store.min_offset(topic, queue_id))
        next_ms = store.store_time(topic, queue_id, next_offset)
        delay_ms = 0 if next_ms is None else max(deps.clock() - next_ms, 0)
    queue = MessageQueue(
        topic=topic, broker_name=deps.settings.config.broker_name, queue_id=queue_id
    )
    return QueueTimeSpan(
        queue=queue,
        min_timestamp=_or_no_time(first_ms),
        min_timestamp_text=_text(first_ms),
        max_timestamp=_or_no_time(last_ms),
        max_timestamp_text=_text(last_ms),
        consume_timestamp=_or_no_time(consumed_ms),
        consume_timestamp_text=_text(consumed_ms),
        delay_time_ms=delay_ms,
    )


def _or_no_time(time_ms: int | None) -> int:
    return _NO_TIME if time_ms is None else time_ms


def _text(time_ms: int | None) -> str:
    """A time in RocketMQ's readable format, in the time zone of the broker."""
    ms = _or_no_time(time_ms)
    moment = datetime.fromtimestamp(ms // 1000)  # noqa: DTZ006 - local by meaning
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{ms % 1000:03d}"
