"""`async for` over a push consumer without handlers."""

from collections.abc import AsyncIterator
from typing import Protocol

from tianzhou.client.message import ReceivedMessage


class MessageSource(Protocol):
    """The part of a push consumer that a stream uses."""

    async def next_message(self) -> ReceivedMessage | None: ...
    async def ack(self, message: ReceivedMessage) -> None: ...


class MessageStream:
    """One `async for`; asking for the next message acknowledges the one before."""

    def __init__(self, consumer: MessageSource) -> None:
        self._consumer = consumer
        self._last: ReceivedMessage | None = None

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        if self._last is not None:
            last, self._last = self._last, None
            await self._consumer.ack(last)
        message = await self._consumer.next_message()
        if message is None:
            raise StopAsyncIteration
        self._last = message
        return message
