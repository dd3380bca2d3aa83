"""Administration of consumer groups: create, change, delete, show."""

import logging

import msgspec

from tianzhou.broker import validation
from tianzhou.broker.handlers.admin.topics import apply_attributes
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.refusals import no_group
from tianzhou.broker.handlers.responses import saved, success_with
from tianzhou.broker.tables.groups import is_system_group
from tianzhou.broker.tables.supported_attributes import added, group_problems
from tianzhou.errors import RequestError
from tianzhou.names import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX
from tianzhou.protocol.bodies import decode_request as decode_body
from tianzhou.protocol.bodies import decode_request_steps
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.groups import (
    GroupForbidden,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers import decode
from tianzhou.protocol.headers.groups import (
    DeleteSubscriptionGroupRequest,
    GroupRequest,
    UpdateGroupForbiddenRequest,
)
from tianzhou.remoting import scheduler
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.scheduler import Steps, sliced

log = logging.getLogger(__name__)


async def update_group(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    group = decode_body(SubscriptionGroupConfig, request.body)
    return await _update_groups(deps, connection, [group])


async def update_group_list(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST (5.3): all, or none if one is invalid."""
    body = await scheduler.finish(decode_request_steps(SubscriptionGroupList, request.body))
    return await _update_groups(deps, connection, body.groups or [])


async def _update_groups(
    deps: Deps, connection: Connection, groups: list[SubscriptionGroupConfig]
) -> Command:
    await scheduler.finish(_update_steps(deps, connection, groups))
    return await saved(deps)


def _update_steps(
    deps: Deps, connection: Connection, groups: list[SubscriptionGroupConfig]
) -> Steps[None]:
    for group in groups:
        yield
        known = deps.groups.get(group.group_name or "") is not None
        (validation.check_group_name if known else validation.check_new_group)(
            group.group_name or ""
        )
        apply_attributes(None, group.attributes)
        for problem in group_problems(group, added(group.attributes)):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"consumer group {group.group_name} is refused: {problem}",
            )
    deps.groups.check_capacity(group.group_name or "" for group in groups)
    for group in groups:
        yield
        name = group.group_name or ""
        before = deps.groups.get(name)
        attributes = apply_attributes(before.attributes if before else None, group.attributes)
        if deps.groups.put(msgspec.structs.replace(group, attributes=attributes)):
            verb = "changed" if before else "created"
            log.info("group %s: %s by %s", name, verb, connection.peer)


async def delete_group(deps: Deps, connection: Connection, request: Command) -> Command:
    """DELETE_SUBSCRIPTIONGROUP: deletes the group, and its offsets if requested."""
    header = decode(DeleteSubscriptionGroupRequest, request.fields)
    if is_system_group(header.group_name):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"consumer group {header.group_name} is the system's and cannot be deleted",
        )
    if deps.groups.remove(header.group_name):
        log.info("group %s: deleted by %s", header.group_name, connection.peer)
    if header.clean_offset or header.remove_offset:
        await scheduler.finish(deps.offsets.remove_group(header.group_name))
    deps.history.forget_group(header.group_name, deps.clock())
    for prefix in (RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX):
        deps.topics.remove(prefix + header.group_name)
    return await saved(deps)


@sliced
def get_group(deps: Deps, _: Connection, request: Command) -> Steps[Command]:
    """GET_SUBSCRIPTIONGROUP_CONFIG (5.x)."""
    header = decode(GroupRequest, request.fields)
    group = deps.groups.get(header.group)
    if group is None:
        raise no_group(header.group)
    return (yield from success_with(group))


async def update_group_forbidden(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_AND_GET_GROUP_FORBIDDEN (5.x): get or set whether a group may read a topic."""
    header = decode(UpdateGroupForbiddenRequest, request.fields)
    group, topic = header.group, header.topic
    validation.check_group_name(group)
    validation.check_topic_name(topic)
    if header.readable is not None and deps.groups.forbid(
        group, topic, forbidden=not header.readable
    ):
        verb = "may read" if header.readable else "must not read"
        log.info("group %s: %s topic %s now, by %s", group, verb, topic, connection.peer)
        await saved(deps)
    readable = not deps.groups.is_forbidden(group, topic)
    body = GroupForbidden(topic=topic, group=group, readable=readable)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(body))
