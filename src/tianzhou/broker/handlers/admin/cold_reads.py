"""Cold reads: thresholds of groups, and the read-ahead of the log.

This broker behaves like RocketMQ with `coldDataFlowControlEnable=false`, the default: thresholds
are stored in memory and shown, and throttle no read. Pop records are not in RocksDB, so there are
none to export from it.
"""

import logging

from tianzhou.broker.handlers.deps import Deps
from tianzhou.config.properties import decode_text
from tianzhou.errors import RequestError
from tianzhou.protocol.bodies import encode as encode_body
from tianzhou.protocol.bodies.stats import ColdDataFlowInfo
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.settings_requests import read_properties

log = logging.getLogger(__name__)

_GROUPS_MAX = 1_000
_THRESHOLD_MAX = 2**63 - 1
_READ_AHEAD_MODE = "READ_AHEAD_MODE"
_NORMAL, _RANDOM = "0", "1"
_SUCCESS = Command(code=ResponseCode.SUCCESS)


def get_cold_info(deps: Deps, _: Connection, __: Command) -> Command:
    """GET_COLD_DATA_FLOW_CTR_INFO."""
    info = ColdDataFlowInfo(thresholds=deps.cold_thresholds)
    return Command(code=ResponseCode.SUCCESS, body=encode_body(info, standard=True))


def update_cold_thresholds(deps: Deps, connection: Connection, request: Command) -> Command:
    """UPDATE_COLD_DATA_FLOW_CTR_CONFIG: the body has lines of group=bytes per second."""
    pairs = read_properties(connection, request)
    changed = {each.key: _threshold(each.key, each.value) for each in pairs}
    if len(deps.cold_thresholds | changed) > _GROUPS_MAX:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"cold read thresholds are limited to {_GROUPS_MAX} groups: remove others first",
        )
    deps.cold_thresholds.update(changed)
    return _SUCCESS


def _threshold(group: str, value: str) -> int:
    digits = value.strip()
    # Longer texts are not converted at all: the time for that grows with the square of the length.
    if digits.isascii() and digits.isdecimal() and len(digits) <= 19:
        threshold = int(digits)
        if threshold <= _THRESHOLD_MAX:
            return threshold
    raise RequestError(
        ResponseCode.INVALID_PARAMETER,
        f"the cold read threshold of group {group[:80]} is {value[:80]!r}: a number of bytes from "
        f"0 to {_THRESHOLD_MAX} is possible",
    )


def remove_cold_threshold(deps: Deps, _: Connection, request: Command) -> Command:
    """REMOVE_COLD_DATA_FLOW_CTR_CONFIG: the body is the name of a group."""
    group, _unused = decode_text(request.body)
    deps.cold_thresholds.pop(group.strip(), None)
    return _SUCCESS


def set_read_ahead(deps: Deps, _: Connection, request: Command) -> Command:
    """SET_COMMITLOG_READ_MODE: whether the operating system reads the log ahead."""
    mode = request.fields.get(_READ_AHEAD_MODE, "")
    if mode not in (_NORMAL, _RANDOM):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"{_READ_AHEAD_MODE} is {mode[:80]!r}: {_NORMAL} reads ahead, {_RANDOM} does not",
        )
    deps.store.log.segments.set_read_ahead(enabled=mode == _NORMAL)
    return Command(
        code=ResponseCode.SUCCESS, remark=f"set commitlog readahead mode success, mode: {mode}"
    )


def export_pop_records(_: Deps, __: Connection, ___: Command) -> Command:
    """POP_ROLLBACK: there is no RocksDB, so there is nothing to export."""
    return _SUCCESS
