"""The hub: shared within an event loop, releases everything, survives server failures."""

import asyncio
import gc
import os
import subprocess
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import trustme
from tests.support import registration
from tests.support.brokers import (
    DEADLINE_S,
    Peer,
    cluster,
    eventually,
    peer_of,
    running_broker,
    running_namesrv,
)
from tests.support.ports import free_port

from tianzhou.client import (
    ClientSettings,
    Credentials,
    LitePullConsumer,
    Message,
    Producer,
    QueueReader,
    SendResult,
    Tls,
)
from tianzhou.client.connection import shared_hubs
from tianzhou.client.sending.settings import ProducerSettings
from tianzhou.errors import (
    BodyError,
    BrokerError,
    ClientClosed,
    ConfigError,
    ConnectError,
    FrameError,
    MessageRefused,
    RequestTimeout,
    RouteNotFound,
    SendError,
    SendManyError,
    SendTimeout,
    TianzhouError,
)
from tianzhou.protocol import headers
from tianzhou.protocol.bodies.registration import RegisterBrokerBody
from tianzhou.protocol.bodies.topics import TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers.namesrv import RegisterBrokerRequest
from tianzhou.protocol.version import CURRENT_VERSION
from tianzhou.testing import Cluster


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """No task and no socket of a client outlives it."""
    before = len(asyncio.all_tasks())
    sockets = set(psutil.Process().net_connections(kind="inet"))
    yield
    assert not shared_hubs.hubs_of(asyncio.get_running_loop())
    gc.collect()
    await eventually(lambda: len(asyncio.all_tasks()) <= before, f"tasks: {asyncio.all_tasks()}")
    left = set(psutil.Process().net_connections(kind="inet")) - sockets
    assert not [each for each in left if each.status == psutil.CONN_ESTABLISHED]


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with Cluster(brokers=2) as it:
        yield it


@pytest.fixture
def namesrv(servers: Cluster) -> str:
    return servers.namesrv_address


def dead_address() -> str:
    """An address at which no server listens."""
    return f"127.0.0.1:{free_port()}"


# -- sharing ---------------------------------------------------------------------------------------


async def test_clients_with_equal_settings_share(namesrv: str) -> None:
    async with Producer("one", namesrv=namesrv) as one, Producer("two", namesrv=namesrv) as two:
        await one.send("Shared", b"1")
        await two.send("Shared", b"2")
        assert len(shared_hubs.hubs_of(asyncio.get_running_loop())) == 1
        async with Producer("three", namesrv=namesrv, instance_name="other") as three:
            await three.send("Shared", b"3")
            assert len(shared_hubs.hubs_of(asyncio.get_running_loop())) == 2
        assert len(shared_hubs.hubs_of(asyncio.get_running_loop())) == 1


async def test_producer_settings_do_not_open_connections(servers: Cluster, namesrv: str) -> None:
    """Plain, traced, with telemetry and in a namespace: one hub, and each uses its own settings."""
    servers.create_topic("Told", 1)
    servers.create_topic("n%Told", 1)
    async with (
        Producer("plain", namesrv=namesrv) as plain,
        Producer("traced", namesrv=namesrv, trace=True, trace_topic="Traces") as traced,
        Producer("observed", namesrv=namesrv, telemetry=True) as observed,
        Producer("spaced", namesrv=namesrv, namespace="n") as spaced,
        QueueReader("spaced", namesrv=namesrv, namespace="n") as reader,
        LitePullConsumer("bytes", namesrv=namesrv, unpacked_bytes_max=1) as consumer,
    ):
        for producer in (plain, traced, observed, spaced):
            await producer.send("Told", b"x")
        assert len(shared_hubs.hubs_of(asyncio.get_running_loop())) == 1
        found = [
            each
            for queue in await reader.queues("Told")
            for each in (await reader.pull(queue, 0)).messages
        ]
        assert [(each.topic, each.text) for each in found] == [("Told", "x")]
        large = await plain.send(Message("Told", b"x" * 10_000))
        await consumer.assign([large.queue])
        await consumer.seek(large.queue, large.queue_offset)
        (refused,) = await consumer.poll(timeout_ms=int(DEADLINE_S * 1000))
        with pytest.raises(BodyError, match="unpack"):
            refused.body  # noqa: B018 - unpacked when it is looked at


async def test_consumers_of_a_group_get_hubs_of_their_own(namesrv: str) -> None:
    settings = ClientSettings(namesrv=namesrv)
    one, two = shared_hubs.acquire(settings, "g"), shared_hubs.acquire(settings, "g")
    other = shared_hubs.acquire(settings, "h")
    assert one.client_id != two.client_id
    assert other is one
    await one.release("g")
    assert shared_hubs.acquire(settings, "g") is one
    await one.release("g")
    await two.release("g")
    await other.release("h")
    named = ClientSettings(namesrv=namesrv, instance_name="fixed")
    third = shared_hubs.acquire(named, "g")
    with pytest.raises(ConfigError, match="instance_name"):
        shared_hubs.acquire(named, "g")
    await third.release("g")


async def knows(peer: Peer, group: str) -> bool:
    """Whether a broker has a producer of a group connected."""
    fields = {"producerGroup": group}
    answer = await peer.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, fields)
    return answer.code == ResponseCode.SUCCESS


async def test_producers_are_known_to_brokers_while_they_run(tmp_path: Path) -> None:
    async with cluster(tmp_path) as it:
        async with Producer("known", namesrv=it.namesrv) as producer:
            await producer.send("T", b"x")
            await eventually(lambda: knows(it.peer, "known"), "heartbeat")
        assert not await knows(it.peer, "known")


# -- names and use ---------------------------------------------------------------------------------


async def test_misuse(namesrv: str) -> None:
    producer = Producer("misused", namesrv=namesrv)
    with pytest.raises(ClientClosed, match="misused"):
        await producer.send("T", b"x")
    await producer.close()
    async with producer:
        with pytest.raises(ClientClosed, match="already"):
            await producer.start()
        with pytest.raises(MessageRefused):
            await producer.send("bad topic", b"x")
    with pytest.raises(ClientClosed):
        await producer.send("T", b"x")
    async with producer:  # may be started again
        await producer.send("T", b"x")


async def test_topic_that_may_not_be_created(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path, autoCreateTopicEnable="false") as it,
        Producer("g", namesrv=it.namesrv) as producer,
    ):
        with pytest.raises(RouteNotFound, match=r"Unknown.*autoCreateTopicEnable") as missing:
            await producer.send("Unknown", b"x")
        assert missing.value.retriable
        with pytest.raises(SendManyError) as many:
            await producer.send_many([Message("Unknown", b"1"), Message("Unknown", b"2")])
        assert len(many.value.outcomes) == 2


async def test_some_of_many_fail(namesrv: str) -> None:
    async with Producer("some", namesrv=namesrv, batch_bytes=2_000) as producer:
        await producer.send("Some", b"x")
        messages = [Message("Some", b"ok"), Message("Some", bytes(3 << 20)), Message("Some", b"ok")]
        small = ProducerSettings(message_bytes_max=1000, namesrv=namesrv)
        async with Producer("some", settings=small) as careful:
            with pytest.raises(SendManyError, match="1 of 3") as failed:
                await careful.send_many(messages)
        kinds = [type(each).__name__ for each in failed.value.outcomes]
        assert kinds == ["SendResult", "MessageRefused", "SendResult"]
        assert not failed.value.retriable


# -- nameservers -----------------------------------------------------------------------------------


async def test_next_nameserver_serves_when_one_is_gone(namesrv: str) -> None:
    both = f"{dead_address()};{namesrv};{dead_address()}"
    for number in range(6):  # the first one asked is chosen at random
        async with Producer("g", namesrv=both, instance_name=f"i{number}") as producer:
            assert await producer.queues("TBW102")


async def test_no_nameserver() -> None:
    async with Producer("g", namesrv=dead_address(), send_timeout_ms=500) as producer:
        with pytest.raises(ConnectError) as failed:
            await producer.send("T", b"x")
        assert failed.value.retriable


async def test_routes_are_refreshed(servers: Cluster, namesrv: str) -> None:
    servers.create_topic("Growing", 1)
    async with Producer("g", namesrv=namesrv, poll_namesrv_ms=50) as producer:
        assert len(await producer.queues("Growing")) == 2
        servers.create_topic("Growing", 3)

        async def grown() -> bool:
            return len(await producer.queues("Growing")) == 6

        await eventually(grown, "new queues")


# -- brokers that fail -----------------------------------------------------------------------------


async def test_retries_go_to_another_broker() -> None:
    with Cluster(brokers=2, topics={"Retried": 2}) as two:
        async with Producer("g", namesrv=two.namesrv_address) as producer:
            await producer.send("Retried", b"warm")
            gone = two.broker_names[0]
            two.stop_broker(gone)
            results = [await producer.send("Retried", b"x") for _ in range(8)]
            assert {result.queue.broker_name for result in results} == {two.broker_names[1]}


async def test_submitted_ones_are_retried_after_a_lost_connection() -> None:
    with Cluster(brokers=2, topics={"Resent": 2}) as two:
        async with Producer("g", namesrv=two.namesrv_address) as producer:
            await producer.send("Resent", b"warm")
            two.stop_broker(two.broker_names[0])
            futures = [await producer.submit(Message("Resent", b"x")) for _ in range(20)]
            results = await asyncio.gather(*futures)
            assert {result.queue.broker_name for result in results} == {two.broker_names[1]}


async def test_fault_table_leaves_a_dead_broker_out() -> None:
    with Cluster(brokers=2, topics={"Faulty": 2}) as two:
        async with Producer(
            "g", namesrv=two.namesrv_address, send_latency_fault=True, retry_count=3
        ) as producer:
            await producer.send("Faulty", b"warm")
            two.stop_broker(two.broker_names[0])
            results = [await producer.send("Faulty", b"x") for _ in range(8)]
            assert {result.queue.broker_name for result in results} == {two.broker_names[1]}


async def test_chosen_queue_of_a_dead_broker_fails_once() -> None:
    with Cluster(brokers=2, topics={"Fixed": 1}) as two:
        async with Producer("g", namesrv=two.namesrv_address) as producer:
            queues = await producer.queues("Fixed")
            await producer.send("Fixed", b"warm", queue=queues[0])
            two.stop_broker(queues[0].broker_name)
            with pytest.raises((SendError, RouteNotFound)) as failed:
                await producer.send("Fixed", b"x", queue=queues[0])
            assert failed.value.retriable
            assert "Fixed" in str(failed.value)


async def test_works_again_when_the_broker_is_back(tmp_path: Path) -> None:
    async with (
        running_namesrv(tmp_path) as namesrv,
        Producer("back", namesrv=namesrv, reconnect_max_ms=100) as producer,
    ):
        same = {"namesrvAddr": namesrv, "listenPort": free_port()}
        async with running_broker(tmp_path / "store", **same) as broker:
            await eventually(lambda: broker.registered_with, "registration")
            await producer.send("T", b"before")
        with pytest.raises(TianzhouError) as down:
            await producer.send("T", b"while it is down", timeout_ms=300)
        assert down.value.retriable
        async with running_broker(tmp_path / "store", **same) as broker:

            async def sent() -> bool:
                try:
                    await producer.send("T", b"after", timeout_ms=300)
                except TianzhouError:
                    return False
                return True

            await eventually(sent, "a send after the restart")
            # The broker has forgotten the producer with the connection, and hears of it again.
            async with peer_of(broker.address) as peer:
                await eventually(lambda: knows(peer, "back"), "heartbeat")


@asynccontextmanager
async def silent_server() -> AsyncGenerator[tuple[str, list[asyncio.StreamWriter]]]:
    """A server that reads requests and never responds; yields its address and its connections."""
    accepted: list[asyncio.StreamWriter] = []

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        try:
            while await reader.read(4096):
                pass
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", accepted
    finally:
        server.close()
        await server.wait_closed()


async def register_silent(namesrv: Peer, address: str, topic: str) -> None:
    """Register a broker at a nameserver for as long as the peer is connected."""
    table = TopicConfigTable(
        # A first registration with one topic alone is not believed, in case it was cut short.
        topics={
            name: TopicConfig(topic_name=name, read_queue_count=1, write_queue_count=1)
            for name in (topic, "another")
        }
    )
    body = registration.encode(
        RegisterBrokerBody(topic_config=table), compressed=False, broker_version=CURRENT_VERSION
    )
    header = RegisterBrokerRequest(
        broker_name="silent", broker_addr=address, cluster_name="c", ha_server_addr=address,
        broker_id=0, compressed=False, body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
    )  # fmt: skip
    await namesrv.expect(RequestCode.REGISTER_BROKER, headers.encode(header), body)


async def test_silent_nameserver_is_not_waited_for_twice_on_one_connection() -> None:
    async with silent_server() as (address, accepted):
        own = shared_hubs.acquire(ClientSettings(namesrv=address, api_timeout_ms=1_000))
        for _ in range(2):
            with pytest.raises(RequestTimeout):
                await own.routes.get("T", refresh=True)
        assert len(accepted) == 2  # the dead connection was given up after the first time-out
        await own.release()


async def test_silent_broker(tmp_path: Path) -> None:
    """The time-out covers all attempts; a limit per attempt lets another broker be tried."""
    async with (
        silent_server() as (address, _),
        running_namesrv(tmp_path) as namesrv,
        peer_of(namesrv) as registrar,
    ):
        await register_silent(registrar, address, "Silent")
        async with Producer("g", namesrv=namesrv) as producer:
            with pytest.raises(SendTimeout, match="topic Silent, group g") as late:
                await producer.send("Silent", b"x", timeout_ms=200)
            assert late.value.retriable
            submitted = await producer.submit(Message("Silent", b"x"), timeout_ms=200)
            with pytest.raises(SendTimeout):
                await submitted
        async with (
            running_broker(tmp_path / "store", namesrvAddr=namesrv) as broker,
            Producer(
                "g",
                namesrv=namesrv,
                try_timeout_ms=500,
                send_timeout_ms=60_000,
                retry_count=20,
                poll_namesrv_ms=50,
            ) as producer,
        ):
            await eventually(lambda: broker.registered_with, "registration")
            async with peer_of(broker.address) as peer:
                await peer.send("Silent", b"creates the topic here, too")

            async def both() -> bool:
                return {each.broker_name for each in await producer.queues("Silent")} == {
                    "silent", "broker-a"
                }  # fmt: skip

            await eventually(both, "queues on both brokers")
            results = [await producer.send("Silent", b"x") for _ in range(4)]
            assert {each.queue.broker_name for each in results} == {"broker-a"}


async def test_back_pressure_lets_one_after_the_other_pass(namesrv: str) -> None:
    async with Producer("g", namesrv=namesrv, in_flight_count=1) as producer:
        await producer.send("Pressed", b"warm")
        results = await asyncio.gather(*(producer.send("Pressed", b"x") for _ in range(20)))
        assert len({(each.queue, each.queue_offset) for each in results}) == 20


async def test_back_pressure_has_a_time_out(tmp_path: Path) -> None:
    """A send that waits too long for capacity fails, and nothing was sent."""
    async with (
        silent_server() as (address, _),
        running_namesrv(tmp_path) as namesrv,
        peer_of(namesrv) as registrar,
    ):
        await register_silent(registrar, address, "Pressed")
        async with Producer(
            "g", namesrv=namesrv, in_flight_count=1, close_timeout_ms=1
        ) as producer:
            stuck = await producer.submit(Message("Pressed", b"x"), timeout_ms=60_000)
            with pytest.raises(SendTimeout, match="nothing was sent: 1 messages") as late:
                await producer.send("Pressed", b"y", timeout_ms=100)
            assert (late.value.try_count, late.value.retriable) == (0, True)
            assert not stuck.done()
        with pytest.raises(TianzhouError):
            await stuck


async def test_close_waits_for_messages_in_flight(namesrv: str) -> None:
    async with Producer("g", namesrv=namesrv) as producer:
        await producer.send("Closing", b"warm")
        futures = [await producer.submit(Message("Closing", b"x")) for _ in range(50)]
    assert all(future.done() and not future.exception() for future in futures)
    async with Producer("g", namesrv=namesrv, linger_ms=60_000) as producer:
        lingering = await producer.submit(Message("Closing", b"x"))
    assert lingering.result().queue.topic == "Closing"


async def test_body_larger_than_a_frame(namesrv: str) -> None:
    huge = Message("Huge", bytes(17 << 20))
    async with Producer(
        "g", namesrv=namesrv, message_bytes_max=64 << 20, compress_over_bytes=64 << 20
    ) as producer:
        await producer.send("Huge", b"warm")
        with pytest.raises(FrameError):
            await producer.send(huge)
        submitted = await producer.submit(huge)
        with pytest.raises(FrameError):
            await submitted
        assert (await producer.send("Huge", b"after")).queue.topic == "Huge"


async def test_closed_before_the_answer(namesrv: str) -> None:
    """Late responses to a closed producer must not break the shared connection."""
    async with Producer("stays", namesrv=namesrv) as other:
        await other.send("Late", b"warm")
        queue = (await other.queues("Late"))[0]
        for chosen in (queue, queue._replace(queue_id=99)):  # stored, and refused
            hasty = Producer("hasty", namesrv=namesrv, close_timeout_ms=1)
            await hasty.start()
            sends = [asyncio.create_task(hasty.send("Late", b"x", queue=chosen)) for _ in range(9)]
            await asyncio.sleep(0)
            await hasty.close()
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(each, SendResult | TianzhouError) for each in outcomes), outcomes
        (own,) = shared_hubs.hubs_of(asyncio.get_running_loop())
        assert (await other.send("Late", b"after")).queue.topic == "Late"
        assert own.settings.namesrv == namesrv


async def test_cancelled_send_does_no_harm(namesrv: str) -> None:
    async with Producer("g", namesrv=namesrv) as producer:
        await producer.send("Cancelled", b"warm")
        for _ in range(20):
            task = asyncio.create_task(producer.send("Cancelled", b"x"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await producer.send("Cancelled", b"after")).queue_offset >= 0


async def test_broken_callback_is_logged(namesrv: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_result: SendResult | None, _error: BaseException | None) -> None:
        raise ZeroDivisionError

    async with Producer("g", namesrv=namesrv) as producer:
        await (await producer.submit(Message("Callback", b"x"), on_done=broken))
    assert "the callback of a send failed" in caplog.text


async def test_error_names_topic_broker_and_code(namesrv: str) -> None:
    async with Producer("named", namesrv=namesrv) as producer:
        queue = (await producer.queues("TBW102"))[0]
        with pytest.raises(BrokerError) as refused:
            await producer.send("Named", b"x", queue=queue._replace(topic="Named", queue_id=77))
    for part in ("topic Named", "group named", queue.broker_name):
        assert part in str(refused.value)


# -- TLS -------------------------------------------------------------------------------------------


async def test_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    secure: dict[str, object] = {
        "tlsMode": "permissive", "tlsServerCertPath": tmp_path / "server.pem",
        "tlsServerKeyPath": tmp_path / "server.pem",
    }  # fmt: skip
    async with (
        running_namesrv(tmp_path, **secure) as namesrv,
        running_broker(tmp_path / "store", namesrvAddr=namesrv, **secure) as broker,
    ):
        await eventually(lambda: broker.registered_with, "registration")
        async with Producer("plain", namesrv=namesrv) as producer:
            await producer.send("T", b"plain")
        trusting = Tls(trusted=tmp_path / "ca.pem")
        async with Producer("secure", namesrv=namesrv, tls=trusting) as producer:
            await producer.send("T", b"secure")
            (own,) = shared_hubs.hubs_of(asyncio.get_running_loop())
            assert own.settings.tls == trusting
        doubting = Tls(trusted=authority_of_others(tmp_path))
        async with Producer("doubting", namesrv=namesrv, tls=doubting) as producer:
            with pytest.raises(ConnectError, match="certificate"):
                await producer.send("T", b"never")


def authority_of_others(folder: Path) -> Path:
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    return folder / "other.pem"


# -- access control --------------------------------------------------------------------------------


async def test_signed_requests(tmp_path: Path) -> None:
    file = tmp_path / "conf" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(
        "accounts:\n"
        "  - {accessKey: plain-account, secretKey: plain-secret, topicPerms: [orders=PUB]}\n"
    )
    own = Credentials("plain-account", "plain-secret")
    async with cluster(tmp_path, aclEnable="true", rocketmqHome=tmp_path) as it:
        async with Producer("g", namesrv=it.namesrv, credentials=own) as producer:
            await producer.send("orders", b"signed")
            assert len(await producer.send_many([Message("orders", b"1")] * 3)) == 3
            with pytest.raises(BrokerError, match="topic invoices, group g") as refused:
                await producer.send("invoices", b"not granted")
            assert (refused.value.code, refused.value.retriable) == (16, False)
        for nobody in (None, Credentials("plain-account", "guessed")):
            async with Producer("g", namesrv=it.namesrv, credentials=nobody) as producer:
                with pytest.raises(BrokerError):
                    await producer.send("orders", b"unsigned")


# -- fork ------------------------------------------------------------------------------------------

FORK = """
import os, sys
from tianzhou.client.sync import Producer

producer = Producer("forked", namesrv=sys.argv[1])
producer.start()
parent = producer.send("Forked", b"parent")
child = os.fork()
if child == 0:
    mine = producer.send("Forked", b"child")
    producer.close()
    os._exit(0 if mine.msg_id[8:12] != parent.msg_id[8:12] else 3)
_, status = os.waitpid(child, 0)
after = producer.send("Forked", b"parent again")
producer.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_fork(namesrv: str) -> None:
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", FORK, namesrv], capture_output=True, text=True,
        timeout=DEADLINE_S * 2, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
