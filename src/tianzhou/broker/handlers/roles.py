"""Requests between brokers of one name, and the promotion of a slave."""

import logging

from tianzhou.broker.config import BrokerRole, namesrv_addresses
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.handlers.responses import success
from tianzhou.errors import ReplicationError, RequestError, TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.route import ClusterInfo
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.protocol.headers.ha import ChangeBrokerRoleRequest
from tianzhou.remoting.connection import Connection

log = logging.getLogger(__name__)

_NAMESRV_TIMEOUT_MS = 3_000
_MASTER_ROLES = (BrokerRole.ASYNC_MASTER, BrokerRole.SYNC_MASTER)


def say_hello(deps: Deps, connection: Connection, request: Command) -> Command:
    """HA_HELLO: a slave of ours asks whether it may copy the log."""
    try:
        return success(deps.replication.respond_to_hello(request, connection.peer))
    except ReplicationError as e:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the hello cannot be read: {e}") from e


async def change_broker_role(deps: Deps, _: Connection, request: Command) -> Command:
    """CHANGE_BROKER_ROLE: a slave becomes the master, or a master waits for slaves from now on."""
    header = headers.decode(ChangeBrokerRoleRequest, request.fields)
    if header.role not in _MASTER_ROLES:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"role is {header.role!r}, it must be {' or '.join(_MASTER_ROLES)}: a master becomes a "
            "slave by its configuration and a restart",
        )
    if deps.failover is not None:
        raise RequestError(
            ResponseCode.ILLEGAL_OPERATION,
            "the master of this group is elected (haEtcdEndpoints), so no broker is promoted: "
            "`tianzhou broker switch` changes the master, `tianzhou broker elect --force` makes "
            "one where none can be elected",
        )
    if deps.settings.config.is_slave and not header.force:
        await _check_no_master(deps)
    try:
        await deps.change_role(BrokerRole(header.role), MASTER_ID)
    except TianzhouError as e:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"the role was not changed: {e}; see the broker's log"
        ) from e
    return Command(code=ResponseCode.SUCCESS)


async def _check_no_master(deps: Deps) -> None:
    """Raises RequestError if there is a master, or if no nameserver can be asked."""
    advice = "stop it first; force the promotion only if it can never come back as the master"
    if deps.replication.is_following:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"this slave follows a living master, which would go on beside it: {advice} (force)",
        )
    config, problems = deps.settings.config, list[str]()
    namesrvs = namesrv_addresses(config)
    for namesrv in namesrvs:
        try:
            response = await deps.client.request(
                namesrv, Command(code=RequestCode.GET_BROKER_CLUSTER_INFO), _NAMESRV_TIMEOUT_MS
            )
            if response.code != ResponseCode.SUCCESS:
                problems.append(f"{namesrv}: {response.remark}")
                continue
            brokers = bodies.decode(ClusterInfo, response.body).brokers
        except TianzhouError as e:
            problems.append(f"{namesrv}: {e}")
            continue
        known = brokers.get(config.broker_name)
        master = (known.addresses or {}).get(MASTER_ID) if known else None
        if master is not None and master != deps.address:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                f"nameserver {namesrv} shows a living master of {config.broker_name} at {master}: "
                f"{advice} (force)",
            )
    if problems and len(problems) == len(namesrvs):
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"no nameserver can say whether the master lives ({'; '.join(problems)}); make sure "
            "that it does not, and force the promotion",
        )
