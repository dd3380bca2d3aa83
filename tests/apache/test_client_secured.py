"""Our client with credentials and over TLS, with our broker and with Apache's of both versions."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apache.test_client_producer import create_topic
from tests.support.apache.backends import OURS
from tests.support.apache.secured import (
    ASKING_GROUP,
    CHIEF,
    CLERK,
    GROUP,
    GUARDED,
    ORDERED,
    ORDERED_GROUP,
    Secured,
    secured_cluster,
)
from tests.support.brokers import eventually
from tests.support.gate import EACH_BACKEND
from tests.support.killed_process import assert_in_order, kill_one
from tianzhou.client import (
    ClientSettings,
    Credentials,
    Later,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    QueueReader,
    ReceivedMessage,
    Tls,
)
from tianzhou.client.connection import shared_hubs
from tianzhou.errors import BrokerError, ConnectError
from tianzhou.protocol.codes import RequestCode
from tianzhou.protocol.command import Command

QUEUES = 4


@pytest.fixture(
    scope="module",
    params=EACH_BACKEND,
)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    kind: str = request.param
    if kind != OURS:
        request.getfixturevalue("apache")
    with secured_cluster(kind, tmp_path_factory.mktemp("secured")) as it:
        yield it


class Twice:
    """A handler that requests one redelivery of every message."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []

    async def take(self, message: ReceivedMessage) -> Later | None:
        self.seen.append((message.text, message.reconsume_times))
        return None if message.reconsume_times else Later(delay_level=1)


# -- access control --------------------------------------------------------------------------------


async def see_what_is_granted(known: ClientSettings, group: str, topic: str) -> None:
    """Send, consume and send back with permission, and be rejected without."""
    twice = Twice()
    consumer = PushConsumer(group, settings=known, start="first")
    consumer.subscribe(topic, twice.take)
    async with Producer("senders", settings=known) as producer, consumer:
        await producer.send(topic, b"hello")
        assert len(await producer.send_many([Message(topic, b"many")] * 2)) == 2
        texts = ("hello", "many", "many")
        expected = sorted((text, times) for text in texts for times in (0, 1))
        await eventually(lambda: sorted(twice.seen) == expected, "the messages twice")
        with pytest.raises(BrokerError, match="topic Invoices, group senders") as refused:
            await producer.send("Invoices", b"not granted")
        assert not refused.value.retriable
    other = PushConsumer("others", settings=known)
    other.subscribe(topic, twice.take)
    with pytest.raises(BrokerError, match="others"):
        await other.start()
    await other.close()


async def see_strangers_refused(cluster: Secured, known: Credentials) -> None:
    for credentials in (Credentials(known.access_key, "guessed"), None):
        strange = cluster.settings(credentials, encrypted=False)
        async with Producer("senders", settings=strange) as producer:
            with pytest.raises(BrokerError):
                await producer.send(GUARDED, b"not signed, or not well")
        stranger = PushConsumer(GROUP, settings=strange)
        stranger.subscribe(GUARDED, lambda _: None)
        with pytest.raises(BrokerError):
            await stranger.start()
        await stranger.close()


async def test_credentials_grant_only_their_permissions(cluster: Secured) -> None:
    await create_topic(cluster.backend, GUARDED, QUEUES, credentials=CHIEF)
    await see_what_is_granted(cluster.settings(CLERK, encrypted=False), GROUP, GUARDED)
    await see_strangers_refused(cluster, CLERK)


@pytest.mark.parametrize("cluster", ["5.5.0"], indirect=True)
async def test_users_and_policies_of_5(cluster: Secured) -> None:
    """Access control 2.0: a user with policies for topics and groups."""
    topic, group, user = "Policed", "policed-group", Credentials("policed-user", "policed-secret")
    await create_topic(cluster.backend, topic, QUEUES, credentials=CHIEF)
    await create_user(cluster, user, [f"Topic:{topic}", f"Group:{group}"])
    await see_what_is_granted(cluster.settings(user, encrypted=False), group, topic)
    await see_strangers_refused(cluster, user)


async def create_user(cluster: Secured, user: Credentials, resources: list[str]) -> None:
    """As `mqadmin createUser` and `createAcl` do."""
    own = shared_hubs.acquire(cluster.settings(CHIEF, encrypted=False))
    name = user.access_key
    entries = [
        {"resource": resource, "actions": ["Pub", "Sub"], "decision": "Allow"}
        for resource in resources
    ]
    acl = {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": entries}]}
    account = {"username": name, "password": user.secret_key, "userType": "Normal"}
    requests = (
        (RequestCode.AUTH_CREATE_USER, {"username": name}, account),
        (RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, acl),
    )
    try:
        await own.routes.get("TBW102")
        (address,) = own.routes.topic_addresses("TBW102")
        for code, fields, body in requests:
            await own.call(
                address, Command(code=code, ext_fields=fields, body=json.dumps(body).encode())
            )
    finally:
        await own.release()


# -- TLS -------------------------------------------------------------------------------------------


async def test_every_kind_of_client_over_tls(cluster: Secured) -> None:
    """With credentials, since these brokers require them."""
    sealed = cluster.settings(CLERK, encrypted=True)
    await create_topic(cluster.backend, ORDERED, QUEUES, credentials=CHIEF)
    async with Producer("senders", settings=sealed) as producer:
        sent = await producer.send_many(Message(ORDERED, f"{number}") for number in range(100))
    assert len(sent) == 100
    in_order: dict[int, list[int]] = {}
    ordered = PushConsumer(ORDERED_GROUP, settings=sealed, start="first", ordered=True)

    @ordered.handler(ORDERED)
    def take_in_order(message: ReceivedMessage) -> None:
        in_order.setdefault(message.queue_id, []).append(message.queue_offset)

    async with ordered, LitePullConsumer(ASKING_GROUP, settings=sealed, start="first") as lite:
        await lite.subscribe(ORDERED)
        polled: list[str] = []
        while len(polled) < 100:
            polled += [message.text for message in await lite.poll(20_000)]
        await lite.commit()
        await eventually(lambda: sum(map(len, in_order.values())) == 100, "all in order")
    assert sorted(polled, key=int) == [f"{number}" for number in range(100)]
    assert all(offsets == list(range(len(offsets))) for offsets in in_order.values())
    for group in (ORDERED_GROUP, ASKING_GROUP):
        async with QueueReader(group, settings=sealed) as reader:
            queues = await reader.queues(ORDERED)
            assert sum([await reader.committed(queue) or 0 for queue in queues]) == 100


async def test_untrusted_certificate_is_rejected(cluster: Secured) -> None:
    """This also shows that settings with `tls` never use a plain connection."""
    doubting = Tls(trusted=cluster.folder / "stranger.pem")
    settings = ClientSettings(namesrv=cluster.backend.namesrv, tls=doubting, credentials=CLERK)
    async with Producer("doubting", settings=settings) as producer:
        with pytest.raises(ConnectError, match="certificate"):
            await producer.send(GUARDED, b"never")


# -- killed ----------------------------------------------------------------------------------------


async def test_consumption_resumes_after_an_ordered_consumer_is_killed(
    cluster: Secured, tmp_path: Path
) -> None:
    """The locks of the dead consumer expire, then consumption continues; locks are signed."""
    topic, group = "KilledOrder", "killed-clerks"
    await create_topic(cluster.backend, topic, QUEUES, credentials=CHIEF)
    victim, survivor, sent = await kill_one(
        tmp_path, cluster.backend.namesrv, group, topic, QUEUES, ordered=True, account=CHIEF
    )
    assert_in_order(victim, survivor, sent, QUEUES)
