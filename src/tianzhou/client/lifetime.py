"""Base of clients that are started and closed."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Lifetime(ABC):
    """`async with` starts it and closes it."""

    @abstractmethod
    async def start(self) -> None:
        """Start the client."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the client."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
