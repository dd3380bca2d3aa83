"""Sending a request to many brokers concurrently, and collecting responses and failures."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tianzhou.errors import TianzhouError

T = TypeVar("T")

AT_ONCE_MAX = 32
"""Maximum number of concurrent requests."""


@dataclass(frozen=True, slots=True, order=True)
class BrokerRef:
    """One broker process: master (id 0) or slave."""

    name: str
    broker_id: int
    address: str
    cluster: str

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0

    @property
    def label(self) -> str:
        """Display name: "broker-a", or "broker-a[1]" for a slave."""
        return self.name if self.is_master else f"{self.name}[{self.broker_id}]"


@dataclass(frozen=True, slots=True)
class Gathered(Generic[T]):
    """Responses and failures by broker."""

    responses: dict[BrokerRef, T] = field(default_factory=dict[BrokerRef, T])
    failures: dict[BrokerRef, TianzhouError] = field(default_factory=dict[BrokerRef, TianzhouError])

    @property
    def warnings(self) -> list[str]:
        """One line for each failure."""
        return [f"{at.label} ({at.address}): {why}" for at, why in self.failures.items()]


async def gather(
    brokers: Iterable[BrokerRef], ask: Callable[[BrokerRef], Awaitable[T]]
) -> Gathered[T]:
    """Send a request to every broker concurrently. If all fail, the first failure is raised."""
    gathered: Gathered[T] = Gathered()
    limit = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(broker: BrokerRef) -> None:
        async with limit:
            try:
                gathered.responses[broker] = await ask(broker)
            except TianzhouError as e:
                gathered.failures[broker] = e

    asked = list(brokers)
    async with asyncio.TaskGroup() as tasks:
        for broker in asked:
            tasks.create_task(one(broker))
    if gathered.failures and not gathered.responses:
        raise next(gathered.failures[broker] for broker in asked)
    # Responses arrive in any order; they are returned in the order of `brokers`.
    return Gathered(
        {broker: gathered.responses[broker] for broker in asked if broker in gathered.responses},
        {broker: gathered.failures[broker] for broker in asked if broker in gathered.failures},
    )
