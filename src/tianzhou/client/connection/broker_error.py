"""What answers of brokers and nameservers mean to whoever asked."""

from tianzhou.errors import BrokerError
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

_RETRIABLE = frozenset((
    ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE,
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.GO_AWAY, ResponseCode.FLOW_CONTROL,
))  # fmt: skip
"""Answers after which the same request may succeed later, with nothing else changed."""
_DENIED = "org.apache.rocketmq.acl.common.AclException"
"""What 4.9 says to an account that may not do this, as a SYSTEM_ERROR like any other."""


def broker_error(answer: Command, subject: str) -> BrokerError:
    """The error that an answer tells, for the person who has to act on it."""
    remark = answer.remark or ""
    retriable = answer.code in _RETRIABLE and _DENIED not in remark
    return BrokerError(answer.code, remark, subject=subject, retriable=retriable)
