"""Pulling: what a consumer gets, what the response is without messages, and which pulls are parked.

    header -> group, topic, queue -> subscription -> read -> response, or park until a message comes

Messages that are only on disk are read by a thread first (`storing/disk_prefetch.py`).

A parked pull remembers its queue offset: when messages arrive that its filter rejects, the offset
advances and the pull stays parked. Which broker the response suggests, and what a slave responds,
is decided by `read_redirect.py`.
"""

import asyncio
import logging
from typing import NamedTuple

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.handlers import Answer, read_redirect, refusals
from tianzhou.broker.handlers.deps import Deps, WaitingPull
from tianzhou.broker.handlers.read_redirect import PullOutcome
from tianzhou.broker.handlers.responses import respond_parked
from tianzhou.broker.longpoll.parked_pulls import Parked, WaitingRequest
from tianzhou.broker.storing import disk_prefetch
from tianzhou.broker.tables.clients import Subscription, make_subscription
from tianzhou.errors import RequestError
from tianzhou.names import MASTER_ID, PERM_READ
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.pull import (
    COMMIT_OFFSET,
    HAS_SUBSCRIPTION,
    MAY_SUSPEND,
    PullMessageRequest,
)
from tianzhou.remoting.connection import PARKED, Connection, Deferral
from tianzhou.store.reading import Read, ReadStatus

log = logging.getLogger(__name__)

_CODES = {
    ReadStatus.FOUND: ResponseCode.SUCCESS,
    ReadStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    ReadStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    ReadStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    ReadStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


class CheckedPull(NamedTuple):
    """A pull that passed the checks."""

    connection: Connection
    request: Command
    header: PullMessageRequest
    group: SubscriptionGroupConfig
    subscription: Subscription
    account: str | None


def pull_message(deps: Deps, connection: Connection, request: Command) -> Answer:
    """PULL_MESSAGE and LITE_PULL_MESSAGE."""
    header = decode(PullMessageRequest, request.fields)
    config = deps.settings.config
    if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"broker {config.broker_name} serves no lite pulls: litePullMessageEnable is false",
        )
    group = _check_allowed(deps, config, header)
    subscription = _subscription_of(deps, config, group, header)
    moved = _moved_by_reset(deps, header, header.queue_offset)
    if moved is not None:
        return moved
    checked = CheckedPull(connection, request, header, group, subscription, connection.account)
    count = min(header.max_msg_count, config.pull_batch_max_message_count)
    if read_redirect.serves_readers(config) and disk_prefetch.needs_disk(
        deps.store, header.topic, header.queue_id, header.queue_offset, count,
        subscription.accept_tags,
    ):  # fmt: skip
        return _pull_from_disk(deps, checked, count)
    return _pull(deps, checked)


async def _pull_from_disk(deps: Deps, checked: CheckedPull, count: int) -> Command | Deferral:
    """Read from the disk in a thread first, so that the loop serves other requests."""
    topic, queue_id = checked.header.topic, checked.header.queue_id
    queue_offset = checked.header.queue_offset
    try:
        from_disk = await asyncio.to_thread(
            disk_prefetch.prefetch_next, deps.store, topic, queue_id, queue_offset, count,
            checked.subscription.accept_tags,
        )  # fmt: skip
    except OSError as e:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"topic {topic}, queue {queue_id}: messages from {queue_offset} on cannot be read from "
            f"the disk: {e.strerror or e}",
        ) from e
    return _pull(deps, checked, from_disk=from_disk)


def _pull(deps: Deps, checked: CheckedPull, *, from_disk: bool = False) -> Command | Deferral:
    """Respond with messages, or park the pull."""
    _, _, header, group, subscription, _ = checked
    config = deps.settings.config
    started_ms = deps.steady()
    outcome = _outcome(
        deps, config, header, group, subscription, header.queue_offset, from_disk=from_disk
    )
    # Offsets are committed at the master; a slave copies them from there.
    if header.sys_flag & COMMIT_OFFSET and not config.is_slave:
        deps.offsets.commit(
            header.consumer_group, header.topic, header.queue_id, header.commit_offset
        )
    if outcome.may_park and _park(deps, config, checked, outcome):
        return PARKED
    return _answer(deps, header, subscription, outcome, started_ms)


# -- checks ----------------------------------------------------------------------------------------


def _check_allowed(
    deps: Deps, config: BrokerConfig, header: PullMessageRequest
) -> SubscriptionGroupConfig:
    """The group, if it may read this queue. Raises RequestError."""
    if not config.broker_permission & PERM_READ:
        raise refusals.broker_forbids(config, "serves")
    group = refusals.find_group(deps, header.consumer_group)
    refusals.check_may_consume(deps, group, header.topic)
    topic = refusals.find_topic(deps, header.topic)
    if not topic.perm & PERM_READ:
        raise refusals.topic_forbids(topic, "serves")
    if not 0 <= header.queue_id < topic.read_queue_count:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"queue id {header.queue_id} is out of range: topic {header.topic} has "
            f"{topic.read_queue_count} read queues",
        )
    return group


def _subscription_of(
    deps: Deps,
    config: BrokerConfig,
    group: SubscriptionGroupConfig,
    header: PullMessageRequest,
) -> Subscription:
    if config.reject_pull_consumer_enable:
        members = deps.consumers.get(header.consumer_group)
        if members is None or members.consume_type == "CONSUME_ACTIVELY":
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"group {header.consumer_group} pulls by itself: rejectPullConsumerEnable is true",
            )
    if header.sys_flag & HAS_SUBSCRIPTION:
        subscription = make_subscription(
            header.topic, header.subscription, header.expression_type, header.sub_version
        )
        if subscription.problem is not None:
            raise RequestError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, subscription.problem)
    else:
        subscription = _registered_subscription(deps, group, header)
    refusals.check_filter(config, subscription)
    return subscription


def _registered_subscription(
    deps: Deps, group: SubscriptionGroupConfig, header: PullMessageRequest
) -> Subscription:
    """The subscription of the group's heartbeats. Raises RequestError."""
    name = header.consumer_group
    members = deps.consumers.get(name)
    if members is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"consumer group {name} has sent no heartbeat, its subscription is not known",
        )
    if members.is_broadcasting and not group.consume_broadcast_enable:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"consumer group {name} must not consume by broadcast: consumeBroadcastEnable is false",
        )
    subscription = members.subscriptions.get(header.topic)
    if subscription is None:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"consumer group {name} does not subscribe to topic {header.topic}; "
            f"all members of a group must subscribe alike",
        )
    if subscription.version < header.sub_version:
        raise RequestError(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the subscription of group {name} to topic {header.topic} is newer than the broker's; "
            f"the next heartbeat brings it",
        )
    if subscription.problem is not None:
        raise RequestError(ResponseCode.FILTER_DATA_NOT_EXIST, subscription.problem)
    return subscription


# -- reading ---------------------------------------------------------------------------------------


def _outcome(
    deps: Deps,
    config: BrokerConfig,
    header: PullMessageRequest,
    group: SubscriptionGroupConfig,
    subscription: Subscription,
    queue_offset: int,
    *,
    from_disk: bool = False,
) -> PullOutcome:
    """What a pull from an offset on gets."""
    topic, queue_id, store = header.topic, header.queue_id, deps.store
    if not read_redirect.serves_readers(config):
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        return read_redirect.not_served(queue_offset, low, high)
    read, code = _read(deps, config, header, subscription, queue_offset, from_disk=from_disk)
    outcome = read_redirect.outcome_of(
        config, group, read, code, queue_offset, store.memory_bytes, has_master=deps.has_master()
    )
    deps.offsets.note_pull(header.consumer_group, topic, queue_id, outcome.read.next_offset)
    return outcome


def _read(
    deps: Deps,
    config: BrokerConfig,
    header: PullMessageRequest,
    subscription: Subscription,
    queue_offset: int,
    *,
    from_disk: bool = False,
) -> tuple[Read, int]:
    """The messages from an offset on, and the response code of a master."""
    count = min(header.max_msg_count, config.pull_batch_max_message_count)
    if count < 1:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"maxMsgNums is {header.max_msg_count}, 1 is the least"
        )
    sql = subscription.sql
    read = deps.store.read(
        header.topic,
        header.queue_id,
        queue_offset,
        count,
        accept_tags=subscription.accept_tags,
        accept_record=sql.accepts if sql is not None else None,
        from_disk=from_disk,
    )
    code = _CODES.get(read.status)
    if code is None:
        # The queue is empty: a pull waits at offset 0, any other offset is wrong.
        code = ResponseCode.PULL_OFFSET_MOVED if queue_offset else ResponseCode.PULL_NOT_FOUND
    return read, code


def _moved_by_reset(deps: Deps, header: PullMessageRequest, queue_offset: int) -> Command | None:
    """The response with the new offset after a reset, to the first consumer that pulls."""
    group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
    wanted = deps.offsets.take_reset(group, topic, queue_id)
    if wanted is None or wanted == queue_offset:
        return None
    log.info("group %s: continues at %d in topic %s queue %d, as it was reset",
             group, wanted, topic, queue_id)  # fmt: skip
    deps.stats.pulls_missed += 1
    return Command(
        code=ResponseCode.PULL_OFFSET_MOVED,
        remark="OFFSET_RESET",
        ext_fields={
            "suggestWhichBrokerId": str(MASTER_ID),
            "nextBeginOffset": str(wanted),
            "minOffset": str(deps.store.min_offset(topic, queue_id)),
            "maxOffset": str(deps.store.max_offset(topic, queue_id)),
        },
    )


# -- responses -------------------------------------------------------------------------------------


def _answer(
    deps: Deps,
    header: PullMessageRequest,
    subscription: Subscription,
    outcome: PullOutcome,
    started_ms: int,
) -> Command:
    code, read = outcome.code, outcome.read
    body = b""
    if code == ResponseCode.SUCCESS:
        deps.on_messages(header, subscription, read.next_offset)
        body = b"".join(read.records)
        deps.stats.delivered(
            header.topic, header.consumer_group, len(read.records), len(body), header.queue_id,
            deps.steady() - started_ms,
        )  # fmt: skip
    else:
        deps.stats.pulls_missed += 1
    if code == ResponseCode.PULL_OFFSET_MOVED:
        log.info(
            "group %s: offset %d of topic %s queue %d is moved to %d (%s)",
            header.consumer_group, header.queue_offset, header.topic, header.queue_id,
            read.next_offset, read.status,
        )  # fmt: skip
    return Command(
        code=code,
        remark=read.status.value,
        ext_fields={
            "suggestWhichBrokerId": str(outcome.broker_id),
            "nextBeginOffset": str(read.next_offset),
            "minOffset": str(read.min_offset),
            "maxOffset": str(read.max_offset),
        },
        body=body,
    )


# -- long polling ----------------------------------------------------------------------------------


def _park(deps: Deps, config: BrokerConfig, checked: CheckedPull, outcome: PullOutcome) -> bool:
    """Park a pull; False if it does not allow that, or too many are parked."""
    connection, request, header, _, subscription, account = checked
    if not header.sys_flag & MAY_SUSPEND or request.is_oneway:
        return False
    cost = subscription.cost
    if not deps.parked.has_capacity(connection, cost, config.max_parked_pulls):
        return False
    wait_ms = header.suspend_timeout_millis
    if not config.long_polling_enable:
        wait_ms = config.short_polling_time_mills
    if outcome.wait_ms is not None:
        wait_ms = min(wait_ms, outcome.wait_ms)
    if wait_ms <= 0:
        return False
    deadline_ms = deps.steady() + wait_ms
    waiting = WaitingRequest(header, subscription, request.opaque, request.encoding, account)
    key = (header.topic, header.queue_id)
    deps.parked.park(connection, key, header.queue_offset, deadline_ms, waiting, cost)
    deps.arm()
    return True


def serve_waiting(deps: Deps, parked: Parked[Connection, WaitingPull], is_due: bool) -> bool:
    """Respond to a parked pull if there is a message or an error, or if it has timed out."""
    waiting, connection = parked.request, parked.owner
    if connection.closed:
        deps.parked.remove(parked)
        return True
    config, header = deps.settings.config, waiting.header
    try:
        if not deps.may_consume(connection, waiting.account, header.topic, header.consumer_group):
            raise refusals.permission_lost(header.topic, header.consumer_group)
        group = _check_allowed(deps, config, header)
        answer = _moved_by_reset(deps, header, parked.queue_offset)
        if answer is None:
            answer = _retry_parked(deps, config, parked, group, is_due=is_due)
        if answer is None:
            return False
    except RequestError as e:
        answer = Command(code=e.code, remark=e.remark)
    deps.parked.remove(parked)
    respond_parked(connection, waiting, answer)
    return True


def _retry_parked(
    deps: Deps,
    config: BrokerConfig,
    parked: Parked[Connection, WaitingPull],
    group: SubscriptionGroupConfig,
    *,
    is_due: bool,
) -> Command | None:
    """The response to a parked pull; None if it stays parked."""
    header, subscription = parked.request.header, parked.request.subscription
    started_ms = deps.steady()
    outcome = _outcome(deps, config, header, group, subscription, parked.queue_offset)
    if outcome.has_nothing and not is_due:
        parked.queue_offset = max(parked.queue_offset, outcome.read.next_offset)
        return None
    return _answer(deps, header, subscription, outcome, started_ms)
