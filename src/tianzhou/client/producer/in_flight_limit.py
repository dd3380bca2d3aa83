"""Back pressure: limits the messages and bytes in flight.

A send is added, and removed when its response arrives. At the limit further sends wait, in order,
until a quarter of the capacity is free again: stopping and starting a sender for every single
message would cost more than the message. One message is always admitted, however large it is.
"""

import asyncio
from collections import deque

from tianzhou.errors import RemoteBusy


class InFlightLimit:
    """Counts messages and bytes in flight. Use it on one event loop."""

    __slots__ = ("_bytes_max", "_count_max", "_empty", "_waiters", "bytes", "count", "is_full")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Event | None = None
        """Set once nothing is in flight; None unless `wait_until_empty` waits."""
        self.count = 0
        self.bytes = 0
        self.is_full = False
        """True if further sends must call `wait_for_capacity`."""

    def add(self, size_bytes: int, count: int = 1) -> None:
        """Count a message; check `is_full` before. `wait_for_capacity` counts it by itself."""
        self.count += count
        self.bytes += size_bytes
        if self.count >= self._count_max or self.bytes >= self._bytes_max:
            self.is_full = True

    def remove(self, size_bytes: int, count: int = 1) -> None:
        """Messages were stored, or failed."""
        self.count -= count
        self.bytes -= size_bytes
        if self.is_full:
            self._admit_waiters()
        if not self.count and self._empty is not None:
            self._empty.set()

    async def wait_for_capacity(self, timeout_ms: float) -> None:
        """Wait for capacity; then one message is counted as in flight.

        Raises RemoteBusy after the time-out.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await waiter
        except BaseException as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.done() and not waiter.cancelled():
                self.remove(0)  # the capacity that it was given is for the next waiter
            if isinstance(error, TimeoutError):
                raise RemoteBusy(
                    f"{self.count} messages of {self.bytes} bytes are in flight, and none was "
                    f"stored within {timeout_ms:.0f} ms"
                ) from None
            raise

    async def wait_until_empty(self, timeout_ms: int) -> bool:
        """Wait until nothing is in flight; False after the time-out."""
        if not self.count:
            return True
        self._empty = self._empty or asyncio.Event()
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _admit_waiters(self) -> None:
        """Admit as many waiters as fit; they are counted now and resume later."""
        if self.count * 4 > self._count_max * 3 or self.bytes * 4 > self._bytes_max * 3:
            return
        while self._waiters and self.count < self._count_max:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                self.count += 1
        self.is_full = self.count >= self._count_max or bool(self._waiters)
