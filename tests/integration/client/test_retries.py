"""Number and targets of the attempts of a send, seen by brokers that cut each connection."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.brokers import peer_of, running_namesrv
from tests.support.recording_server import register
from tests.support.remoting import serving

from tianzhou.client import Message, Producer, Queue, SendResult, by_shard
from tianzhou.errors import SendError
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command
from tianzhou.remoting.connection import Connection
from tianzhou.remoting.server import Handler

TOPIC = "tried"
BROKERS = ("broker-a", "broker-b")
CHOSEN = Queue(TOPIC, "broker-b", 1)


@dataclass(slots=True)
class Cutters:
    """Brokers that read sends and never respond."""

    producer: Producer
    tries: list[Queue] = field(default_factory=list[Queue])


@asynccontextmanager
async def cutting_brokers(folder: Path) -> AsyncGenerator[Cutters]:
    tries: list[Queue] = []

    def handler_of(name: str) -> Handler:
        def handle(connection: Connection, request: Command) -> Command | None:
            if request.code == RequestCode.SEND_MESSAGE_V2:
                tries.append(Queue(request.fields["b"], name, int(request.fields["e"])))
                connection.abort("cut by the test")
                return None
            return Command(code=0)

        return handle

    async with (
        serving(handler_of(BROKERS[0])) as (_, first),
        serving(handler_of(BROKERS[1])) as (_, second),
        running_namesrv(folder) as namesrv,
        peer_of(namesrv) as one,
        peer_of(namesrv) as other,
    ):
        topics = (TOPIC, "another")
        await register(one, BROKERS[0], first, topics, queue_count=2)
        await register(other, BROKERS[1], second, topics, queue_count=2)
        async with Producer("p", namesrv=namesrv, send_timeout_ms=60_000) as producer:
            assert len(await producer.queues(TOPIC)) == 4
            yield Cutters(producer, tries)


async def submitted(producer: Producer, **choice: object) -> SendResult:
    message = Message(TOPIC, b"x", shard="s")
    return await (await producer.submit(message, **choice))  # type: ignore[arg-type]  # queue or select


async def awaited(producer: Producer) -> SendResult:
    return await producer.send(TOPIC, b"x")


async def awaited_to_queue(producer: Producer) -> SendResult:
    return await producer.send(TOPIC, b"x", queue=CHOSEN)


async def awaited_by_selector(producer: Producer) -> SendResult:
    return await producer.send(Message(TOPIC, b"x", shard="s"), select=by_shard)


async def in_order(producer: Producer) -> SendResult:
    return await producer.send_ordered(Message(TOPIC, b"x", shard="s"))


Send = Callable[[Producer], Awaitable[SendResult]]


@pytest.mark.parametrize("send", [awaited, submitted])
async def test_send_is_retried_on_the_other_broker(tmp_path: Path, send: Send) -> None:
    async with cutting_brokers(tmp_path) as it:
        with pytest.raises(SendError) as failed:
            await send(it.producer)
        assert failed.value.try_count == 3
        names = [queue.broker_name for queue in it.tries]
        assert names in ([*BROKERS, BROKERS[0]], [*reversed(BROKERS), BROKERS[1]])


async def test_submit_to_a_chosen_queue_is_retried_there(tmp_path: Path) -> None:
    async with cutting_brokers(tmp_path) as it:
        with pytest.raises(SendError):
            await submitted(it.producer, queue=CHOSEN)
        assert it.tries == [CHOSEN] * 3
        it.tries.clear()
        with pytest.raises(SendError):
            await submitted(it.producer, select=by_shard)
        assert len(it.tries) == 3
        assert len(set(it.tries)) == 1


@pytest.mark.parametrize("send", [awaited_to_queue, awaited_by_selector, in_order])
async def test_send_to_a_chosen_queue_is_not_retried(tmp_path: Path, send: Send) -> None:
    async with cutting_brokers(tmp_path) as it:
        with pytest.raises(SendError) as failed:
            await send(it.producer)
        assert failed.value.try_count == len(it.tries) == 1
