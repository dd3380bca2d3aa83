"""A proxy that mistreats connections at random: it cuts, stalls, delays and garbles them.

    async with trouble("127.0.0.1:10911", "127.0.0.2:10911", seed=7) as proxy:
        ...
        proxy.calm()          # from now on everything passes

What happens is a matter of the seed and of how the traffic falls into chunks. A garbled chunk is
noise from its first byte to its last: nothing protects single bits of a RocketMQ header but TCP,
so a flipped digit of an offset would be obeyed by whoever reads it, and proves nothing.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

_CHUNK_BYTES = 64 * 1024
_GARBLED_BYTES_MAX = 16 * 1024
"""Larger chunks may begin in the middle of a frame, where noise could pass for a body."""


@dataclass(frozen=True, slots=True)
class Odds:
    """How likely a chunk meets each fate."""

    cut: float = 0.01
    stall: float = 0.01
    delay: float = 0.05
    garble: float = 0.005
    stall_s: float = 1.5
    delay_s: float = 0.05


@dataclass(slots=True)
class Proxy:
    """A running proxy, and what it has done."""

    target: tuple[str, int]
    random: random.Random
    odds: Odds
    is_calm: bool = False
    fates: Counter[str] = field(default_factory=Counter[str])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def calm(self) -> None:
        """Let everything pass from now on."""
        self.is_calm = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._join(reader, writer)
        except OSError:
            pass  # a torn connection is what this is for
        finally:
            self.tasks.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        try:
            ways = (self._pass(reader, there_writer), self._pass(there_reader, writer))
            tasks = [asyncio.create_task(each) for each in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there_writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK_BYTES):
                fate = self._fate(len(chunk))
                self.fates[fate] += 1
                if fate == "cut":
                    return
                if fate == "stall":
                    await asyncio.sleep(self.odds.stall_s)
                elif fate == "delay":
                    await asyncio.sleep(self.random.random() * self.odds.delay_s)
                elif fate == "garble":
                    chunk = self.random.randbytes(len(chunk))
                writer.write(chunk)
                await writer.drain()

    def _fate(self, size_bytes: int) -> str:
        if self.is_calm:
            return "pass"
        number = self.random.random()
        for name in ("cut", "stall", "delay", "garble"):
            number -= getattr(self.odds, name)
            if number < 0:
                unfit = name == "garble" and size_bytes > _GARBLED_BYTES_MAX
                return "pass" if unfit else name
        return "pass"


@asynccontextmanager
async def trouble(
    listen: tuple[str, int], target: tuple[str, int], *, seed: int, odds: Odds | None = None
) -> AsyncGenerator[Proxy]:
    """A proxy from one address to another."""
    proxy = Proxy(target, random.Random(seed), odds or Odds())
    server = await asyncio.start_server(proxy.serve, *listen)
    try:
        yield proxy
    finally:
        server.close()
        tasks = tuple(proxy.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()
