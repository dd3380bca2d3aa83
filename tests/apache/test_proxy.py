"""The stock gRPC client on Apache's proxy 5.5.0, in cluster mode with our nameserver and broker.

The proxy appends the log offset to receipt handles, so they have nine fields.
"""

import json
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.apache.test_broker_compat import our_cluster
from tests.support.apache.jars import GRPC, PROXY
from tests.support.apache.jvm import java_command, make_home
from tests.support.apache.processes import LOOPBACK, START_TIMEOUT_S, is_listening
from tests.support.apache.servers import Server, Shell, ask_server, java_shell, wait_until
from tests.support.ports import free_port
from tianzhou.protocol.bodies import decode
from tianzhou.protocol.bodies.stats import ConsumeStats
from tianzhou.protocol.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.apache

SOON_S = 60
LONG_MS = 120_000
TOPICS = {
    "normal": "NORMAL",
    "failing": "NORMAL",
    "simple": "NORMAL",
    "changed": "NORMAL",
    "dead": "NORMAL",
    "fifo": "FIFO",
    "fifo-simple": "FIFO",
    "delayed": "DELAY",
    "halves": "TRANSACTION",
}
ORDERLY = ("fifo", "fifo-simple")
DLQ_ATTEMPTS = 1
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stage:
    """The clients, the address of the proxy, and our broker behind it."""

    shell: Shell
    endpoints: str
    broker: Server
    proxy: Server

    def ask(self, verb: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever JSON holds
        return self.shell.ask(verb, timeout_s=SOON_S, endpoints=self.endpoints, **arguments)

    def send(self, topic: str, bodies: list[str], **options: object) -> list[Message]:
        sent: list[Message] = self.ask("send", name="p", topic=topic, bodies=bodies, **options)
        return sent

    def consumed(self, name: str, count: int) -> list[Message]:
        """The messages of a push consumer, once there are `count`."""
        wait_until(
            lambda: len(self.shell.consumed(name)) >= count,
            f"{count} messages for {name}",
            timeout_s=SOON_S,
            seen=lambda: f"{self.shell.consumed(name)} {self.shell.report()}",
        )
        return self.shell.consumed(name)

    def received(self, name: str, count: int, invisible_ms: int = LONG_MS) -> list[Message]:
        """The messages of a simple consumer, once there are `count`."""
        found: list[Message] = []

        def enough() -> bool:
            found.extend(
                self.ask("receive", name=name, count=count - len(found), invisible_ms=invisible_ms)
            )
            return len(found) >= count

        wait_until(enough, f"{count} messages for {name}", timeout_s=SOON_S, seen=lambda: found)
        return found

    def await_acknowledged(self, topic: str) -> None:
        """Wait until the group of a topic has acknowledged all of its messages."""
        wait_until(
            lambda: self.backlog(topic) == 0,
            f"acknowledgement of all messages of {topic}",
            timeout_s=SOON_S,
            seen=lambda: f"{self.backlog(topic)} left, {self.proxy.report()}",
        )

    def backlog(self, topic: str) -> int:
        """How many messages the group of a topic has not acknowledged."""
        fields = {"consumerGroup": f"g-{topic}", "topic": topic}
        answer = ask_server(self.broker.address, RequestCode.GET_CONSUME_STATS, fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        rows = decode(ConsumeStats, answer.body).offsets.values()
        return sum(row.broker_offset - row.consumer_offset for row in rows)


@pytest.fixture(scope="module")
def stage(apache: None) -> Iterator[Stage]:
    with our_cluster(
        transactionTimeOut=1_000,
        transactionCheckInterval=1_000,
        popFromRetryProbability=100,
        recallMessageEnable="true",
    ) as cluster:
        for topic, kind in TOPICS.items():
            create(cluster.broker, topic, kind)
        with running_proxy(cluster.namesrv.address) as proxy, java_shell(GRPC, "ProxyShell") as it:
            stage = Stage(it, proxy.address, cluster.broker, proxy)
            stage.ask("start_producer", name="p", topics=list(TOPICS))
            yield stage


def create(broker: Server, topic: str, kind: str) -> None:
    """A topic for messages of a kind, and its group."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": f"+message.type={kind}",
    }  # fmt: skip
    answer = ask_server(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SUCCESS, answer
    group = {
        "groupName": f"g-{topic}",
        "consumeMessageOrderly": topic in ORDERLY,
        "retryMaxTimes": DLQ_ATTEMPTS if topic == "dead" else 16,
    }
    answer = ask_server(
        broker.address,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        body=json.dumps(group).encode(),
    )
    assert answer.code == ResponseCode.SUCCESS, answer


@contextmanager
def running_proxy(namesrv: str) -> Generator[Server]:
    """Apache's proxy in cluster mode."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="apache-proxy-") as directory:
        home = make_home(Path(directory))
        settings = {
            "rocketMQClusterName": "DefaultCluster",
            "namesrvAddr": namesrv,
            "proxyMode": "CLUSTER",
            "localServeAddr": LOOPBACK,
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "transactionHeartbeatPeriodSecond": 1,
        }
        configuration = home / "conf" / "rmq-proxy.json"
        configuration.write_text(json.dumps(settings))
        command = [
            *java_command(PROXY, home),
            *("Launch", "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(configuration)),
        ]
        proxy = Server("Apache proxy", f"{LOOPBACK}:{port}", home, command)
        try:
            wait_until(
                lambda: "startup successfully" in proxy.output() and is_listening(port),
                "start of the proxy",
                timeout_s=START_TIMEOUT_S,
                seen=proxy.report,
            )
            yield proxy
        finally:
            proxy.kill()


# -- what clients do -------------------------------------------------------------------------------


def test_a_push_consumer_acknowledges_its_messages(stage: Stage) -> None:
    bodies = [f"normal-{at}" for at in range(20)]
    stage.send("normal", bodies)
    stage.ask("start_push", name="push", group="g-normal", topic="normal", failures=0)
    assert sorted(each["body"] for each in stage.consumed("push", 20)) == sorted(bodies)
    stage.await_acknowledged("normal")
    assert len(stage.shell.consumed("push")) == 20


def test_a_failed_message_is_redelivered_and_acknowledged(stage: Stage) -> None:
    stage.send("failing", ["once"])
    stage.ask("start_push", name="failing", group="g-failing", topic="failing", failures=1)
    assert [each["attempt"] for each in stage.consumed("failing", 2)] == [1, 2]
    stage.await_acknowledged("failing")


def test_a_simple_consumer_acknowledges_and_changes_the_invisible_time(stage: Stage) -> None:
    stage.send("simple", ["a", "b", "c"])
    stage.ask("start_simple", name="simple", group="g-simple", topic="simple")
    assert {each["body"] for each in stage.received("simple", 3)} == {"a", "b", "c"}
    stage.ask("change_invisible", name="simple", body="a", invisible_ms=1_000)
    for body in "bc":
        stage.ask("ack", name="simple", body=body)
    [again] = stage.received("simple", 1)
    assert (again["body"], again["attempt"]) == ("a", 2), "after the time that it was given"
    stage.ask("ack", name="simple", body="a")
    stage.await_acknowledged("simple")


def test_the_handle_of_a_changed_invisible_time_is_acknowledged(stage: Stage) -> None:
    stage.send("changed", ["late"])
    stage.ask("start_simple", name="changed", group="g-changed", topic="changed")
    stage.received("changed", 1)
    stage.ask("change_invisible", name="changed", body="late", invisible_ms=60_000)
    stage.ask("ack", name="changed", body="late")
    stage.await_acknowledged("changed")


def test_messages_of_a_group_are_consumed_in_order(stage: Stage) -> None:
    bodies = [f"{at}" for at in range(8)]
    stage.send("fifo", bodies, message_group="one")
    stage.ask("start_push", name="fifo", group="g-fifo", topic="fifo", failures=0)
    assert [each["body"] for each in stage.consumed("fifo", 8)] == bodies
    stage.await_acknowledged("fifo")


def test_an_ordered_simple_consumer_gets_the_next_message_after_the_acknowledgement(
    stage: Stage,
) -> None:
    stage.send("fifo-simple", ["1", "2"], message_group="one")
    stage.ask("start_simple", name="ordered", group="g-fifo-simple", topic="fifo-simple")
    assert [each["body"] for each in stage.received("ordered", 1)] == ["1"]
    stage.ask("change_invisible", name="ordered", body="1", invisible_ms=60_000)
    stage.ask("ack", name="ordered", body="1")
    assert [each["body"] for each in stage.received("ordered", 1)] == ["2"]
    stage.ask("ack", name="ordered", body="2")
    stage.await_acknowledged("fifo-simple")


def test_a_delayed_message_arrives_at_its_time_unless_it_is_recalled(stage: Stage) -> None:
    [recalled] = stage.send("delayed", ["recalled"], delay_ms=5_000)
    stage.ask("recall", name="p", topic="delayed", handle=recalled["recallHandle"])
    stage.send("delayed", ["delayed"], delay_ms=6_000)
    began_ms = time.time() * 1000
    stage.ask("start_push", name="delayed", group="g-delayed", topic="delayed", failures=0)
    [got] = stage.consumed("delayed", 1)
    assert got["body"] == "delayed"
    assert got["nowMs"] > began_ms + 4_000
    stage.await_acknowledged("delayed")


def test_transactions_are_committed_rolled_back_and_checked(stage: Stage) -> None:
    stage.send("halves", ["committed"], transaction="commit")
    stage.send("halves", ["rolled back"], transaction="roll_back")
    stage.send("halves", ["checked"], transaction="leave")
    stage.ask("start_push", name="halves", group="g-halves", topic="halves", failures=0)
    assert {each["body"] for each in stage.consumed("halves", 2)} == {"committed", "checked"}
    assert "checked" in [each["body"] for each in stage.shell.consumed("p-check")]
    stage.await_acknowledged("halves")


def test_a_message_that_always_fails_becomes_a_dead_letter(stage: Stage) -> None:
    stage.send("dead", ["hopeless"])
    stage.ask("start_push", name="dead", group="g-dead", topic="dead", failures=99)
    stage.consumed("dead", DLQ_ATTEMPTS)

    def dead_letters() -> int:
        fields = {"topic": "%DLQ%g-dead", "queueId": "0"}
        answer = ask_server(stage.broker.address, RequestCode.GET_MAX_OFFSET, fields)
        return int(answer.fields.get("offset", 0))

    wait_until(dead_letters, "a dead letter", timeout_s=SOON_S, seen=stage.proxy.report)
    stage.await_acknowledged("dead")
