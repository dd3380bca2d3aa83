"""Requests sent on one connection that wait for their response.

A response is matched to its request by `opaque`, a 31-bit number counted per connection and unique
among pending requests. Time-outs need no timer per request: none expires before `next_deadline_s`,
and a scan of the table at that time computes the next one. With a steady stream of requests there
is about one scan per time-out.
"""

from dataclasses import dataclass
from typing import Protocol

from tianzhou.errors import RemotingError, RequestTimeout
from tianzhou.protocol.command import Command

NEVER_S = float("inf")


class Waiter(Protocol):
    """Receives the response or an error, such as a future does. Its methods do not raise."""

    def done(self) -> bool: ...
    def set_result(self, result: Command, /) -> None: ...
    def set_exception(self, exception: RemotingError, /) -> None: ...


@dataclass(slots=True)
class _Pending:
    future: Waiter
    deadline_s: float
    timeout_ms: int
    code: int


class PendingRequests:
    """Requests without a response, by opaque."""

    __slots__ = ("_opaque", "_opaque_max", "_pending", "next_deadline_s")

    def __init__(self, opaque_max: int = 0x7FFFFFFF) -> None:
        self._opaque = 0
        self._opaque_max = opaque_max
        self._pending: dict[int, _Pending] = {}
        self.next_deadline_s = NEVER_S

    def __len__(self) -> int:
        return len(self._pending)

    def next_opaque(self) -> int:
        """An opaque that no pending request has."""
        opaque = self._opaque
        while opaque in self._pending:
            opaque = opaque + 1 if opaque < self._opaque_max else 0
        self._opaque = opaque + 1 if opaque < self._opaque_max else 0
        return opaque

    def add(self, future: Waiter, code: int, timeout_ms: int, deadline_s: float) -> int:
        """Wait for a response until the deadline; returns the opaque to set in the request."""
        opaque = self.next_opaque()
        self._pending[opaque] = _Pending(future, deadline_s, timeout_ms, code)
        if deadline_s < self.next_deadline_s:
            self.next_deadline_s = deadline_s
        return opaque

    def answer(self, response: Command) -> bool:
        """Pass a response to the waiter of its request; False if that is no longer pending."""
        pending = self._pending.pop(response.opaque, None)
        if pending is None or pending.future.done():
            return False
        pending.future.set_result(response)
        return True

    def forget(self, opaque: int) -> None:
        """Stop waiting for a response."""
        self._pending.pop(opaque, None)

    def expire(self, now_s: float, peer: str) -> None:
        """Fail the requests whose deadline has passed."""
        late = [opaque for opaque, each in self._pending.items() if each.deadline_s <= now_s]
        for opaque in late:
            pending = self._pending.pop(opaque)
            if not pending.future.done():
                pending.future.set_exception(
                    RequestTimeout(
                        f"{peer} has not answered request {pending.code} "
                        f"within {pending.timeout_ms} ms"
                    )
                )
        self.next_deadline_s = min(
            (each.deadline_s for each in self._pending.values()), default=NEVER_S
        )

    def fail_all(self, error: RemotingError) -> None:
        """Fail every request, each with its own exception: the connection is lost."""
        pending, self._pending = self._pending, {}
        self.next_deadline_s = NEVER_S
        for each in pending.values():
            if not each.future.done():
                each.future.set_exception(type(error)(*error.args))
