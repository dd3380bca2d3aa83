"""Requests for RocketMQ's controller, answered from the state of the group in etcd.

So the stock tools work with any replica as the address of the controller: `getControllerMetaData`,
`getSyncStateSet`, `electMaster`. The leader that a replica names is the master, as it carries out a
switch; without one it names itself. Brokers do not register with each other by these requests.
"""

from collections.abc import Iterable

from tianzhou.broker.handlers.admin.ha_group import asked_by, carry_out, elected, shown_master
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import success
from tianzhou.broker.replication.failover import Failover
from tianzhou.errors import RequestError
from tianzhou.ha.authority.values import GroupState, View
from tianzhou.ha.roles import events
from tianzhou.names import MASTER_ID
from tianzhou.protocol import headers
from tianzhou.protocol.bodies import decode_request, encode
from tianzhou.protocol.bodies.ha import (
    BrokerReplicasInfo,
    EpochEntry,
    EpochEntryCache,
    ReplicaIdentity,
    ReplicasInfo,
)
from tianzhou.protocol.bodies.route import BrokerMemberGroup
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import (
    ElectMasterRequest,
    ElectMasterResponse,
    GetMetadataResponse,
)
from tianzhou.remoting.connection import Connection

_NAMES_MAX = 1000


def get_metadata(deps: Deps, _: Connection, __: Command) -> Command:
    """CONTROLLER_GET_METADATA_INFO: who answers for the group."""
    failover = elected(deps)
    shown = shown_master(failover)
    view = failover.role.view
    replicas = sorted(view.replicas.items()) if view else []
    return success(
        GetMetadataResponse(
            group=deps.settings.config.broker_name,
            controller_leader_id=str(shown.master_id or failover.role.id),
            controller_leader_address=shown.master_address or deps.address,
            is_leader=failover.is_master,
            # Apache's form: "n0:localhost:9877;n1:localhost:9878".
            peers=";".join(f"{each}:{known.value.addr}" for each, known in replicas),
        )
    )


def get_sync_state_data(deps: Deps, _: Connection, request: Command) -> Command:
    """CONTROLLER_GET_SYNC_STATE_DATA: the replicas of the names in the body that are known here."""
    failover = elected(deps)
    names = decode_request(list[str], request.body or b"[]")
    if len(names) > _NAMES_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"{len(names)} broker names, at most {_NAMES_MAX}"
        )
    own, found = deps.settings.config.broker_name, dict[str, ReplicasInfo]()
    view, state = failover.role.view, failover.role.state
    if own in names and view is not None and state is not None:
        found[own] = _replicas_info(own, view, state)
    return Command(code=ResponseCode.SUCCESS, body=encode(BrokerReplicasInfo(replicas=found)))


def _replicas_info(name: str, view: View, state: GroupState) -> ReplicasInfo:
    def identities(ids: Iterable[int]) -> list[ReplicaIdentity]:
        return [
            ReplicaIdentity(
                broker_name=name, broker_id=each, broker_address=view.replicas[each].value.addr,
                alive=each in view.alive,
            )
            for each in sorted(ids) if each in view.replicas
        ]  # fmt: skip

    master = view.replicas.get(state.master) if state.master is not None else None
    return ReplicasInfo(
        master_broker_id=state.master,
        master_address=master.value.addr if master else None,
        master_epoch=state.epoch,
        sync_state_set_epoch=_set_epoch(view),
        in_sync=identities(state.in_sync),
        not_in_sync=identities(view.replicas.keys() - set(state.in_sync)),
    )


def _set_epoch(view: View) -> int:
    """Raised by every change of the set, as RocketMQ's, which has 31 bits."""
    return view.revision & 0x7FFFFFFF


async def elect_master(deps: Deps, connection: Connection, request: Command) -> Command:
    """CONTROLLER_ELECT_MASTER: a planned switch to the replica that is named."""
    failover = elected(deps)
    header = headers.decode(ElectMasterRequest, request.fields)
    _check_is_meant(deps, header)
    state = failover.role.state
    if state is not None and state.master == header.broker_id:
        raise RequestError(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"replica {header.broker_id} is the master already",
        )
    by = asked_by(connection, "electMaster")
    try:
        await carry_out(failover, events.Switch(header.broker_id), by)
    except RequestError as e:
        raise RequestError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, e.remark) from e
    return _elected(deps, failover)


def _check_is_meant(deps: Deps, header: ElectMasterRequest) -> None:
    config = deps.settings.config
    if header.broker_name != config.broker_name:
        raise RequestError(
            ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
            f"this is a replica of {config.broker_name}, not of {header.broker_name}: every broker "
            "name elects its master by itself",
        )
    if not header.designate_elect or header.broker_id < 1:
        raise RequestError(
            ResponseCode.CONTROLLER_INVALID_REQUEST,
            "name the replica that becomes the master: a lost master is replaced without a request",
        )


def _elected(deps: Deps, failover: Failover) -> Command:
    view, state = failover.role.view, failover.role.state
    if view is None or state is None:
        raise RequestError(ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, "the group is not known")
    name, cluster = deps.settings.config.broker_name, deps.settings.config.broker_cluster_name
    shown = shown_master(failover)
    response = success(
        ElectMasterResponse(
            master_broker_id=shown.master_id, master_address=shown.master_address,
            master_epoch=shown.epoch, sync_state_set_epoch=_set_epoch(view),
        )
    )  # fmt: skip
    addresses = {
        MASTER_ID if each == state.master else each: known.value.addr
        for each, known in sorted(view.replicas.items())
    }
    group = BrokerMemberGroup(cluster=cluster, broker_name=name, addresses=addresses)
    response.body = encode(group)
    return response


def get_epochs(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_BROKER_EPOCH_CACHE: which master wrote which part of the log; with fixed roles, too."""
    config, entries = deps.settings.config, deps.replication.epochs
    end = deps.store.end_log_offset
    stops = [*(each.start for each in entries[1:]), end] if entries else []
    cache = EpochEntryCache(
        cluster_name=config.broker_cluster_name,
        broker_name=config.broker_name,
        broker_id=config.broker_id,
        epochs=[
            EpochEntry(epoch=each.number, start_offset=each.start, end_offset=stop)
            for each, stop in zip(entries, stops, strict=True)
        ],
        max_offset=end,
    )
    return Command(code=ResponseCode.SUCCESS, body=encode(cache))
