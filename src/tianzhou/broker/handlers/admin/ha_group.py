"""A group whose master is elected: what operators see, and what they ask for.

Every replica answers HA_GROUP, also one without etcd, a stopped one, or one that serves no clients.
A command is carried out by the replica that gets it, with one transaction; what only the master can
do (switch) a slave passes on through etcd.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from typing import Final

from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import success
from tianzhou.broker.replication.failover import Failover
from tianzhou.broker.replication.group_info import Figures
from tianzhou.errors import RequestError
from tianzhou.ha.authority.etcd_member import MemberHealth
from tianzhou.ha.authority.values import REPLICAS_MAX
from tianzhou.ha.roles import events
from tianzhou.ha.roles.reasons import Reason
from tianzhou.protocol import headers
from tianzhou.protocol.bodies import encode
from tianzhou.protocol.bodies.ha_group import GroupInfo
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import GroupCommandRequest, GroupCommandResponse
from tianzhou.remoting.connection import Connection

ANSWER_S: Final = 12.0
"""A switch takes three seconds at most, a transaction five."""
_FREE_S: Final = 2.0
"""How long a command waits for another change of the group that is under way."""
_POLL_S: Final = 0.05
_BY_CHARACTERS_MAX: Final = 64
_OUR_SLAVES: Final = "id:"


# -- what operators see ----------------------------------------------------------------------------


async def get_group(deps: Deps, _: Connection, __: Command) -> Command:
    """HA_GROUP: the group as this replica sees it; etcd's members are asked for it."""
    failover = elected(deps)
    info = info_of(deps, failover, await failover.probe_authority())
    return Command(code=ResponseCode.SUCCESS, body=encode(info))


def elected(deps: Deps) -> Failover:
    """Automatic failover of this broker. Raises RequestError if its role is fixed."""
    if deps.failover is None:
        raise RequestError(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            "this broker has a fixed role: there is no automatic failover without haEtcdEndpoints",
        )
    return deps.failover


def info_of(deps: Deps, failover: Failover, members: tuple[MemberHealth, ...] = ()) -> GroupInfo:
    """The group as this replica sees it, at this moment."""
    config, store = deps.settings.config, deps.store
    rows = deps.replication_status().slaves
    return failover.info(
        Figures(
            cluster=config.broker_cluster_name,
            broker_name=config.broker_name,
            end_offset=store.end_log_offset,
            flushed_offset=store.flushed_log_offset,
            first_offset=store.first_log_offset,
            confirm_offset=failover.confirm_offset(),
            message_count=store.queues.entry_count,
            authority_problem=failover.link.problem,
            authority=members,
            behind_ms={
                int(row.name.removeprefix(_OUR_SLAVES)): row.behind_ms
                for row in rows
                if row.name.startswith(_OUR_SLAVES)
            },
        )
    )


def failover_keys(deps: Deps) -> dict[str, str]:
    """Keys of `brokerStatus` about automatic failover; none with fixed roles."""
    if deps.failover is None:
        return {}
    info = info_of(deps, deps.failover)
    own = info.own
    return {
        "haMode": own.mode,
        "haReplicaId": str(own.id),
        "haGroupEpoch": str(info.epoch),
        "haGroupMaster": info.master_address or "",
        "haInSyncReplicas": " ".join(map(str, info.in_sync)),
        "haMinInSyncReplicas": str(info.min_in_sync),
        "haConfirmOffset": str(own.confirm_offset),
        "haLeaseAgeMs": "-1" if own.lease_age_ms is None else str(own.lease_age_ms),
        "haEtcdReachable": "true" if info.etcd.problem is None else "false",
        "haPaused": "true" if info.is_paused else "false",
        "haSendsRefusedBecause": own.refusal.text if own.refusal else "",
        "haAlarms": "; ".join(each.text for each in info.alarms),
    }


# -- what operators ask for ------------------------------------------------------------------------


async def command_group(deps: Deps, connection: Connection, request: Command) -> Command:
    """HA_GROUP_COMMAND: switch, pause, resume, retire, init, elect or resync."""
    failover = elected(deps)
    header = headers.decode(GroupCommandRequest, request.fields)
    make = _COMMANDS.get(header.command)
    if make is None:
        known = ", ".join(_COMMANDS)
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"command is {header.command!r}, it must be of: {known}"
        )
    reason = await carry_out(failover, make(header), asked_by(connection, header.by))
    response = success(shown_master(failover))
    response.remark = reason.text
    return response


async def carry_out(failover: Failover, command: events.Command, by: str) -> Reason:
    """What was done. Raises RequestError with the reason why it was not."""
    role = failover.role
    try:
        async with asyncio.timeout(_FREE_S):
            while role.pending is not None or role.is_stale:  # noqa: ASYNC110 - no event for it
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        pass  # the machine says what is under way
    try:
        async with asyncio.timeout(ANSWER_S):
            is_done, reason = await failover.ask(command, by)
    except TimeoutError as e:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"not finished within {ANSWER_S:.0f} s, it may still happen: see the group "
            "(tianzhou broker group)",
        ) from e
    if not is_done:
        raise RequestError(ResponseCode.ILLEGAL_OPERATION, reason.text)
    return reason


def asked_by(connection: Connection, name: str) -> str:
    """Who asks, for the history of the group: one line."""
    shown = "".join(each if each.isprintable() else "?" for each in name[:_BY_CHARACTERS_MAX])
    who = connection.account or shown or "an operator"
    return f"{who} at {connection.peer}"


def shown_master(failover: Failover) -> GroupCommandResponse:
    """Who the master is now, as far as this replica knows."""
    view, state = failover.role.view, failover.role.state
    if view is None or state is None:
        return GroupCommandResponse()
    known = view.replicas.get(state.master) if state.master is not None else None
    return GroupCommandResponse(
        epoch=state.epoch,
        master_id=state.master,
        master_address=known.value.addr if known else None,
    )


def _named(header: GroupCommandRequest) -> int:
    if header.replica_id is None or not 1 <= header.replica_id <= REPLICAS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{header.command} needs the id of a replica, 1 to {REPLICAS_MAX}",
        )
    return header.replica_id


def _switch(header: GroupCommandRequest) -> events.Command:
    return events.Switch(None if header.replica_id is None else _named(header))


_COMMANDS: Mapping[str, Callable[[GroupCommandRequest], events.Command]] = {
    "switch": _switch,
    "pause": lambda _: events.Pause(),
    "resume": lambda _: events.Resume(),
    "retire": lambda header: events.Retire(_named(header)),
    "init": lambda _: events.Init(secrets.token_hex(16)),
    "resync": lambda _: events.Resync(),
    "elect": lambda header: events.Elect(_named(header), header.accept_loss),
}
