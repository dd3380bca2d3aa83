"""The cluster for tests: real servers in this process, on their own event loop and thread.

The servers do not share the loop of the test, so blocking and asynchronous tests use a cluster in
the same way, and a test that stops its loop with a message in flight does not affect them.
"""

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Self, TypeVar

from tianzhou.admin.admin_client import Admin
from tianzhou.admin.fanout import BrokerRef
from tianzhou.broker.config import BrokerConfig, load_broker_config
from tianzhou.broker.server import Broker
from tianzhou.config.live import LiveSettings
from tianzhou.config.settings import Given, load
from tianzhou.errors import TianzhouError
from tianzhou.names import MASTER_ID
from tianzhou.namesrv.config import NamesrvConfig
from tianzhou.namesrv.server import NameServer
from tianzhou.protocol.bodies.topics import TopicConfig
from tianzhou.remoting.address import format_address
from tianzhou.testing.moving_clock import MovingClock

LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 60.0
_STORE_MIB = 16

SMALL: dict[str, object] = {
    "listenPort": 0,
    "bindAddress": LOOPBACK,
    "brokerIP1": LOOPBACK,
    "mappedFileSizeCommitLog": _STORE_MIB * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 10_000,
    "maxHashSlotNum": 10_000,
    "maxIndexNum": 40_000,
    "enablePropertyFilter": "true",
    # A full disk or a busy moment of a developer's machine is no reason to fail tests.
    "diskMaxUsedSpaceRatio": 95,
    "diskSpaceCleanForciblyRatio": 99,
    "diskSpaceWarningLevelRatio": 100,
    "osPageCacheBusyTimeOutMills": 60_000,
    "shutdownWaitTimeSeconds": 1,
}
"""Settings of a broker with small files; all others have RocketMQ's defaults."""

T = TypeVar("T")


class Cluster:
    """One nameserver and some brokers, running from `start` or `with` until `stop`.

    `topics` maps topics to their number of queues on each broker. `settings` are settings of the
    brokers, by RocketMQ's keys. `folder` is for the stores; by default they are deleted at the end.
    """

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Mapping[str, int] | None = None,
        folder: Path | None = None,
        **settings: object,
    ) -> None:
        """Raises ConfigError for invalid settings."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self.clock = MovingClock()
        self.namesrv_address = ""
        """The address of the nameserver, once started."""
        self._broker_count = brokers
        self._topics = dict(topics or {})
        self._settings = settings
        self._given_folder = folder
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = folder or Path()
        self._namesrv: NameServer | None = None
        self._brokers: dict[str, Broker] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._load("broker-0")

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all servers; returns when messages can be sent. Raises TianzhouError."""
        if self._thread is not None:
            raise TianzhouError("the cluster is already running")
        if self._given_folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tianzhou-testing-")
            self._folder = Path(self._temporary.name)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop,), name="tianzhou-testing"
        )
        self._thread.start()
        try:
            self._on_loop(self._start)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop all servers; idempotent, also after a failed start."""
        thread, self._thread = self._thread, None
        if thread is not None and self._loop is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_START_TIMEOUT_S)
            finally:
                self._loop.call_soon_threadsafe(self._loop.stop)
                thread.join()
                self._loop = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.stop)

    # -- for tests ---------------------------------------------------------------------------------

    @property
    def broker_names(self) -> list[str]:
        """All brokers, stopped ones included."""
        return [f"broker-{number}" for number in range(self._broker_count)]

    @property
    def broker_addresses(self) -> dict[str, str]:
        """The addresses of running brokers, by name."""
        return {name: broker.address for name, broker in self._brokers.items()}

    def create_topic(self, topic: str, queues: int = 4, *, ordered: bool = False) -> None:
        """Create or change a topic on every broker; the nameserver knows it when this returns."""
        self._on_loop(lambda: self._create_topics({topic: queues}, ordered=ordered))

    def advance(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Advance the clocks of all servers; messages that become due are delivered immediately."""
        self._move(self.clock.advance, round(seconds * 1000) + ms)

    def jump(self, *, seconds: float = 0, ms: int = 0) -> None:
        """Set the wall clock of all servers forward or back, as an operator or NTP does.

        Monotonic clocks do not move: leases, locks and time-outs do not end.
        """
        self._move(self.clock.jump, round(seconds * 1000) + ms)

    def _move(self, move: Callable[[int], None], by_ms: int) -> None:
        move(by_ms)

        async def notify() -> None:
            for broker in self._brokers.values():
                broker.clock_moved()

        self._on_loop(notify)

    def stop_broker(self, name: str = "broker-0") -> None:
        """Stop one broker cleanly; its store stays. Raises KeyError if it is not running."""
        broker = self._brokers.pop(name)
        self._on_loop(broker.stop)

    def start_broker(self, name: str = "broker-0") -> None:
        """Start a stopped broker again with its store, on another port."""
        if name in self._brokers:
            raise TianzhouError(f"{name} runs already")
        if name not in self.broker_names:
            raise TianzhouError(f"there is no {name}, only {', '.join(self.broker_names)}")
        self._on_loop(lambda: self._start_broker(name))

    # -- server thread -----------------------------------------------------------------------------

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        finally:
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def _on_loop(self, work: Callable[[], Awaitable[T]]) -> T:
        if self._loop is None:
            raise TianzhouError("this cluster does not run")

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_START_TIMEOUT_S)

    async def _start(self) -> None:
        pairs = {
            "listenPort": 0,
            "bindAddress": LOOPBACK,
            "kvConfigPath": self._folder / "namesrv" / "kvConfig.json",
            "configStorePath": self._folder / "namesrv" / "namesrv.properties",
        }
        self._namesrv = NameServer(LiveSettings(load(NamesrvConfig, _given(pairs))))
        host, port = await self._namesrv.start()
        self.namesrv_address = format_address(host, port)
        for name in self.broker_names:
            await self._start_broker(name)
        await self._create_topics(self._topics)

    async def _create_topics(self, topics: Mapping[str, int], *, ordered: bool = False) -> None:
        async with Admin(self.namesrv_address) as admin:
            for name, broker in self._brokers.items():
                for topic, queues in topics.items():
                    config = TopicConfig(
                        topic_name=topic,
                        read_queue_count=queues,
                        write_queue_count=queues,
                        order=ordered,
                    )
                    await admin.topics.put(BrokerRef(name, MASTER_ID, broker.address, ""), config)
                await broker.register()

    async def _start_broker(self, name: str) -> None:
        broker = Broker(self._load(name), clock=self.clock, steady=self.clock.steady)
        try:
            await broker.start()
        except BaseException:
            await broker.stop()
            raise
        self._brokers[name] = broker

    def _load(self, name: str) -> LiveSettings[BrokerConfig]:
        pairs = (
            SMALL
            | {
                "brokerName": name,
                "namesrvAddr": self.namesrv_address,
                "storePathRootDir": self._folder / name,
                "brokerConfigPath": self._folder / f"{name}.properties",
            }
            | self._settings
        )
        return LiveSettings(load_broker_config(environ={}, flags=_given(pairs)))

    async def _stop(self) -> None:
        servers: list[Broker | NameServer] = [*self._brokers.values()]
        if self._namesrv is not None:
            servers.append(self._namesrv)
        self._brokers, self._namesrv = {}, None
        for server in servers:
            await server.stop()


def _given(pairs: Mapping[str, object]) -> list[Given]:
    return [
        Given(key, str(value), "tianzhou.testing", deliberate=True) for key, value in pairs.items()
    ]
