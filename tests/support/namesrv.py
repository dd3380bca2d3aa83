"""Helpers of the nameserver's tests: servers in this process and in separate ones, brokers."""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support import registration
from tianzhou.clock import Clock, steady_ms
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.protocol import bodies
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.route import TopicQueueMappingInfo, TopicRouteData
from tianzhou.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command, HeaderEncoding
from tianzhou.protocol.version import CURRENT_VERSION, V4_9_4, V5_0_0
from tianzhou.remoting.address import format_address
from tianzhou.remoting.client import Client

PATIENCE_S = 60.0
"""Deadline of waits; reached only when a test fails."""

OLD_VERSION = V4_9_4 - 1
"""A client that reads fastjson's dialect only."""


async def eventually(condition: Callable[[], bool], seen: Callable[[], object]) -> None:
    """Wait until a condition holds; if it never does, fail with what was seen last."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline_s:
            pytest.fail(f"still not so after {PATIENCE_S} s; seen: {seen()}")
        await asyncio.sleep(0.005)


# -- asking ---------------------------------------------------------------------------------------


@dataclass
class Asker:
    """A client of one nameserver."""

    address: str
    client: Client = field(default_factory=Client)

    async def ask(
        self,
        code: RequestCode,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        version: int = CURRENT_VERSION,
        encoding: HeaderEncoding = HeaderEncoding.JSON,
    ) -> Command:
        request = Command(
            code=code,
            ext_fields=dict(fields) if fields is not None else None,
            body=body,
            version=version,
            encoding=encoding,
        )
        return await self.client.request(self.address, request, timeout_ms=30_000)

    async def get(
        self, code: RequestCode, fields: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """The response, which must be a success."""
        answer = await self.ask(code, fields, body)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    async def route(self, topic: str) -> TopicRouteData | None:
        answer = await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer
        return bodies.decode(TopicRouteData, answer.body)

    async def until_no_route(self, topic: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while (route := await self.route(topic)) is not None:
            if time.monotonic() > deadline_s:
                pytest.fail(f"{topic} still has a route: {route}")
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def asking(address: str) -> AsyncGenerator[Asker]:
    asker = Asker(address)
    try:
        yield asker
    finally:
        await asker.client.close()


# -- brokers --------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Broker:
    """The registration of a broker."""

    name: str = "broker-a"
    broker_id: int = 0
    addr: str = "127.0.0.1:10911"
    cluster: str = "DefaultCluster"
    topics: dict[str, int] = field(default_factory=lambda: {"orders": 6, "TBW102": 7})
    """Permissions by topic."""
    counter: int = 1
    state_version: int | None = None
    """The epoch of an elected master."""
    mappings: dict[str, TopicQueueMappingInfo] | None = None
    version: int = CURRENT_VERSION
    compressed: bool = False
    more: dict[str, str] = field(default_factory=dict[str, str])
    """Further fields of the header."""

    def data_version(self) -> DataVersion:
        return DataVersion(
            state_version=self.state_version, timestamp=1_700_000_000_000, counter=self.counter
        )

    def body(self) -> bytes:
        table = TopicConfigTable(
            topics={
                topic: TopicConfig(
                    topic_name=topic, read_queue_count=4, write_queue_count=4, perm=perm
                )
                for topic, perm in self.topics.items()
            },
            data_version=self.data_version(),
            mapping_infos=self.mappings,
        )
        return registration.encode(
            RegisterBrokerBody(topic_config=table),
            compressed=self.compressed,
            broker_version=self.version,
        )

    def identity(self) -> dict[str, str]:
        return {
            "brokerName": self.name,
            "brokerAddr": self.addr,
            "clusterName": self.cluster,
            "brokerId": str(self.broker_id),
        }

    async def register(self, asker: Asker, body: bytes | None = None) -> Command:
        body = self.body() if body is None else body
        fields = self.identity() | {
            "haServerAddr": f"{self.addr}-ha",
            "compressed": "true" if self.compressed else "false",
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        }
        return await asker.ask(
            RequestCode.REGISTER_BROKER, fields | self.more, body, version=self.version
        )


def broker_5x(**more: str) -> dict[str, str]:
    """Fields that only a 5.x broker sends."""
    return {"enableActingMaster": "true", "heartbeatTimeoutMillis": "10000"} | more


VERSION_5 = V5_0_0


# -- a nameserver in this process -----------------------------------------------------------------


@contextlib.asynccontextmanager
async def namesrv(
    folder: Path, pairs: Mapping[str, object] | None = None, *, clock: Clock = steady_ms
) -> AsyncGenerator[Asker]:
    """A nameserver with its files in `folder`, and a client of it."""
    defaults: dict[str, object] = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": folder / "kvConfig.json",
        "configStorePath": folder / "namesrv.properties",
        "scanNotActiveBrokerInterval": 10,
    }
    values = defaults | dict(pairs or {})
    given = [Given(key, str(value), "test") for key, value in values.items()]
    loaded = load(NamesrvConfig, given)
    assert not loaded.warnings
    server = NameServer(LiveSettings(loaded), clock=clock)
    try:
        async with asking(format_address(*await server.start())) as asker:
            yield asker
    finally:
        await server.stop()


# -- a nameserver in its own process --------------------------------------------------------------

COMMANDS = Path(sys.executable).parent


@dataclass
class Process:
    """A running program, and its output."""

    popen: subprocess.Popen[bytes]
    output: Path
    port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def text(self) -> str:
        return self.output.read_text()


def environment(folder: Path, **more: str) -> dict[str, str]:
    """An environment whose home is `folder`, so that no test touches the user's own files."""
    kept = {key: os.environ[key] for key in ("PATH", "LANG", "TIANZHOU_PURE") if key in os.environ}
    return kept | {"HOME": str(folder), "TIANZHOU_RUN_DIR": str(folder / "run")} | more


def run(
    folder: Path, command: str, *arguments: str, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [COMMANDS / command, *arguments],
        env=environment(folder, **more),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@contextlib.contextmanager
def started(folder: Path, command: str, *arguments: str, **more: str) -> Generator[Process]:
    """Start a nameserver, wait until it logs its port; kill it if it is left running."""
    folder.mkdir(parents=True, exist_ok=True)
    output = folder / f"output-{time.monotonic_ns()}.txt"
    with output.open("wb") as file:
        popen = subprocess.Popen(
            [COMMANDS / command, *arguments],
            env=environment(folder, **more),
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Process(popen, output, _wait_for_port(popen, output))
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait(PATIENCE_S)


def _wait_for_port(popen: subprocess.Popen[bytes], output: Path) -> int:
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        listening = re.search(
            r"boot success\..* address \S+:(\d+)$", output.read_text(), re.MULTILINE
        )
        if listening:
            return int(listening[1])
        if popen.poll() is not None or time.monotonic() > deadline_s:
            pytest.fail(f"no nameserver, exit code {popen.poll()}:\n{output.read_text()}")
        time.sleep(0.01)
