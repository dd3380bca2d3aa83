"""Our own requests on one connection that wait for their answer.

An answer finds its request by `opaque`, a 31-bit number counted per connection and never used twice
at the same time. Time-outs need no timer per request: `next_deadline_s` is a time before which
surely none of them has run out, and looking through the table then gives the next such time. With a
steady stream of requests that is about one look per time-out, not one timer per request.
"""

from dataclasses import dataclass
from typing import Protocol

from tianzhou.errors import RemotingError, RequestTimeout
from tianzhou.protocol.command import Command

NEVER_S = float("inf")


class Waiter(Protocol):
    """Who gets an answer, or the error in its place; a future is one. Its methods do not raise."""

    def done(self) -> bool: ...
    def set_result(self, result: Command, /) -> None: ...
    def set_exception(self, exception: RemotingError, /) -> None: ...


@dataclass(slots=True)
class _Waiting:
    future: Waiter
    deadline_s: float
    timeout_ms: int
    code: int


class PendingRequests:
    """Requests without an answer, by opaque."""

    __slots__ = ("_opaque", "_opaque_max", "_waiting", "next_deadline_s")

    def __init__(self, opaque_max: int = 0x7FFFFFFF) -> None:
        self._opaque = 0
        self._opaque_max = opaque_max
        self._waiting: dict[int, _Waiting] = {}
        self.next_deadline_s = NEVER_S

    def __len__(self) -> int:
        return len(self._waiting)

    def next_opaque(self) -> int:
        """A number that no waiting request carries."""
        opaque = self._opaque
        while opaque in self._waiting:
            opaque = opaque + 1 if opaque < self._opaque_max else 0
        self._opaque = opaque + 1 if opaque < self._opaque_max else 0
        return opaque

    def add(self, future: Waiter, code: int, timeout_ms: int, deadline_s: float) -> int:
        """Wait for an answer until the deadline; returns the opaque that the request must carry."""
        opaque = self.next_opaque()
        self._waiting[opaque] = _Waiting(future, deadline_s, timeout_ms, code)
        if deadline_s < self.next_deadline_s:
            self.next_deadline_s = deadline_s
        return opaque

    def answer(self, response: Command) -> bool:
        """Hand a response to its request; False if no request waits for it (any more)."""
        waiting = self._waiting.pop(response.opaque, None)
        if waiting is None or waiting.future.done():
            return False
        waiting.future.set_result(response)
        return True

    def forget(self, opaque: int) -> None:
        """The caller does not wait any longer."""
        self._waiting.pop(opaque, None)

    def expire(self, now_s: float, peer: str) -> None:
        """Fail what has run out of time."""
        late = [opaque for opaque, each in self._waiting.items() if each.deadline_s <= now_s]
        for opaque in late:
            waiting = self._waiting.pop(opaque)
            if not waiting.future.done():
                waiting.future.set_exception(
                    RequestTimeout(
                        f"{peer} has not answered request {waiting.code} "
                        f"within {waiting.timeout_ms} ms"
                    )
                )
        self.next_deadline_s = min(
            (each.deadline_s for each in self._waiting.values()), default=NEVER_S
        )

    def fail_all(self, error: RemotingError) -> None:
        """The connection is lost: every request fails, each with an exception of its own."""
        waiting, self._waiting = self._waiting, {}
        self.next_deadline_s = NEVER_S
        for each in waiting.values():
            if not each.future.done():
                each.future.set_exception(type(error)(*error.args))
