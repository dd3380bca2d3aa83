"""A master with a script: answers the hello, and streams its log as Apache's or as ours does.

    async with scripted_master(log, is_ours=True) as master:
        ...
        assert master.reports[-1][-1] == log.end_log_offset

Apache's (4.9.7 and 5.5.0): the first eight bytes are a report, it begins there or at its last file,
its bodies have 32 KiB at most. It looks for news every few milliseconds.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

from tests.support.memory_log import MemoryLog
from tests.support.remoting import serving
from tianzhou.ha.epochs import Epoch, Epochs, range_at
from tianzhou.ha.frames import (
    DEFAULT_REPORT,
    OPENING_BYTES,
    REPORT,
    Head,
    encode_default_head,
    encode_head,
)
from tianzhou.ha.hello import Broker, LogState, make_response, read_request, refusal_of
from tianzhou.protocol import bodies, headers
from tianzhou.protocol.bodies.topics import KVTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, response_to
from tianzhou.remoting import error_responses
from tianzhou.remoting.address import format_address
from tianzhou.remoting.connection import Connection

TOKEN = bytes(range(16))
_POLL_S = 0.002


@dataclass
class ScriptedMaster:
    """The script is its attributes; they may be changed at any time."""

    log: MemoryLog
    is_ours: bool
    name: str = "broker-a"
    listen: str = ""
    ha_port: int = 0
    epochs: Epochs = (Epoch(1, 0),)
    body_bytes: int = 32 * 1024
    heartbeat_s: float = 0.05
    refusal: str | None = None
    """The remark of a refused hello."""
    response_code: int | None = None
    """Instead of a response to the hello."""
    silent: bool = False
    """Sends nothing on the HA port."""
    lie: Callable[[int, bytes], bytes] | None = None
    """The frame for a log offset and a body."""
    hellos: list[Command] = field(default_factory=list[Command])
    openings: list[bytes] = field(default_factory=list[bytes])
    """What HA connections began with, before the first report."""
    reports: list[list[int]] = field(default_factory=list[list[int]])
    """Of each HA connection."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list[asyncio.StreamWriter])
    scripts: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    @property
    def ha_address(self) -> str:
        return format_address("127.0.0.1", self.ha_port)

    def addresses(self) -> tuple[str | None, str | None]:
        return self.listen, self.ha_address

    def reset(self) -> None:
        """Cut all HA connections."""
        writers, self.writers = self.writers, []
        for writer in writers:
            if not writer.transport.is_closing():  # uvloop raises for a closed one
                writer.transport.abort()

    async def ended(self) -> None:
        """Cut all connections, and wait until their scripts have ended."""
        self.reset()
        await asyncio.gather(*self.scripts)

    # -- the listen port -------------------------------------------------------------------------

    def state(self) -> LogState:
        log = self.log
        return LogState(
            first_offset=log.first_log_offset, end_offset=log.end_log_offset,
            file_bytes=log.file_bytes, epochs=self.epochs,
        )  # fmt: skip

    def handle(self, _: Connection, request: Command) -> Command:
        if request.code == RequestCode.GET_BROKER_RUNTIME_INFO:
            state = self.state()
            table = {
                "commitLogMinOffset": str(state.first_offset),
                "commitLogMaxOffset": str(state.end_offset),
            }
            return response_to(request, 0, body=bodies.encode(KVTable(table=table)))
        assert request.code == RequestCode.HA_HELLO
        self.hellos.append(request)
        if not self.is_ours:
            return error_responses.not_supported(request)
        if self.response_code is not None:
            return response_to(request, self.response_code, remark="starting")
        own = Broker(cluster="c", name=self.name, id=0, store_id="0" * 32)
        refusal = self.refusal or refusal_of(read_request(request), own, self.state())
        if refusal is not None:
            return response_to(request, ResponseCode.SYSTEM_ERROR, remark=refusal)
        header = make_response(self.state(), token=TOKEN, ha_port=self.ha_port)
        return response_to(request, 0, ext_fields=headers.encode(header))

    # -- the HA port -----------------------------------------------------------------------------

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.scripts.append(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        reports: list[int] = []
        number = len(self.reports)
        self.reports.append(reports)
        self.openings.append(b"")
        reading: asyncio.Task[None] | None = None
        try:
            if self.is_ours:
                self.openings[number] = await reader.readexactly(OPENING_BYTES)
            reading = asyncio.create_task(self._read_reports(reader, reports))
            await self._send(writer, reports, reading)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _read_reports(self, reader: asyncio.StreamReader, reports: list[int]) -> None:
        layout = REPORT if self.is_ours else DEFAULT_REPORT
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                reports.append(layout.unpack(await reader.readexactly(layout.size))[-1])

    async def _send(
        self, writer: asyncio.StreamWriter, reports: list[int], reading: asyncio.Task[None]
    ) -> None:
        loop = asyncio.get_running_loop()
        while not reports:
            if reading.done():
                return
            await asyncio.sleep(_POLL_S)
        log, position, sent_s = self.log, self._start(reports[0]), loop.time()
        while not reading.done():
            body = b"" if self.silent else log.body(position, self._body_max(position))
            if body or (loop.time() - sent_s >= self.heartbeat_s and not self.silent):
                writer.write(self._frame(position, body))
                await writer.drain()
                position, sent_s = position + len(body), loop.time()
            else:
                await asyncio.sleep(_POLL_S)

    def _start(self, reported: int) -> int:
        if reported:
            return reported
        log = self.log
        return log.first_log_offset if self.is_ours else (
            log.end_log_offset - log.end_log_offset % log.file_bytes
        )  # fmt: skip

    def _body_max(self, position: int) -> int:
        _, stop = range_at(self.epochs, position)
        return self.body_bytes if stop is None else min(self.body_bytes, stop - position)

    def _frame(self, position: int, body: bytes) -> bytes:
        if self.lie is not None:
            return self.lie(position, body)
        if not self.is_ours:
            return encode_default_head(position, len(body)) + body
        (epoch, start), _ = range_at(self.epochs, position)
        return encode_head(Head(position, len(body), epoch, start)) + body


@contextlib.asynccontextmanager
async def scripted_master(log: MemoryLog, *, is_ours: bool) -> AsyncGenerator[ScriptedMaster, None]:
    master = ScriptedMaster(log, is_ours)
    ha_server = await asyncio.start_server(master.accept, "127.0.0.1", 0)
    master.ha_port = ha_server.sockets[0].getsockname()[1]
    async with serving(master.handle) as (_, master.listen):
        try:
            yield master
        finally:
            ha_server.close()
            await master.ended()
            await ha_server.wait_closed()
