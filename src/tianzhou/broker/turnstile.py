"""Lets a few through in each turn of the event loop, so that a storm of them cannot hold it up.

Requests that cost much and can wait a moment ask `admits`; those that are not admitted wait in
line, in the order in which they came. Between two turns the loop serves everybody else.
"""

import asyncio
from collections import deque


class Turnstile:
    """One line of requests."""

    def __init__(self, admitted_a_turn: int) -> None:
        self._admitted_a_turn = admitted_a_turn
        self._admitted = 0
        self._is_planned = False
        self._line: deque[asyncio.Future[None]] = deque()

    def admits(self) -> bool:
        """Whether one may go on at once."""
        if self._line or self._admitted >= self._admitted_a_turn:
            return False
        self._admitted += 1
        self._plan()
        return True

    async def wait(self) -> None:
        """Go on when it is one's turn."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(place)
        self._plan()
        await place

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_planned = False
        self._admitted = 0
        while self._line and self._admitted < self._admitted_a_turn:
            place = self._line.popleft()
            if not place.done():  # It may have been cancelled.
                self._admitted += 1
                place.set_result(None)
        if self._admitted:
            # Those who come in this turn must wait for the next, and in that one nobody counts.
            self._plan()
