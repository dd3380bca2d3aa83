"""When a send is retried, and after which pause.

    NOT_SENT       no connection, no master, or a broker that is starting, stopping or busy. Nothing
                   is stored, so the send is retried until its deadline
    MAYBE_STORED   a lost connection, no response, or an error that another broker may not return.
                   The message may be stored, so the number of retries is limited
    FINAL          retrying does not help: access denied, message too large, unknown topic

Errors carry the flags that decide this (`tianzhou.errors`). A retry on another broker follows
immediately; a second attempt on the same broker follows after a pause, which doubles up to a limit.

Sans-IO: no clock and no network.
"""

import enum
import random
from dataclasses import dataclass

from tianzhou.errors import BrokerError, RemotingError, TianzhouError

_PAUSE_MIN_S = 0.02
_PAUSE_MAX_S = 0.25


@dataclass(frozen=True, slots=True)
class RetryRule:
    """Limits the retries of a send after failures that may have stored the message."""

    retry_count: int
    on_error_response: bool = False
    """Whether error responses are retried, too, if another broker may succeed."""
    until_ok: bool = False
    """Whether weaker durability (a late flush or replica) is retried, too."""


NO_RETRY = RetryRule(0)
"""For sends that must not be stored twice: those to a queue that the program chose."""


class FailureKind(enum.Enum):
    """What a failure means for the retries; see the module."""

    NOT_SENT = "not sent"
    MAYBE_STORED = "maybe stored"
    FINAL = "final"


def failure_kind(error: TianzhouError, rule: RetryRule, *, has_other_broker: bool) -> FailureKind:
    """Classify the failure of one attempt."""
    if error.nothing_stored and error.retriable:
        return FailureKind.NOT_SENT
    if isinstance(error, RemotingError):
        return FailureKind.MAYBE_STORED if error.retriable else FailureKind.FINAL
    if (
        isinstance(error, BrokerError)
        and rule.on_error_response
        and error.other_broker_may_succeed
        and (error.retriable or has_other_broker)
    ):
        return FailureKind.MAYBE_STORED
    return FailureKind.FINAL


class RetryPauses:
    """The pauses between the attempts of one send."""

    __slots__ = ("_failure_count", "_pause_s")

    def __init__(self) -> None:
        self._failure_count = 0
        self._pause_s = _PAUSE_MIN_S

    def after_failure(self, broker_count: int) -> float:
        """Seconds until the next attempt: 0 until each of the brokers has failed once more."""
        self._failure_count += 1
        if self._failure_count < broker_count:
            return 0.0
        self._failure_count = 0
        pause_s = self._pause_s
        self._pause_s = min(pause_s * 2, _PAUSE_MAX_S)
        # Jitter: producers that lost the same broker do not retry in step.
        return pause_s * random.uniform(0.75, 1.0)  # noqa: S311 - spreads load
