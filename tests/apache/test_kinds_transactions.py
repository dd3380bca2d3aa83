"""Transactions, order, request-reply, traces and client status, with stock clients.

One JVM of each version runs all clients except the consumer that is killed, which has its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.apache.test_broker_compat import Cluster, create_topic, log_of, our_cluster
from tests.support.apache.servers import Shell, java_shell, wait_until
from tests.support.gate import EACH_VERSION

pytestmark = pytest.mark.apache

SOON_S = 90
COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
PATIENCE_S = 300
IMMUNE_S = 6
"""Long enough to stop a producer."""
LOCK_MS = 4_000
CLIENT_OPTIONS = [
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.lockInterval=1000",
    "-Drocketmq.client.rebalance.lockMaxLiveTime=3000",
]
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture(scope="module")
def cluster(apache: None) -> Iterator[Cluster]:
    settings: dict[str, object] = {
        "transactionTimeOut": 1000,
        "transactionCheckInterval": 500,
        "transactionCheckMax": 200,
        "traceTopicEnable": "true",
        "rocketmq.broker.rebalance.lockMaxLiveTime": LOCK_MS,
    }
    with our_cluster(**settings) as it:
        yield it


@pytest.fixture(scope="module", params=EACH_VERSION)
def shell(request: pytest.FixtureRequest, apache: None) -> Iterator[Shell]:
    with java_shell(request.param, "KindsShell") as it:
        yield it


@dataclass
class Stage:
    """A topic of one test, and the clients that it starts."""

    cluster: Cluster
    shell: Shell
    topic: str
    started: list[tuple[str, str]]

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv.address

    def start(self, verb: str, stop_verb: str, name: str, **options: Any) -> str:  # noqa: ANN401 - JSON
        full = f"{self.topic}-{name}"
        arguments: dict[str, Any] = {"namesrv": self.namesrv, "topic": self.topic} | options
        self.shell.ask(verb, name=full, **arguments)
        self.started.append((stop_verb, full))
        return full

    def producer(self, name: str, *, trace: bool = False) -> str:
        return self.start("start_producer", "stop_producer", name, trace=trace)

    def transactions(self, name: str) -> str:
        return self.start("start_transactions", "stop_producer", name, group=f"{self.topic}-p")

    def consumer(self, name: str, way: str = "plain", **options: Any) -> str:  # noqa: ANN401 - JSON
        arguments = {"group": f"{self.topic}-g", "way": way} | options
        return self.start("start_consumer", "stop_consumer", name, **arguments)

    def stop(self, name: str) -> None:
        (verb,) = (verb for verb, started in self.started if started == name)
        self.started.remove((verb, name))
        self.shell.ask(verb, name=name)

    def transact(self, producer: str, body: str, local: str, check: str, **more: Any) -> Any:  # noqa: ANN401 - JSON
        sent = self.shell.ask(
            "send_transaction", name=producer, topic=self.topic, body=body, local=local,
            check=check, **more,
        )  # fmt: skip
        assert sent["status"] == "SEND_OK", sent
        assert sent["state"] == local
        assert sent["transactionId"] == sent["msgId"], sent
        return sent

    def send(self, producer: str, bodies: Sequence[str], **more: Any) -> list[Any]:  # noqa: ANN401 - JSON
        arguments: dict[str, Any] = {"topic": self.topic, "bodies": list(bodies)} | more
        sent: list[Any] = self.shell.ask("send", name=producer, **arguments)
        return sent

    def bodies(self, listener: str) -> list[str]:
        return [each["body"] for each in self.shell.consumed(listener)]

    def wait_for(self, listener: str, bodies: Sequence[str]) -> None:
        """Wait until each of these has been received; others may be, too."""
        wait_until(
            lambda: set(bodies) <= set(self.bodies(listener)),
            f"{bodies} at {listener}",
            timeout_s=SOON_S,
            seen=lambda: (self.bodies(listener), log_of(self.shell)),
        )

    def close(self) -> None:
        for verb, name in reversed(self.started):
            self.shell.ask(verb, name=name)


@pytest.fixture
def stage(request: pytest.FixtureRequest, cluster: Cluster, shell: Shell) -> Iterator[Stage]:
    test: str = request.function.__name__
    it = Stage(cluster, shell, f"{test.removeprefix('test_')[:40]}-{shell.version[0]}", [])
    create_topic(cluster, it.topic)
    yield it
    it.close()


# -- transactions ---------------------------------------------------------------------------------


def test_commit_rollback_and_check_back(stage: Stage) -> None:
    consumer = stage.consumer("c")
    producer = stage.transactions("p")
    checks = f"{producer}-checks"
    # These two must not be checked, however late the client ends them.
    committed = stage.transact(producer, "committed", COMMIT, ROLLBACK, immune_s=PATIENCE_S)
    stage.transact(producer, "rolled back", ROLLBACK, COMMIT, immune_s=PATIENCE_S)
    stage.transact(producer, "committed by a check", UNKNOWN, COMMIT)
    stage.transact(producer, "rolled back by a check", UNKNOWN, ROLLBACK)
    expected = ["committed", "committed by a check"]
    stage.wait_for(consumer, expected)
    stage.wait_for(checks, ["committed by a check", "rolled back by a check"])
    # All four are ended; nothing is checked or delivered after another two rounds of checks.
    last = stage.transact(producer, "last", UNKNOWN, COMMIT)
    stage.wait_for(consumer, ["last"])
    assert sorted(stage.bodies(consumer)) == sorted([*expected, "last"])
    assert set(stage.bodies(checks)) == {"committed by a check", "rolled back by a check", "last"}
    by_body = {each["body"]: each for each in stage.shell.consumed(consumer)}
    assert by_body["committed"]["topic"] == stage.topic
    assert by_body["committed"]["properties"]["UNIQ_KEY"] == committed["msgId"]
    assert by_body["last"]["properties"]["TRANSACTION_CHECK_TIMES"] >= "1"
    checked = {each["body"]: each for each in stage.shell.consumed(checks)}["last"]
    assert (checked["topic"], checked["transactionId"]) == (stage.topic, last["msgId"])


def test_the_delay_of_a_transaction_is_ignored_or_rejected(stage: Stage) -> None:
    consumer, producer = stage.consumer("c"), stage.transactions("p")
    if stage.shell.version.startswith("4"):
        stage.transact(producer, "delay ignored", COMMIT, COMMIT, delay_level=18)
        stage.wait_for(consumer, ["delay ignored"])
    else:
        with pytest.raises(AssertionError, match="do not support delayed delivery"):
            stage.transact(producer, "delay refused", COMMIT, COMMIT, delay_level=18)


def test_another_producer_of_the_group_answers_the_check(stage: Stage) -> None:
    consumer = stage.consumer("c")
    first = stage.transactions("first")
    stage.transact(first, "left behind", UNKNOWN, UNKNOWN)
    stage.transact(first, "taken over", UNKNOWN, COMMIT, immune_s=IMMUNE_S)
    stage.stop(first)
    second = stage.transactions("second")
    # A 5.x producer connects to a broker, and is registered there, with its first send.
    stage.transact(second, "its own", COMMIT, COMMIT)
    stage.wait_for(consumer, ["taken over", "its own"])
    stage.wait_for(f"{second}-checks", ["taken over", "left behind"])
    assert set(stage.bodies(consumer)) == {"taken over", "its own"}


# -- order ----------------------------------------------------------------------------------------


def test_order_survives_a_killed_consumer(stage: Stage) -> None:
    per_queue = 60
    sent = {
        queue_id: [f"{queue_id}-{number:03}" for number in range(per_queue)]
        for queue_id in range(4)
    }
    producer = stage.producer("p")
    with java_shell(stage.shell.version, "KindsShell") as doomed:
        arguments: dict[str, Any] = {
            "namesrv": stage.namesrv, "topic": stage.topic, "group": f"{stage.topic}-g",
            "way": "orderly", "pause_ms": 10,
        }  # fmt: skip
        doomed.ask("start_consumer", name="doomed", **arguments)
        survivor = stage.consumer("survivor", "orderly", pause_ms=10)
        wait_until(
            lambda: [len(doomed.ask("queues", name="doomed", topic=stage.topic)),
                     len(stage.shell.ask("queues", name=survivor, topic=stage.topic))] == [2, 2],
            "two queues each",
            timeout_s=SOON_S,
        )  # fmt: skip
        for queue_id, bodies in sent.items():
            stage.send(producer, bodies[: per_queue // 2], queue_id=queue_id)
        wait_until(
            lambda: len(doomed.consumed("doomed")) >= 10 and stage.bodies(survivor),
            "both consumers at work",
            timeout_s=SOON_S,
            seen=lambda: (len(doomed.consumed("doomed")), len(stage.bodies(survivor))),
        )
        doomed.process.kill()
        doomed.process.wait(timeout=SOON_S)
        doomed.reader.join(timeout=SOON_S)
        before = list(doomed.consumed("doomed"))
    for queue_id, bodies in sent.items():
        stage.send(producer, bodies[per_queue // 2 :], queue_id=queue_id)
    everything = [body for bodies in sent.values() for body in bodies]
    wait_until(
        lambda: {*stage.bodies(survivor), *(each["body"] for each in before)} >= set(everything),
        "every message at one of the two",
        timeout_s=SOON_S,
        seen=lambda: (len(stage.bodies(survivor)), len(before)),
    )
    for queue_id, bodies in sent.items():
        assert_in_order(queue_id, bodies, before, stage.shell.consumed(survivor))


def test_an_orderly_consumer_gives_up_a_failing_message_and_preserves_the_order(
    stage: Stage,
) -> None:
    """The queue is blocked during retries; then the message is dead, and the rest follows."""
    times_max = 3
    bodies = {
        queue_id: [f"{queue_id}-{number}" for number in range(6)] for queue_id in range(2)
    }  # fmt: skip
    failing = bodies[0][2]
    producer = stage.producer("p")
    for queue_id, each in bodies.items():
        stage.send(producer, each, queue_id=queue_id)
    consumer = stage.consumer(
        "c", "orderly", failing=failing, max_reconsume_times=times_max
    )  # fmt: skip
    stage.wait_for(consumer, [*bodies[0], *bodies[1]])
    seen = stage.shell.consumed(consumer)
    in_queue = {
        queue_id: [each["body"] for each in seen if each["queueId"] == queue_id]
        for queue_id in bodies
    }
    tries = [failing] * (times_max + 1)
    assert in_queue == {0: [*bodies[0][:2], *tries, *bodies[0][3:]], 1: bodies[1]}
    failed = [each for each in seen if each["body"] == failing]
    assert [each["reconsumeTimes"] for each in failed] == list(range(times_max + 1))
    graveyard = stage.consumer(
        "dead", topic=f"%DLQ%{stage.topic}-g", group=f"{stage.topic}-dead"
    )  # fmt: skip
    stage.wait_for(graveyard, [failing])
    (dead,) = stage.shell.consumed(graveyard)
    assert dead["properties"]["RETRY_TOPIC"] == stage.topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"] == failed[0]["msgId"]
    # Clients of 4.9 send it back with the number of retries; those of 5.x add one.
    of_5 = not stage.shell.version.startswith("4")
    assert dead["reconsumeTimes"] == times_max + of_5


def assert_in_order(
    queue_id: int,
    bodies: Sequence[str],
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
) -> None:
    """Messages of a queue arrive in order; a new owner may repeat uncommitted ones."""
    first = [each["body"] for each in before if each["queueId"] == queue_id]
    second = [each["body"] for each in after if each["queueId"] == queue_id]
    for seen in (first, second):
        start = bodies.index(seen[0]) if seen else 0
        assert seen == list(bodies[start : start + len(seen)]), f"queue {queue_id}"
    if first and second and first[0] < second[0]:
        assert second[0] <= bodies[min(len(first), len(bodies) - 1)], "nothing is left out"


# -- request and reply, traces --------------------------------------------------------------------


def test_a_request_is_answered(stage: Stage) -> None:
    replier = stage.producer("replier")
    stage.consumer("c", "reply", producer=replier)
    asker = stage.producer("asker")
    for body in ("one", "two"):
        reply = stage.shell.ask("request", name=asker, topic=stage.topic, body=body)
        assert reply == f"re: {body}"


def test_traces_can_be_read(stage: Stage) -> None:
    stage.shell.ask("start_admin", namesrv=stage.namesrv)
    try:
        reader = stage.consumer("c", topic=TRACE_TOPIC)
        producer = stage.producer("p", trace=True)
        stage.consumer("t", group=f"{stage.topic}-t", trace=True)
        (sent,) = stage.send(producer, ["traced"])

        def traces() -> dict[str, Any]:
            found: list[Any] = []
            for body in stage.bodies(reader):
                found += stage.shell.ask("decode_trace", body=body)
            return {each["type"]: each for each in found if each["msgId"] == sent["msgId"]}

        wait_until(
            lambda: {"Pub", "SubBefore", "SubAfter"} <= traces().keys(),
            "traces of the message, sent and consumed", timeout_s=SOON_S, seen=traces,
        )  # fmt: skip
        trace = traces()["Pub"]
        assert (trace["topic"], trace["success"]) == (stage.topic, True)
    finally:
        stage.shell.ask("stop_admin")


# -- questions ------------------------------------------------------------------------------------


def test_mqadmin_reports_message_and_consumer_status(stage: Stage) -> None:
    ask = stage.shell.ask
    producer, consumer = stage.producer("p"), stage.consumer("c")
    group = f"{stage.topic}-g"
    sent = stage.send(producer, ["a", "b"], keys="k1 k2", queue_id=2)
    stage.wait_for(consumer, ["a", "b"])
    ask("start_admin", namesrv=stage.namesrv)
    try:
        for key in ("k1", "k2"):
            found = ask("query", topic=stage.topic, key=key)
            assert sorted(each["body"] for each in found) == ["a", "b"]
        for each, body in zip(sent, ("a", "b"), strict=True):
            by_place = ask("view", topic=stage.topic, message_id=each["offsetMsgId"])
            by_producers_id = ask("view", topic=stage.topic, message_id=each["msgId"])
            assert by_place["body"] == by_producers_id["body"] == body
        client = ask("client_id", name=consumer)
        info = ask("running_info", group=group, client=client, jstack=True)
        assert (info["orderly"], "ConsumeMessageThread" in info["jstack"]) == ("false", True)
        assert info["queues"] >= 4
        directly = ask(
            "consume_directly", group=group, client=client, topic=stage.topic,
            message_id=sent[0]["msgId"],
        )  # fmt: skip
        assert directly["result"] == "CR_SUCCESS", directly
        assert stage.bodies(consumer).count("a") == 2

        def status() -> dict[str, Any]:
            found: dict[str, dict[str, Any]] = ask(
                "consume_status", topic=stage.topic, group=group, client=client
            )
            return found[client]

        # A message is complete shortly after its callback.
        wait_until(lambda: status()["2"] == 2, "both done", timeout_s=SOON_S, seen=status)
        reset = ask("reset_offset", topic=stage.topic, group=group, time_ms=0)
        assert reset == {"0": 0, "1": 0, "2": 0, "3": 0}
        wait_until(
            lambda: stage.bodies(consumer).count("b") == 2,
            "the second delivery after the reset",
            timeout_s=SOON_S,
            seen=lambda: (stage.bodies(consumer), log_of(stage.shell)),
        )
    finally:
        ask("stop_admin")


def test_the_error_of_an_offline_consumer_says_so(stage: Stage) -> None:
    stage.shell.ask("start_admin", namesrv=stage.namesrv)
    stage.consumer("c")
    try:
        # The tool finds the broker by the group's retry topic, which is registered with nameservers
        # a little later.
        def refusal() -> str:
            with pytest.raises(AssertionError) as caught:
                stage.shell.ask(
                    "running_info", group=f"{stage.topic}-g", client="nobody", jstack=False
                )
            return str(caught.value)

        wait_until(
            lambda: "not online" in refusal(), "the refusal", timeout_s=SOON_S, seen=refusal
        )  # fmt: skip
    finally:
        stage.shell.ask("stop_admin")
