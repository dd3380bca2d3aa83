"""A send survives a broker restart, as long as the broker is back before the time-out."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.brokers import eventually, peer_of, running_broker, running_namesrv
from tests.support.ports import free_port
from tests.support.recording_server import register
from tests.support.remoting import serving

from tianzhou.broker.server import Broker
from tianzhou.client import (
    Message,
    PoppedMessage,
    Producer,
    Queue,
    SimpleConsumer,
    TransactionListener,
    TransactionProducer,
    TransactionState,
)
from tianzhou.client.message import ReceivedMessage
from tianzhou.errors import BrokerError, ConnectError, RouteNotFound, SendError, TianzhouError
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection

TOPIC = "restarted"
TIMEOUT_MS = 20_000


class Committing(TransactionListener):
    def execute(self, message: Message, transaction_id: str) -> TransactionState:
        return TransactionState.COMMIT

    def check(self, message: ReceivedMessage) -> TransactionState:
        return TransactionState.COMMIT


@dataclass(slots=True)
class Restartable:
    """A nameserver, and one broker at a fixed port that can be stopped and started."""

    namesrv: str
    folder: Path
    port: int
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def start(self) -> Broker:
        broker = await self.stack.enter_async_context(
            running_broker(
                self.folder / "store", namesrvAddr=self.namesrv, listenPort=self.port,
                shutdownWaitTimeSeconds=0,
            )
        )  # fmt: skip
        await eventually(lambda: broker.registered_with, "registration")
        return broker

    async def stop(self) -> None:
        await self.stack.aclose()


@asynccontextmanager
async def restartable(folder: Path) -> AsyncGenerator[Restartable]:
    async with running_namesrv(folder) as namesrv:
        it = Restartable(namesrv, folder, free_port())
        try:
            yield it
        finally:
            await it.stop()


async def send(producer: TransactionProducer) -> object:
    return await producer.send(TOPIC, b"x")


async def submit(producer: TransactionProducer) -> object:
    return await (await producer.submit(Message(TOPIC, b"x")))


async def oneway(producer: TransactionProducer) -> None:
    await producer.oneway(Message(TOPIC, b"x"))


async def send_many(producer: TransactionProducer) -> object:
    return await producer.send_many([Message(TOPIC, b"x")] * 3)


async def send_in_transaction(producer: TransactionProducer) -> object:
    return await producer.send_in_transaction(Message(TOPIC, b"x"))


async def send_to_queue(producer: TransactionProducer) -> object:
    return await producer.send(TOPIC, b"x", queue=Queue(TOPIC, "broker-a", 1))


async def send_ordered(producer: TransactionProducer) -> object:
    return await producer.send_ordered(Message(TOPIC, b"x", shard="s"))


Send = Callable[[TransactionProducer], Awaitable[object]]
KINDS: list[Send] = [send, submit, oneway, send_many, send_in_transaction]
WHILE_DOWN: list[Send] = [*KINDS, send_to_queue, send_ordered]


async def test_every_kind_of_send_survives_a_broker_restart(tmp_path: Path) -> None:
    async with (
        restartable(tmp_path) as it,
        TransactionProducer(
            "p", Committing(), namesrv=it.namesrv, send_timeout_ms=TIMEOUT_MS
        ) as producer,
        TransactionProducer(
            "l", Committing(), namesrv=it.namesrv, send_timeout_ms=TIMEOUT_MS, linger_ms=1
        ) as lingering,
    ):
        await it.start()
        await producer.send(TOPIC, b"warm")
        rounds: dict[Send | str, int] = dict.fromkeys((*KINDS, "lingering"), 0)
        enough = asyncio.Event()

        async def keep_sending(kind: Send | str, use: Send, by: TransactionProducer) -> None:
            while not enough.is_set():
                await use(by)
                rounds[kind] += 1
                await asyncio.sleep(0)

        async def all_send() -> None:
            before = dict(rounds)
            await eventually(lambda: all(rounds[k] > before[k] for k in before), "sends")

        async def restart() -> None:
            for _ in range(2):
                await all_send()
                await it.stop()
                await asyncio.sleep(0.3)  # the broker is away for a while
                await it.start()
            await all_send()
            enough.set()

        async with asyncio.TaskGroup() as tasks:
            for kind in KINDS:
                tasks.create_task(keep_sending(kind, kind, producer))
            tasks.create_task(keep_sending("lingering", send, lingering))
            tasks.create_task(restart())


async def test_every_kind_of_send_waits_for_a_broker_that_is_down(tmp_path: Path) -> None:
    async with (
        restartable(tmp_path) as it,
        TransactionProducer(
            "p", Committing(), namesrv=it.namesrv, send_timeout_ms=TIMEOUT_MS
        ) as producer,
    ):
        await it.start()
        await producer.send(TOPIC, b"warm")
        await eventually(lambda: knows_own_route(producer), "route")
        await it.stop()
        sends = [asyncio.ensure_future(use(producer)) for use in WHILE_DOWN]
        done, _ = await asyncio.wait(sends, timeout=0.5)
        assert not done, [each.exception() for each in done]
        await it.start()
        await asyncio.gather(*sends)


async def knows_own_route(producer: Producer) -> bool:
    await producer.queues(TOPIC)
    return Queue(TOPIC, "broker-a", 1) in await producer.queues(TOPIC)


async def test_a_producer_that_starts_before_its_broker_waits_for_it(tmp_path: Path) -> None:
    async with (
        restartable(tmp_path) as it,
        Producer("p", namesrv=it.namesrv, send_timeout_ms=TIMEOUT_MS) as producer,
    ):
        early = asyncio.ensure_future(producer.send(TOPIC, b"early"))
        done, _ = await asyncio.wait((early,), timeout=0.3)
        assert not done
        await it.start()
        await early


async def test_an_acknowledgement_waits_for_a_broker_that_is_down(tmp_path: Path) -> None:
    async with (
        restartable(tmp_path) as it,
        Producer("p", namesrv=it.namesrv) as producer,
        SimpleConsumer(
            "c", namesrv=it.namesrv, start="first", api_timeout_ms=TIMEOUT_MS
        ) as consumer,
    ):
        await it.start()
        await producer.send(TOPIC, b"x")
        await consumer.subscribe(TOPIC)
        received = list[PoppedMessage]()

        async def receive() -> list[PoppedMessage]:
            received.extend(await consumer.receive())
            return received

        await eventually(receive, "the message")
        await it.stop()
        ack = asyncio.ensure_future(consumer.ack(received[0]))
        done, _ = await asyncio.wait((ack,), timeout=0.3)
        assert not done
        await it.start()
        await ack


async def test_the_error_names_the_missing_broker_and_the_time(tmp_path: Path) -> None:
    async with (
        restartable(tmp_path) as it,
        Producer("p", namesrv=it.namesrv) as producer,
    ):
        with pytest.raises(RouteNotFound, match="no broker is registered with nameserver 127"):
            await producer.send(TOPIC, b"x", timeout_ms=100)
        await it.start()
        await producer.send(TOPIC, b"warm")
        await it.stop()
        with pytest.raises(SendError, match=r"not (sent|stored) within 300 ms.*refused"):
            await producer.send(TOPIC, b"x", timeout_ms=300)


async def test_no_nameserver_is_an_error_only_when_the_time_is_up() -> None:
    port = free_port()
    async with Producer("p", namesrv=f"127.0.0.1:{port}") as producer:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(ConnectError, match=rf"{port}.*refused"):
            await producer.send(TOPIC, b"x", timeout_ms=300)
        assert loop.time() - began_s >= 0.29


@dataclass(slots=True)
class Scripted:
    """A broker that responds to sends with given codes, then stores them."""

    codes: list[int]
    send_count: int = 0

    def handle(self, _: Connection, request: Command) -> Command:
        if request.code != RequestCode.SEND_MESSAGE_V2:
            return Command(code=0)
        self.send_count += 1
        if self.codes:
            return Command(code=self.codes.pop(0), remark="as the test wants")
        fields = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "0", "queueOffset": "0"}
        return Command(code=0, ext_fields=fields)


@asynccontextmanager
async def scripted(folder: Path, codes: list[int]) -> AsyncGenerator[tuple[Scripted, Producer]]:
    script = Scripted(codes)
    async with (
        serving(script.handle) as (_, address),
        running_namesrv(folder) as namesrv,
        peer_of(namesrv) as peer,
    ):
        await register(peer, "broker-a", address, (TOPIC, "another"), queue_count=2)
        async with Producer("p", namesrv=namesrv, send_timeout_ms=TIMEOUT_MS) as producer:
            yield script, producer


@pytest.mark.parametrize(
    "code",
    [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY],
)
async def test_temporary_rejection_is_retried(tmp_path: Path, code: ResponseCode) -> None:
    async with scripted(tmp_path, [code] * 5) as (script, producer):
        await producer.send(TOPIC, b"x")
        assert script.send_count == 6
        script.codes = [code] * 5
        await (await producer.submit(Message(TOPIC, b"x")))
        script.codes = [code] * 5
        await producer.send(TOPIC, b"x", queue=Queue(TOPIC, "broker-a", 1))
        assert script.send_count == 18


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.NO_PERMISSION,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    ],
)
async def test_permanent_errors_are_not_retried(tmp_path: Path, code: ResponseCode) -> None:
    async with scripted(tmp_path, [code]) as (script, producer):
        with pytest.raises(BrokerError):
            await producer.send(TOPIC, b"x")
        assert script.send_count == 1


async def test_too_large_message_is_rejected_before_sending(tmp_path: Path) -> None:
    async with scripted(tmp_path, []) as (script, producer):
        with pytest.raises(TianzhouError, match="4194304"):
            await producer.send(TOPIC, bytes(5 << 20))
        assert script.send_count == 0
