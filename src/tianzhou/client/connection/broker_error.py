"""Maps error responses to exception classes.

The flags of the classes (`retriable`, `stale_route` and others, see `tianzhou.errors`) decide what
a client does next. Conditions without a response code of their own are recognised by their remark,
here and nowhere else.
"""

from tianzhou.errors import (
    BrokerBusy,
    BrokerError,
    BrokerFailed,
    BrokerLeaving,
    BrokerNotServing,
    FlowControlled,
    NotQueueLeader,
    NotSubscribed,
    PermissionDenied,
    QueueNotFound,
    ReplyUndeliverable,
    TopicNotFound,
    WrongUnit,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

_CLASSES: dict[int, type[BrokerError]] = {
    ResponseCode.SYSTEM_ERROR: BrokerFailed,
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.SERVICE_NOT_AVAILABLE: BrokerNotServing,
    ResponseCode.GO_AWAY: BrokerLeaving,
    ResponseCode.FLOW_CONTROL: FlowControlled,
    ResponseCode.NO_PERMISSION: PermissionDenied,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotFound,
    ResponseCode.NOT_LEADER_FOR_QUEUE: NotQueueLeader,
    ResponseCode.NO_BUYER_ID: WrongUnit,
    ResponseCode.NOT_IN_CURRENT_UNIT: WrongUnit,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: NotSubscribed,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: NotSubscribed,
}

_SHARED_CODES = frozenset((ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER))
_BY_REMARK: tuple[tuple[str, str, type[BrokerError]], ...] = (
    ("queueId[", "] is illegal", QueueNotFound),  # Apache
    ("queue id ", " is out of range", QueueNotFound),  # Tianzhou
    ("push reply message", "", ReplyUndeliverable),
    ("org.apache.rocketmq.acl.common.AclException", "", PermissionDenied),  # 4.9
)
"""Conditions that share the codes above: two parts of the remark, and the class."""


def broker_error(response: Command, subject: str) -> BrokerError:
    """The exception for an error response; `subject` says what the request was about."""
    remark = response.remark or ""
    return _class_of(response.code, remark)(response.code, remark, subject=subject)


def _class_of(code: int, remark: str) -> type[BrokerError]:
    if code in _SHARED_CODES:
        for first, second, error_class in _BY_REMARK:
            if first in remark and second in remark:
                return error_class
    return _CLASSES.get(code, BrokerError)
