"""When a send is tried again: what each failure means, and how long to wait before the next try.

    NOT_SENT       no connection, no master, or a broker that is starting, stopping or busy. Nothing
                   is stored, so the send is retried until its deadline
    MAYBE_STORED   a lost connection, no response, or an error that another broker may not return.
                   The message may be stored, so the number of retries is limited
    FINAL          retrying does not help: access denied, message too large, unknown topic

A try at another broker follows at once. Before a broker is tried a second time there is a pause,
which doubles up to a bound.

Values in, values out: no clock and no network.
"""

import enum
import random
import re
from dataclasses import dataclass

from tianzhou.errors import (
    AddressError,
    BrokerError,
    BrokersUnavailable,
    ConnectError,
    RemoteBusy,
    RemotingError,
    TianzhouError,
)
from tianzhou.protocol.codes import ResponseCode

RETRY_CODES: frozenset[int] = frozenset((
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID,
    ResponseCode.NOT_IN_CURRENT_UNIT, ResponseCode.GO_AWAY,
))  # fmt: skip
"""Answers after which another broker may do better."""

_PASSING_CODES: frozenset[int] = frozenset((
    ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY,
))  # fmt: skip
"""Answers of a broker that stored nothing and may take the same message a moment later."""

_STALE_CODES: frozenset[int] = frozenset((
    ResponseCode.TOPIC_NOT_EXIST, ResponseCode.NO_PERMISSION, ResponseCode.NOT_LEADER_FOR_QUEUE,
    ResponseCode.GO_AWAY,
))  # fmt: skip
"""Answers that cast doubt on the route."""

_OUTSIDE_CODES: frozenset[int] = frozenset((
    ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER,
))  # fmt: skip
_OUTSIDE = re.compile(r"queueId\[\d+\] is illegal|queue id \d+ is out of range")
"""What brokers say of a queue they do not have; they have no code of their own for it."""

_UNHEARD_REPLY = "push reply message"
"""How brokers, Apache's and ours, begin to say that a reply did not reach its receiver."""

_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often, and after which answers, a send is tried again that may have been stored."""

    retry_count: int
    retry_codes: frozenset[int] = frozenset()
    until_ok: bool = False
    """True if only SEND_OK will do while tries are left."""


NO_RETRY = RetryRule(0)
"""For what may be stored once only: a queue that the program has chosen."""


class FailureKind(enum.Enum):
    """What follows a failure; see the module's text."""

    NOT_SENT = "not sent"
    MAYBE_STORED = "counted"
    FINAL = "final"


def failure_kind(error: TianzhouError, tries: RetryRule, *, has_other_broker: bool) -> FailureKind:
    """What follows a failure of one try."""
    if isinstance(error, AddressError):
        return FailureKind.FINAL
    if isinstance(error, ConnectError | RemoteBusy | BrokersUnavailable):
        return FailureKind.NOT_SENT
    if isinstance(error, RemotingError):
        return FailureKind.MAYBE_STORED
    if not isinstance(error, BrokerError):
        return FailureKind.FINAL
    if is_unheard_reply(error):
        return FailureKind.FINAL
    if error.code in _PASSING_CODES:
        return FailureKind.NOT_SENT
    worth_it = error.code in tries.retry_codes and (error.retriable or has_other_broker)
    return FailureKind.MAYBE_STORED if worth_it else FailureKind.FINAL


def is_outside(error: TianzhouError | None) -> bool:
    """Whether a broker says that it does not have the queue."""
    return (
        isinstance(error, BrokerError)
        and error.code in _OUTSIDE_CODES
        and _OUTSIDE.search(error.remark) is not None
    )


def is_unheard_reply(error: BrokerError) -> bool:
    """Whether a broker says that nobody waits for a reply any more."""
    return error.remark.startswith(_UNHEARD_REPLY)


def doubts_route(error: TianzhouError) -> bool:
    """Whether a failure is a reason to ask for the route again."""
    return not isinstance(error, BrokerError) or error.code in _STALE_CODES or is_outside(error)


class RetryPauses:
    """The pauses between the tries of one send."""

    __slots__ = ("_failure_count", "_pause_s")

    def __init__(self) -> None:
        self._failure_count = 0
        self._pause_s = _PAUSE_MIN_S

    def after_failure(self, broker_count: int) -> float:
        """Seconds until the next try: 0 until each of the brokers has failed once more."""
        self._failure_count += 1
        if self._failure_count < broker_count:
            return 0.0
        self._failure_count = 0
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        # Producers that lost the same broker do not come back in step.
        return pause_s * random.uniform(0.75, 1.0)  # noqa: S311 - spreads load
