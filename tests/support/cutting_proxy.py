"""A proxy that injects random faults into connections: it cuts, stalls, delays and corrupts them.

    async with trouble("127.0.0.1:10911", "127.0.0.2:10911", seed=7) as proxy:
        ...
        proxy.calm()          # from now on everything passes

Faults depend on the seed and on how the traffic is divided into chunks. A corrupted chunk is random
from its first byte to its last: only TCP protects single bits of a RocketMQ header, so the receiver
would accept a flipped digit of an offset, which proves nothing.

With `Flips` it only flips single bits, in a part of the frames and in one direction chosen by the
test, so that the test knows which of them can be detected.
"""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

_CHUNK_BYTES = 64 * 1024
_GARBLED_BYTES_MAX = 16 * 1024
"""Larger chunks may begin in the middle of a frame, where noise could be accepted as a body."""


@dataclass(frozen=True, slots=True)
class Odds:
    """The probability of each fault, per chunk."""

    cut: float = 0.01
    stall: float = 0.01
    delay: float = 0.05
    garble: float = 0.005
    stall_s: float = 1.5
    delay_s: float = 0.05


Part = Literal["length", "header", "body"]
Way = Literal["to the broker", "to the client"]


@dataclass(frozen=True, slots=True)
class Flips:
    """One bit in some of the frames is flipped."""

    part: Part
    way: Way = "to the client"
    odds: float = 0.05

    def flipped(self, frame: bytes, dice: random.Random) -> bytes:
        """The frame with one bit of the part flipped; unchanged if it has no such part."""
        header_end = 8 + (int.from_bytes(frame[4:8]) & 0xFFFFFF)
        starts = {"length": (0, 4), "header": (4, header_end), "body": (header_end, len(frame))}
        start, stop = starts[self.part]
        if start >= stop:
            return frame
        damaged = bytearray(frame)
        damaged[dice.randrange(start, stop)] ^= 1 << dice.randrange(8)
        return bytes(damaged)


@dataclass(slots=True)
class Proxy:
    """A running proxy, and what it has done."""

    target: tuple[str, int]
    random: random.Random
    odds: Odds
    flips: Flips | None = None
    is_calm: bool = False
    fates: Counter[str] = field(default_factory=Counter[str])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    def calm(self) -> None:
        """Inject no more faults."""
        self.is_calm = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self._join(reader, writer)
        except OSError:
            pass  # closed connections are expected here
        finally:
            self.tasks.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        try:
            ways = (
                self._pass(reader, there_writer, "to the broker"),
                self._pass(there_reader, writer, "to the client"),
            )
            tasks = [asyncio.create_task(each) for each in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there_writer.transport.abort()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        if self.flips is not None:
            await self._pass_frames(reader, writer, self.flips if self.flips.way == way else None)
            return
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

    async def _pass_frames(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flips: Flips | None
    ) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                length = await reader.readexactly(4)
                frame = length + await reader.readexactly(int.from_bytes(length))
                if flips and not self.is_calm and self.random.random() < flips.odds:
                    damaged = flips.flipped(frame, self.random)
                    self.fates["flip" if damaged != frame else "pass"] += 1
                    frame = damaged
                writer.write(frame)
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
    listen: tuple[str, int],
    target: tuple[str, int],
    *,
    seed: int,
    odds: Odds | None = None,
    flips: Flips | None = None,
) -> AsyncGenerator[Proxy]:
    """A proxy from one address to another."""
    proxy = Proxy(target, random.Random(seed), odds or Odds(), flips)
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
