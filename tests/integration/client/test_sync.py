"""The blocking producers."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from tianzhou.client import (
    Message,
    Queue,
    ReceivedMessage,
    SendResult,
    TransactionProducer,
    TransactionState,
    by_hash,
    sync,
)
from tianzhou.client.loop_thread import loop_thread
from tianzhou.client.sending.retrying import RetryingSender
from tianzhou.errors import (
    ClientClosed,
    ClientError,
    ConfigError,
    MessageRefused,
    ReplyTimeout,
    RouteNotFound,
)
from tianzhou.testing import Cluster


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with Cluster(transactionCheckInterval=500, transactionTimeOut=500) as it:
        yield it.namesrv_address


def test_same_names_without_await(namesrv: str) -> None:
    with sync.Producer("blocking", namesrv=namesrv) as producer:
        assert producer.settings.namesrv == namesrv
        first = producer.send("Blocking", b"x", keys="k")
        queues = producer.queues("Blocking")
        assert first.queue in queues
        assert producer.send(Message("Blocking", b"y"), queue=queues[0]).queue == queues[0]
        picked = producer.send("Blocking", b"z", select=by_hash("k"))
        assert picked.queue == by_hash("k")(queues, Message("Blocking", b"z"))
        producer.oneway(Message("Blocking", b"gone"))
        assert producer.send_ordered(Message("Blocking", b"o", shard="k")).queue == picked.queue
        assert len(producer.send_many([Message("Blocking", f"{n}") for n in range(10)])) == 10
        with pytest.raises(ReplyTimeout):
            producer.request(Message("Blocking", b"?"), timeout_ms=200)


def test_submit(namesrv: str) -> None:
    told: list[SendResult | None] = []
    with sync.Producer("blocking", namesrv=namesrv, in_flight_count=8) as producer:
        futures = [
            producer.submit(Message("Submitted", f"{n}"), on_done=lambda done, _: told.append(done))
            for n in range(100)
        ]
        results = [future.result(timeout=90) for future in futures]
    assert len({result.msg_id for result in results}) == 100
    assert {each.msg_id for each in told if each} == {result.msg_id for result in results}


def test_errors_come_through(namesrv: str) -> None:
    with pytest.raises(ConfigError):
        sync.Producer("blocking", namesrv="no port")
    producer = sync.Producer("blocking", namesrv=namesrv)
    with pytest.raises(ClientClosed):
        producer.send("T", b"x")
    with producer, pytest.raises(MessageRefused):
        producer.send("T", b"")


def test_from_many_threads(namesrv: str) -> None:
    found: list[SendResult] = []
    with sync.Producer("blocking", namesrv=namesrv) as producer:

        def work() -> None:
            found.extend(producer.send("Threads", b"x") for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len({result.msg_id for result in found}) == 160


class Listener:
    def __init__(self) -> None:
        self.checked = threading.Event()

    def execute(self, message: Message, transaction_id: str) -> TransactionState:
        assert transaction_id
        return TransactionState.UNKNOWN if message.keys == "open" else TransactionState.COMMIT

    def check(self, message: ReceivedMessage) -> TransactionState:
        if message.key == "open":
            self.checked.set()
        return TransactionState.ROLLBACK


def test_transactions(namesrv: str) -> None:
    listener = Listener()
    with sync.TransactionProducer("blocking_tx", listener, namesrv=namesrv) as producer:
        done = producer.send_in_transaction(Message("Tx", b"x", keys="done"))
        assert done.state is TransactionState.COMMIT
        with producer.transaction(Message("Tx", b"y")) as transaction:
            assert transaction.id
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("Tx", b"z")):
            raise ZeroDivisionError
        opened = producer.send_in_transaction(Message("Tx", b"w", keys="open"))
        assert opened.state is TransactionState.UNKNOWN
        assert listener.checked.wait(30)


async def test_unsent_transaction_end_is_left_to_the_check(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def lost(courier: RetryingSender, queue: Queue) -> str:
        raise RouteNotFound(f"broker {queue.broker_name} has no master")

    class Losing(Listener):
        def execute(self, message: Message, transaction_id: str) -> TransactionState:
            monkeypatch.setattr(RetryingSender, "address", lost)
            return TransactionState.COMMIT

    async with TransactionProducer("losing", Losing(), namesrv=namesrv) as producer:
        done = await producer.send_in_transaction(Message("Tx", b"x"))
        monkeypatch.undo()
    assert done.state is TransactionState.COMMIT
    assert "the broker will check: broker broker-0 has no master" in caplog.text


def test_blocking_call_on_the_own_loop_is_rejected(namesrv: str) -> None:
    with sync.Producer("blocking", namesrv=namesrv) as producer:

        async def wrong() -> None:
            producer.send("T", b"x")

        with pytest.raises(ClientError, match="async"):
            loop_thread.run(wrong())


def test_one_thread_serves_all(namesrv: str) -> None:
    with sync.Producer("one", namesrv=namesrv), sync.Producer("two", namesrv=namesrv):
        names = [thread.name for thread in threading.enumerate()]
    assert names.count("tianzhou-client") == 1


def test_interrupted_wait_cancels() -> None:
    cancelled = threading.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    future = loop_thread.submit(forever())
    future.cancel()
    assert cancelled.wait(10)
