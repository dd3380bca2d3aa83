"""Sending a request to many brokers concurrently, and collecting responses and failures."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tianzhou.errors import TianzhouError

S = TypeVar("S")
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
    gathered = await gather_any(brokers, ask)
    if gathered.failures and not gathered.responses:
        raise next(iter(gathered.failures.values()))
    return gathered


async def gather_any(
    brokers: Iterable[BrokerRef], ask: Callable[[BrokerRef], Awaitable[T]]
) -> Gathered[T]:
    """The same where all may fail."""

    async def one(broker: BrokerRef) -> T | TianzhouError:
        try:
            return await ask(broker)
        except TianzhouError as e:
            return e

    asked = list(brokers)
    gathered: Gathered[T] = Gathered()
    for broker, result in zip(asked, await run_limited(asked, one), strict=True):
        if isinstance(result, TianzhouError):
            gathered.failures[broker] = result
        else:
            gathered.responses[broker] = result
    return gathered


async def run_limited(
    items: Iterable[S], action: Callable[[S], Awaitable[T]], at_once: int = AT_ONCE_MAX
) -> list[T]:
    """The results of an action for each item, some of them at a time; raises the first failure."""
    limit = asyncio.Semaphore(at_once)

    async def one(item: S) -> T:
        async with limit:
            return await action(item)

    return await asyncio.gather(*map(one, items))
