"""Our broker with stock programs: Apache's clients send and consume, its mqadmin manages it.

The servers are processes, started as users start them. Every test has a topic and a group of its
own, counts received messages and compares the bodies. Clients of a version share a JVM, in which
periodic rebalancing is off: consumers learn of each other only from the broker.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.apache import requests
from tests.support.apache.requests import ask_server
from tests.support.apache.servers import (
    Server,
    Shell,
    java_shell,
    java_shells,
    tianzhou_broker,
    tianzhou_namesrv,
    wait_until,
)
from tests.support.gate import EACH_VERSION

pytestmark = pytest.mark.apache

CLUSTER = "DefaultCluster"
NAME = "broker-a"
QUEUES = [0, 1, 2, 3]
SOON_S = 90

NO_LOOK_OF_THEIR_OWN = "-Drocketmq.client.rebalance.waitInterval=600000"

Shells = Callable[[str], Shell]
Message = dict[str, Any]


# -- servers and clients --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cluster:
    """Our nameserver with our broker."""

    namesrv: Server
    broker: Server


@contextmanager
def our_cluster(**properties: object) -> Generator[Cluster]:
    with tianzhou_namesrv() as namesrv, tianzhou_broker(namesrv, **properties) as broker:
        yield Cluster(namesrv, broker)


@pytest.fixture(scope="module")
def cluster(apache: None) -> Iterator[Cluster]:
    with our_cluster(enablePropertyFilter="true") as it:
        yield it


@pytest.fixture(scope="module")
def forgetful_cluster(apache: None) -> Iterator[Cluster]:
    """A broker that treats all messages as not in memory, as if all queues were long and old."""
    with our_cluster(accessMessageInMemoryMaxRatio=0) as it:
        yield it


def broker_shell(version: str) -> AbstractContextManager[Shell]:
    """The stock clients of a version in a JVM; java/BrokerShell.java is the other half."""
    return java_shell(version, "BrokerShell", jvm_options=[NO_LOOK_OF_THEIR_OWN])


@pytest.fixture(scope="module")
def clients(apache: None) -> Iterator[Shells]:
    """The clients of a version, in a JVM that is started on first use."""
    with java_shells("BrokerShell", jvm_options=[NO_LOOK_OF_THEIR_OWN]) as shell:
        yield shell


@pytest.fixture(params=EACH_VERSION)
def version(request: pytest.FixtureRequest) -> str:
    """The version of the stock clients and of mqadmin."""
    parameter: str = request.param
    return parameter


# -- one test's share -----------------------------------------------------------------------------


def create_topic(cluster: Cluster, topic: str) -> None:
    """A topic of four queues, registered with the nameserver."""
    requests.create_topic(cluster.broker.address, topic, len(QUEUES))
    wait_for_route(cluster, topic)


def wait_for_route(cluster: Cluster, topic: str) -> dict[str, Any]:
    def query_route() -> dict[str, Any] | None:
        answer = ask_server(
            cluster.namesrv.address, requests.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}
        )
        return json.loads(answer.body) if answer.code == requests.SUCCESS else None

    return wait_until(query_route, f"route of {topic}", timeout_s=SOON_S)


@dataclass
class Stage:
    """A topic, a group of the same name, and the clients that one test starts."""

    cluster: Cluster
    shell: Shell
    topic: str
    consumers: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """Exactly the bodies that each running consumer must receive."""
    repeatable: frozenset[str] = frozenset()
    """Bodies that may be redelivered, because the consumer that handled them was killed."""
    producers: list[str] = field(default_factory=list[str])

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv.address

    # -- sending

    def send(self, messages: Sequence[Message], *, way: str = "sync", **more: object) -> list[Any]:
        """The client's result of each message; a batch has one result, a oneway send none."""
        name = f"{self.topic}-producer"
        if name not in self.producers:
            self.start_producer()
        arguments: dict[str, Any] = {"way": way, "messages": list(messages), **more}
        sent: list[Any] = self.shell.ask("send", name=name, topic=self.topic, **arguments)
        return sent

    def start_producer(self, *, vip: bool = False) -> None:
        name = f"{self.topic}-producer"
        self.shell.ask("start_producer", name=name, namesrv=self.namesrv, vip=vip)
        self.producers.append(name)

    # -- consuming

    def start_consumer(self, name: str, **options: object) -> str:
        """A push consumer of the topic that begins at the first message; returns its name."""
        arguments: dict[str, Any] = {
            "name": f"{self.topic}-{name}", "namesrv": self.namesrv, "group": self.topic,
            "topic": self.topic, "tags": "*", "model": "CLUSTERING",
            "from_where": "CONSUME_FROM_FIRST_OFFSET", **options,
        }  # fmt: skip
        self.shell.ask("start_consumer", **arguments)
        self.consumers[f"{self.topic}-{name}"] = []
        return f"{self.topic}-{name}"

    def expect(self, consumer: str, bodies: Sequence[str]) -> list[dict[str, Any]]:
        """Wait for exactly these bodies and those expected before; returns all received."""
        self.consumers[consumer] += bodies
        wait_for_bodies(self.shell, consumer, self.consumers[consumer], self.repeatable)
        return self.shell.consumed(consumer)

    def queues_of(self, consumer: str) -> list[int]:
        found: list[int] = self.shell.ask("queues", name=consumer, topic=self.topic)
        return found

    def stop_consumer(self, consumer: str) -> None:
        """Stop a consumer; it must not have received late or duplicate messages meanwhile."""
        bodies = self.consumers.pop(consumer)
        self.shell.ask("stop_consumer", name=consumer)
        assert_bodies(self.shell, consumer, bodies, self.repeatable)

    def close(self) -> None:
        """Stop all clients first, so that a failure leaves none running."""
        for consumer in self.consumers:
            self.shell.ask("stop_consumer", name=consumer)
        for producer in self.producers:
            self.shell.ask("stop_producer", name=producer)
        for consumer, bodies in self.consumers.items():
            assert_bodies(self.shell, consumer, bodies, self.repeatable)


def wait_for_bodies(
    shell: Shell, consumer: str, bodies: Sequence[str], repeatable: frozenset[str] = frozenset()
) -> None:
    wait_until(
        lambda: not Counter(bodies) - Counter(bodies_at(shell, consumer)),
        f"{len(bodies)} messages at {consumer}",
        timeout_s=SOON_S,
        seen=lambda: ([each["body"][:80] for each in shell.consumed(consumer)], log_of(shell)),
    )
    assert_bodies(shell, consumer, bodies, repeatable)


def bodies_at(shell: Shell, consumer: str) -> list[str]:
    return [each["body"] for each in shell.consumed(consumer)]


def assert_bodies(
    shell: Shell, consumer: str, bodies: Sequence[str], repeatable: frozenset[str] = frozenset()
) -> None:
    """Each body was received once, and others only if they may be repeated."""
    came = Counter(bodies_at(shell, consumer))
    extra = came - Counter(bodies)
    assert not Counter(bodies) - came
    assert not extra.keys() - repeatable, extra


def log_of(shell: Shell) -> str:
    """The end of the clients' log."""
    parts = [shell.report()]
    for path in sorted((shell.home / "logs").rglob("*.log")):
        parts += path.read_text(errors="replace").splitlines()[-60:]
    return "\n".join(parts)


def name_of(request: pytest.FixtureRequest, version: str) -> str:
    test: str = request.function.__name__
    return f"{test.removeprefix('test_')}-{version[0]}"


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, cluster: Cluster, clients: Shells, version: str
) -> Iterator[Stage]:
    it = Stage(cluster, clients(version), name_of(request, version))
    create_topic(cluster, it.topic)
    yield it
    it.close()


@pytest.fixture
def forgetful_stage(
    request: pytest.FixtureRequest, forgetful_cluster: Cluster, clients: Shells, version: str
) -> Iterator[Stage]:
    it = Stage(forgetful_cluster, clients(version), name_of(request, version))
    create_topic(forgetful_cluster, it.topic)
    yield it
    it.close()


def texts(what: str, count: int) -> list[str]:
    return [f"{what} 消息 {number}" for number in range(count)]


def plain(bodies: Sequence[str]) -> list[Message]:
    return [{"body": body} for body in bodies]


def assert_stored(results: Sequence[Any], count: int) -> None:
    assert len(results) == count
    assert [each["status"] for each in results] == ["SEND_OK"] * count, results


# -- sending --------------------------------------------------------------------------------------


def test_sync_to_a_topic_that_the_send_creates(
    cluster: Cluster, clients: Shells, version: str
) -> None:
    stage = Stage(cluster, clients(version), f"made-by-a-send-{version[0]}")
    stage.start_producer(vip=True)
    bodies = texts("sync", 20)
    messages = [
        {"body": body, "tags": "TagA", "keys": f"k{n} 键", "properties": {"城市": f"北京 {n}"}}
        for n, body in enumerate(bodies)
    ]
    sent = stage.send(messages)
    assert_stored(sent, len(bodies))
    assert (
        len({each["msgId"] for each in sent}) == len({each["offsetMsgId"] for each in sent}) == 20
    )
    (queues,) = wait_for_route(cluster, stage.topic)["queueDatas"]
    assert (queues["brokerName"], queues["writeQueueNums"], queues["perm"]) == (NAME, 4, 6)

    got = stage.expect(stage.start_consumer("all"), bodies)
    by_body = {each["body"]: each for each in got}
    for number, (result, body) in enumerate(zip(sent, bodies, strict=True)):
        each = by_body[body]
        assert (each["tags"], each["keys"]) == ("TagA", f"k{number} 键")
        assert each["properties"]["城市"] == f"北京 {number}"
        assert (each["queueId"], each["queueOffset"]) == (result["queueId"], result["queueOffset"])
        assert each["reconsumeTimes"] == 0
    stage.close()


def test_async(stage: Stage) -> None:
    consumer, bodies = stage.start_consumer("all"), texts("async", 50)
    assert_stored(stage.send(plain(bodies), way="async"), len(bodies))
    stage.expect(consumer, bodies)


def test_oneway(stage: Stage) -> None:
    consumer, bodies = stage.start_consumer("all"), texts("oneway", 20)
    assert stage.send(plain(bodies), way="oneway") == []
    stage.expect(consumer, bodies)


def test_batch(stage: Stage) -> None:
    consumer, bodies = stage.start_consumer("all"), texts("batch", 10)
    messages = [
        {"body": body, "tags": f"T{n}", "keys": f"batch-{n}", "properties": {"n": str(n)}}
        for n, body in enumerate(bodies)
    ]
    (sent,) = stage.send(messages, way="batch")
    assert sent["status"] == "SEND_OK"
    ids = sent["offsetMsgId"].split(",")
    assert len(set(ids)) == len(bodies)
    got = sorted(stage.expect(consumer, bodies), key=lambda each: each["queueOffset"])
    assert [each["body"] for each in got] == bodies
    assert {each["queueId"] for each in got} == {sent["queueId"]}
    assert [each["queueOffset"] for each in got] == list(range(10))
    described = [(each["tags"], each["keys"], each["properties"]["n"]) for each in got]
    assert described == [(f"T{n}", f"batch-{n}", str(n)) for n in range(10)]


def test_queue_selector(stage: Stage) -> None:
    consumer = stage.start_consumer("all")
    for queue_id in (2, 0):
        bodies = texts(f"queue {queue_id}", 8)
        sent = stage.send(plain(bodies), way="selector", selector_key=queue_id)
        assert_stored(sent, len(bodies))
        positions = [(each["queueId"], each["queueOffset"]) for each in sent]
        assert positions == [(queue_id, number) for number in range(8)]
        got = [each for each in stage.expect(consumer, bodies) if each["queueId"] == queue_id]
        in_order = sorted(got, key=lambda each: each["queueOffset"])
        assert [each["body"] for each in in_order] == bodies


def test_compressed_body(stage: Stage) -> None:
    consumer = stage.start_consumer("all")
    body = "".join(f"line {number} of a body that shrinks well\n" for number in range(3000))
    assert_stored(stage.send([{"body": body}]), 1)
    (got,) = stage.expect(consumer, [body])
    assert got["storeSize"] < len(body) // 2, "it was stored as the client compressed it"


# -- filters --------------------------------------------------------------------------------------


def send_to_every_queue(stage: Stage, messages: Sequence[Message]) -> None:
    """Send all of them to each queue, with the queue's id before the body."""
    for queue_id in QUEUES:
        own = [each | {"body": f"{queue_id} {each['body']}"} for each in messages]
        assert_stored(stage.send(own, way="selector", selector_key=queue_id), len(own))


def test_tags(stage: Stage) -> None:
    waiting = stage.start_consumer("waiting", tags="TagB || TagC")
    # The last one matches, so all before it have been filtered when it arrives.
    tags = ["TagA", "TagB", "", "TagC", "tagb", "TagBB", "TagA", "TagC"]
    messages = [{"body": f"{n} {tag}", "tags": tag} for n, tag in enumerate(tags)]
    send_to_every_queue(stage, messages)
    matching = [f"{n} {tag}" for n, tag in enumerate(tags) if tag in ("TagB", "TagC")]
    wanted = [f"{queue_id} {body}" for queue_id in QUEUES for body in matching]
    stage.expect(waiting, wanted)
    late = stage.start_consumer("late", group=f"{stage.topic}-late", tags="TagB||TagC")
    stage.expect(late, wanted)


def test_sql92(stage: Stage) -> None:
    sql = "(age BETWEEN 10 AND 20 AND city IN ('北京', 'Rome')) OR TAGS = 'Always'"
    waiting = stage.start_consumer("waiting", sql=sql)
    rows: list[tuple[str, dict[str, str], str]] = [
        ("in", {"age": "15", "city": "北京"}, ""),
        ("too old", {"age": "21", "city": "北京"}, ""),
        ("elsewhere", {"age": "15", "city": "Oslo"}, ""),
        ("edge", {"age": "20", "city": "Rome"}, ""),
        ("unknown age", {"city": "Rome"}, ""),
        ("no number", {"age": "young", "city": "Rome"}, ""),
        ("tagged", {}, "Always"),
    ]
    messages = [{"body": body, "properties": props, "tags": tag} for body, props, tag in rows]
    send_to_every_queue(stage, messages)
    wanted = [f"{queue} {body}" for queue in QUEUES for body in ("in", "edge", "tagged")]
    stage.expect(waiting, wanted)
    late = stage.start_consumer("late", group=f"{stage.topic}-late", sql=sql)
    stage.expect(late, wanted)


def test_invalid_sql92_is_rejected_when_the_consumer_starts(stage: Stage) -> None:
    with pytest.raises(AssertionError, match="MQClientException"):
        stage.start_consumer("bad", sql="age >")
    assert stage.consumers == {}


# -- consuming ------------------------------------------------------------------------------------


def test_broadcasting(stage: Stage) -> None:
    pair = [stage.start_consumer(name, model="BROADCASTING") for name in ("one", "two")]
    wait_until(
        lambda: [stage.queues_of(each) for each in pair] == [QUEUES, QUEUES],
        "all queues at both",
        timeout_s=SOON_S,
    )
    bodies = texts("for everybody", 20)
    assert_stored(stage.send(plain(bodies)), len(bodies))
    for consumer in pair:
        stage.expect(consumer, bodies)


def test_restarted_consumer_resumes_at_its_offset(stage: Stage) -> None:
    before, between, after = (texts(what, 20) for what in ("before", "between", "after"))
    first = stage.start_consumer("first")
    stage.send(plain(before))
    stage.expect(first, before)
    stage.stop_consumer(first)
    stage.send(plain(between))
    second = stage.start_consumer("second")
    stage.expect(second, between)
    stage.send(plain(after))
    stage.expect(second, after)


def test_queues_are_rebalanced_when_a_consumer_joins_or_is_killed(stage: Stage) -> None:
    here = stage.start_consumer("here")
    alone, together, again = (texts(what, 40) for what in ("alone", "together", "again"))
    stage.send(plain(alone))
    stage.expect(here, alone)
    # The joining consumer queries offsets immediately; the next periodic commit may be 5 s away.
    commit_all(stage, here, {"0": 10, "1": 10, "2": 10, "3": 10})

    with broker_shell(stage.shell.version) as other_jvm:
        other = Stage(stage.cluster, other_jvm, stage.topic)
        there = other.start_consumer("there")
        wait_until(
            lambda: sorted([stage.queues_of(here), other.queues_of(there)]) == [[0, 1], [2, 3]],
            "two queues each",
            timeout_s=SOON_S,
            seen=lambda: (stage.queues_of(here), other.queues_of(there)),
        )
        sent = stage.send(plain(together))
        mine = set(stage.queues_of(here))
        by_owner: dict[bool, list[str]] = {True: [], False: []}
        for result, body in zip(sent, together, strict=True):
            by_owner[result["queueId"] in mine].append(body)
        assert len(by_owner[True]) == len(by_owner[False]) == 20
        stage.expect(here, by_owner[True])
        other.expect(there, by_owner[False])
        commit_all(other, there, {str(queue): 20 for queue in QUEUES if queue not in mine})
        other_jvm.process.kill()
        other_jvm.process.wait(SOON_S)

    # The previous owner of the queues may have committed after the killed consumer did.
    stage.repeatable = frozenset(by_owner[False])
    wait_until(
        lambda: stage.queues_of(here) == QUEUES,
        "all queues at the one that is left",
        timeout_s=SOON_S,
        seen=lambda: stage.queues_of(here),
    )
    stage.send(plain(again))
    stage.expect(here, again)


def commit_all(stage: Stage, consumer: str, wanted: dict[str, int]) -> None:
    """A message is complete shortly after its callback, so commit until all are included."""
    wait_until(
        lambda: stage.shell.ask("commit", name=consumer, topic=stage.topic) == wanted,
        f"commit of {wanted}",
        timeout_s=SOON_S,
        seen=lambda: stage.shell.ask("commit", name=consumer, topic=stage.topic),
    )


def test_lite_pull_assigns_and_seeks(stage: Stage) -> None:
    name, ask = f"{stage.topic}-lite", stage.shell.ask
    stage.send(plain(bodies := texts("lite", 40)))
    ask("start_lite_consumer", name=name, namesrv=stage.namesrv, group=name, topic=stage.topic)
    got = ask("poll", name=name, count=len(bodies))
    assert sorted(each["body"] for each in got) == sorted(bodies)

    ask("seek", name=name, topic=stage.topic, queue_id=2, queue_offset=7)
    again = ask("poll", name=name, count=3)
    wanted = [(each["queueId"], each["queueOffset"], each["body"]) for each in got]
    found = [(each["queueId"], each["queueOffset"], each["body"]) for each in again]
    assert found == sorted(each for each in wanted if each[0] == 2 and each[1] >= 7)
    assert len(found) == 3

    stage.send(plain(more := texts("more", 8)))
    assert sorted(each["body"] for each in ask("poll", name=name, count=8)) == sorted(more)
    ask("stop_lite_consumer", name=name)


# -- where a new group begins ---------------------------------------------------------------------


def test_consume_from_first(forgetful_stage: Stage) -> None:
    stage = forgetful_stage
    stage.send(plain(early := texts("early", 8)))
    consumer = stage.start_consumer("first")
    stage.send(plain(late := texts("late", 8)))
    stage.expect(consumer, early + late)


def test_consume_from_last(forgetful_stage: Stage) -> None:
    stage = forgetful_stage
    stage.send(plain(texts("early", 8)))
    consumer = stage.start_consumer("last", from_where="CONSUME_FROM_LAST_OFFSET")
    wait_until(lambda: stage.queues_of(consumer) == QUEUES, "all queues", timeout_s=SOON_S)
    stage.send(plain(late := texts("late", 8)))
    stage.expect(consumer, late)


def test_consume_from_timestamp(forgetful_stage: Stage) -> None:
    stage = forgetful_stage
    stage.send(plain(texts("early", 8)))
    # The client gives the time in whole seconds.
    second = int(time.time()) + 1
    wait_until(lambda: time.time() > second, "the next second", timeout_s=SOON_S)
    stage.send(plain(late := texts("late", 8)))
    consumer = stage.start_consumer(
        "since", from_where="CONSUME_FROM_TIMESTAMP", from_time_ms=second * 1000
    )
    stage.expect(consumer, late)


def test_new_group_reads_a_short_queue_from_its_start(stage: Stage) -> None:
    """As with Apache's broker: messages sent while the group is being set up are not skipped."""
    stage.send(plain(early := texts("early", 8)))
    consumer = stage.start_consumer("last", from_where="CONSUME_FROM_LAST_OFFSET")
    stage.send(plain(late := texts("late", 8)))
    stage.expect(consumer, early + late)


# -- looking for messages -------------------------------------------------------------------------


def test_query_by_key_and_by_id(stage: Stage) -> None:
    messages = [{"body": f"body {n}", "keys": f"order-{n} group-{n % 2}"} for n in range(6)]
    sent = stage.send(messages)
    producer = stage.producers[0]

    def query(key: str) -> list[str]:
        found = stage.shell.ask("query", name=producer, topic=stage.topic, key=key)
        return sorted(each["body"] for each in found)

    assert query("order-3") == ["body 3"]
    assert query("group-1") == ["body 1", "body 3", "body 5"]
    with pytest.raises(AssertionError, match="MQClientException"):
        query("order-6")
    for result, message in zip(sent, messages, strict=True):
        for message_id in (result["offsetMsgId"], result["msgId"]):
            found = stage.shell.ask("view", name=producer, topic=stage.topic, message_id=message_id)
            assert (found["body"], found["keys"]) == (message["body"], message["keys"])
            position = (found["queueId"], found["queueOffset"])
            assert position == (result["queueId"], result["queueOffset"])


# -- mqadmin --------------------------------------------------------------------------------------


@pytest.fixture
def mqadmin(cluster: Cluster, shells: Shells, version: str) -> Callable[..., str]:
    """The stock mqadmin on our servers; its output must not contain a stack trace."""

    def run(*arguments: str) -> str:
        output = shells(version).mqadmin(cluster.namesrv.address, *arguments)
        assert "Exception" not in output, output
        return output

    return run


def test_cluster_list(cluster: Cluster, mqadmin: Callable[..., str]) -> None:
    output = mqadmin("clusterList")
    (row,) = [line.split() for line in output.splitlines() if line.startswith(CLUSTER)]
    assert row[:4] == [CLUSTER, NAME, "0", cluster.broker.address]


def test_update_topic(cluster: Cluster, version: str, mqadmin: Callable[..., str]) -> None:
    topic = f"by-mqadmin-{version[0]}"
    for target in (("-b", cluster.broker.address), ("-c", CLUSTER)):
        for read, write in ((6, 3), (8, 8)):
            output = mqadmin("updateTopic", *target, "-t", topic, "-r", f"{read}", "-w", f"{write}")
            assert f"create topic to {cluster.broker.address} success." in output

            def queues(read: int = read, write: int = write) -> bool:
                (found,) = wait_for_route(cluster, topic)["queueDatas"]
                return (found["readQueueNums"], found["writeQueueNums"]) == (read, write)

            wait_until(queues, f"{read} and {write} queues", timeout_s=SOON_S)


def test_topic_status(stage: Stage, mqadmin: Callable[..., str]) -> None:
    for queue_id, count in ((1, 3), (3, 5)):
        stage.send(plain(texts("status", count)), way="selector", selector_key=queue_id)
    output = mqadmin("topicStatus", "-t", stage.topic)
    rows = [line.split() for line in output.splitlines() if line.startswith(NAME)]
    assert [row[:4] for row in rows] == [
        [NAME, str(queue_id), "0", str({1: 3, 3: 5}.get(queue_id, 0))] for queue_id in QUEUES
    ]


def test_update_group(cluster: Cluster, version: str, mqadmin: Callable[..., str]) -> None:
    group = f"by-mqadmin-{version[0]}"
    address = cluster.broker.address
    output = mqadmin("updateSubGroup", "-b", address, "-g", group, "-r", "7", "-d", "false")
    assert f"create subscription group to {address} success." in output
    saved = cluster.broker.home / "store" / "config" / "subscriptionGroup.json"
    table = json.loads(saved.read_text())["subscriptionGroupTable"]
    assert (table[group]["retryMaxTimes"], table[group]["consumeBroadcastEnable"]) == (7, False)


def test_query_message_by_id(stage: Stage, mqadmin: Callable[..., str]) -> None:
    (sent,) = stage.send([{"body": "found by id", "tags": "TagQ", "keys": "key-q"}])
    message_id = sent["offsetMsgId"]
    # From 5.x on the topic is required, too.
    topic = () if stage.shell.version.startswith("4.") else ("-t", stage.topic)
    output = mqadmin("queryMsgById", "-i", message_id, *topic)
    shown: dict[str, str] = dict(re.findall(r"^([A-Z][A-Za-z ]+): +(.*?) *$", output, re.M))
    assert shown["OffsetID"] == message_id
    assert (shown["Topic"], shown["Tags"], shown["Keys"]) == (stage.topic, "[TagQ]", "[key-q]")
    assert (shown["Queue ID"], shown["Queue Offset"]) == (str(sent["queueId"]), "0")
    assert Path(shown["Message Body Path"]).read_text() == "found by id"
