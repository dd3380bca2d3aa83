"""Which failures of a send are retried, and which response code becomes which error."""

import pytest

from tianzhou.client.connection.broker_error import broker_error
from tianzhou.client.connection.retry_policy import (
    NO_RETRY,
    FailureKind,
    RetryPauses,
    RetryRule,
    failure_kind,
)
from tianzhou.errors import (
    AddressError,
    BrokerError,
    BrokersUnavailable,
    ConnectError,
    ConnectionClosed,
    MessageRefused,
    PermissionDenied,
    QueueNotFound,
    RemoteBusy,
    ReplyUndeliverable,
    RequestTimeout,
    RouteNotFound,
    TianzhouError,
)
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.command import Command

NOT_SENT, MAYBE_STORED, FINAL = FailureKind
RULE = RetryRule(2, on_error_response=True)
ACL_REMARK = "org.apache.rocketmq.acl.common.AclException: no"


def error_of(code: int, remark: str = "no") -> BrokerError:
    return broker_error(Command(code=code, remark=remark), "test")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectError("x"), NOT_SENT),
        (RemoteBusy("x"), NOT_SENT),
        (BrokersUnavailable("x"), NOT_SENT),
        (AddressError("x"), FINAL),
        (ConnectionClosed("x"), MAYBE_STORED),
        (RequestTimeout("x"), MAYBE_STORED),
        (RouteNotFound("x"), FINAL),
        (MessageRefused("x"), FINAL),
    ],
)
def test_failures_without_a_response_are_retried_by_their_flags(
    error: TianzhouError, kind: FailureKind
) -> None:
    assert failure_kind(error, NO_RETRY, has_other_broker=False) is kind
    assert failure_kind(error, RULE, has_other_broker=True) is kind


@pytest.mark.parametrize(
    ("code", "alone", "with_others", "retriable", "stale_route"),
    [
        (ResponseCode.SYSTEM_ERROR, MAYBE_STORED, MAYBE_STORED, True, False),
        (ResponseCode.SYSTEM_BUSY, NOT_SENT, NOT_SENT, True, False),
        (ResponseCode.SERVICE_NOT_AVAILABLE, NOT_SENT, NOT_SENT, True, True),
        (ResponseCode.GO_AWAY, NOT_SENT, NOT_SENT, True, True),
        (ResponseCode.FLOW_CONTROL, FINAL, FINAL, True, False),
        (ResponseCode.NO_PERMISSION, FINAL, MAYBE_STORED, False, True),
        (ResponseCode.TOPIC_NOT_EXIST, MAYBE_STORED, MAYBE_STORED, True, True),
        (ResponseCode.NOT_LEADER_FOR_QUEUE, FINAL, FINAL, False, True),
        (ResponseCode.NO_BUYER_ID, FINAL, MAYBE_STORED, False, False),
        (ResponseCode.NOT_IN_CURRENT_UNIT, FINAL, MAYBE_STORED, False, False),
        (ResponseCode.MESSAGE_ILLEGAL, FINAL, FINAL, False, False),
    ],
)
def test_error_responses_are_retried_by_the_flags_of_their_class(
    code: ResponseCode,
    alone: FailureKind,
    with_others: FailureKind,
    retriable: bool,
    stale_route: bool,
) -> None:
    error = error_of(code)
    assert failure_kind(error, RULE, has_other_broker=False) is alone
    assert failure_kind(error, RULE, has_other_broker=True) is with_others
    assert (error.retriable, error.stale_route) == (retriable, stale_route)
    once = NOT_SENT if alone is NOT_SENT else FINAL
    assert failure_kind(error, NO_RETRY, has_other_broker=True) is once


@pytest.mark.parametrize(
    ("code", "remark", "kind"),
    [
        (ResponseCode.SYSTEM_ERROR, "request queueId[8] is illegal, ...", QueueNotFound),
        (ResponseCode.INVALID_PARAMETER, "request queueId[8] is illegal, ...", QueueNotFound),
        (ResponseCode.SYSTEM_ERROR, "queue id 8 is out of range: topic t has 4", QueueNotFound),
        (ResponseCode.SYSTEM_ERROR, "push reply message fail, ...", ReplyUndeliverable),
        (ResponseCode.SYSTEM_ERROR, ACL_REMARK, PermissionDenied),
        (ResponseCode.INVALID_PARAMETER, "no", BrokerError),
    ],
)
def test_conditions_without_a_code_are_recognised_by_their_remark(
    code: ResponseCode, remark: str, kind: type[BrokerError]
) -> None:
    assert type(error_of(code, remark)) is kind


def test_an_undeliverable_reply_is_final() -> None:
    error = error_of(ResponseCode.SYSTEM_ERROR, "push reply message fail, ...")
    assert failure_kind(error, RULE, has_other_broker=True) is FINAL


def test_a_pause_follows_when_every_broker_has_failed_and_doubles() -> None:
    pauses = RetryPauses()
    found = [pauses.after_failure(2) for _ in range(12)]
    assert found[::2] == [0.0] * 6
    longest = [0.02, 0.04, 0.08, 0.16, 0.25, 0.25]
    for pause_s, longest_s in zip(found[1::2], longest, strict=True):
        assert 0.75 * longest_s <= pause_s <= longest_s
