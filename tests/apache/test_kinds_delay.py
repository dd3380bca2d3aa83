"""Stock clients on our broker: delayed, timed, recalled, retried and dead messages.

Every test has a topic and a group of its own. A message that is a millisecond early is a failure.
Lateness is measured by the broker's clock when it stores the message for consumers; a busy machine
may delay a run, so there are several, and one in which all messages are in time is enough.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.apache.test_broker_compat import Cluster, our_cluster
from tests.support.apache.requests import SUCCESS, ask_server
from tests.support.apache.servers import (
    BROKER_DEFAULTS,
    Shell,
    apache_broker,
    java_shells,
    tianzhou_broker,
    tianzhou_namesrv,
    wait_until,
)
from tests.support.gate import EACH_VERSION
from tianzhou.protocol.records.record import decode_record

pytestmark = pytest.mark.apache

SOON_S = 90
LEVEL_LATE_MS_MAX = 150
MOMENT_LATE_MS_MAX = 100
RUNS_MAX = 5
LEVELS_S = (1, 2, 1, 2, 3)
"""Retries begin with the third level, so each waits longer than the one before."""
VIEW_MESSAGE_BY_ID = 33
Shells = Callable[[str], Shell]
Message = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(apache: None) -> Iterator[Cluster]:
    levels = " ".join(f"{seconds}s" for seconds in LEVELS_S)
    with our_cluster(messageDelayLevel=levels, recallMessageEnable="true") as it:
        yield it


@pytest.fixture(scope="module")
def shells(apache: None) -> Iterator[Shells]:
    with java_shells("DelayShell") as shell:
        yield shell


def consumed(shell: Shell, name: str, count: int) -> list[Message]:
    """The messages of a consumer, once there are `count`."""
    wait_until(
        lambda: len(shell.consumed(name)) >= count,
        f"{count} messages for {name}",
        timeout_s=SOON_S,
        seen=lambda: str(shell.consumed(name)),
    )
    return shell.consumed(name)


def start(
    shell: Shell, cluster: Cluster, topic: str, *, succeed_after: int = 0, max_times: int = 16
) -> None:
    """A producer and a consumer, both named by the topic."""
    namesrv = cluster.namesrv.address
    shell.ask("start_producer", name=f"p-{topic}", namesrv=namesrv)
    # The first message creates the topic, and consumers query its route every 30 s.
    shell.ask("send", name=f"p-{topic}", topic=topic, body="hello")
    shell.ask(
        "start_consumer", name=f"c-{topic}", namesrv=namesrv, group=f"g-{topic}",
        topic=topic, succeed_after=succeed_after, max_reconsume_times=max_times,
    )  # fmt: skip
    consumed(shell, f"c-{topic}", 1)


def stored_ms(cluster: Cluster, offset_id: str) -> int:
    """When the broker stored the delayed message."""
    log_offset = int(offset_id[-16:], 16)
    answer = ask_server(cluster.broker.address, VIEW_MESSAGE_BY_ID, {"offset": str(log_offset)})
    assert answer.code == SUCCESS, answer.remark
    return decode_record(answer.body).store_time_ms


def check_in_time(what: str, late_ms_max: int, run: Callable[[int], list[int]]) -> None:
    """One of several runs must be in time; each returns how late its messages were."""
    worst_ms: list[int] = []
    for number in range(RUNS_MAX):
        late_ms = run(number)
        print(f"{what}: late by {sorted(late_ms)} ms")  # noqa: T201 - pytest -rP shows it
        worst_ms.append(max(late_ms))
        if worst_ms[-1] <= late_ms_max:
            return
    pytest.fail(f"{what}: the latest of each run is late by {worst_ms} ms")


@pytest.mark.parametrize("version", EACH_VERSION)
def test_delay_levels(shells: Shells, cluster: Cluster, version: str) -> None:
    shell, topic = shells(version), f"levels-{version.replace('.', '-')}"
    start(shell, cluster, topic)

    def run(number: int) -> list[int]:
        due_ms: dict[str, int] = {}
        for level in (1, 2, 3, 4):
            body = f"run {number}, level {level}"
            sent = shell.ask(
                "send", name=f"p-{topic}", topic=topic, body=body, delay_level=level
            )  # fmt: skip
            assert sent["status"] == "SEND_OK"
            due_ms[body] = stored_ms(cluster, sent["offsetMsgId"]) + LEVELS_S[level - 1] * 1000
        seen = consumed(shell, f"c-{topic}", 1 + 4 * (number + 1))
        late_ms = {m["body"]: m["storeMs"] - due_ms[m["body"]] for m in seen if m["body"] in due_ms}
        assert late_ms.keys() == due_ms.keys()
        assert min(late_ms.values()) >= 0, f"early: {late_ms}"
        assert all("DELAY" not in m["properties"] for m in seen)
        return list(late_ms.values())

    check_in_time(f"{version} delay levels", LEVEL_LATE_MS_MAX, run)


@pytest.mark.parametrize("version", EACH_VERSION)
def test_timer_messages_arrive_at_any_time(shells: Shells, cluster: Cluster, version: str) -> None:
    shell, topic = shells(version), f"moment-{version.replace('.', '-')}"
    start(shell, cluster, topic)
    asked: list[tuple[str, int, int]] = [
        ("deliver_in_ms", 1500, 1500),
        ("deliver_in_ms", 2345, 2345),
        ("delay_ms", 1234, 1234),
        ("delay_sec", 2, 2000),
    ]

    def run(number: int) -> list[int]:
        earliest_ms: dict[str, int] = {}
        due_ms: dict[str, int] = {}
        for name, value, wait_ms in asked:
            body = f"run {number}, {name} {value}"
            sent = shell.ask("send", name=f"p-{topic}", topic=topic, body=body, **{name: value})
            assert sent["status"] == "SEND_OK"
            earliest_ms[body] = due_ms[body] = sent["beforeMs"] + wait_ms
            if name != "deliver_in_ms":
                # A delay begins when the broker receives the message.
                due_ms[body] = stored_ms(cluster, sent["offsetMsgId"]) + wait_ms
        seen = consumed(shell, f"c-{topic}", 1 + len(asked) * (number + 1))
        came_ms = {m["body"]: m["storeMs"] for m in seen if m["body"] in due_ms}
        assert came_ms.keys() == due_ms.keys()
        assert all(came_ms[body] >= at_ms for body, at_ms in earliest_ms.items()), "early"
        return [came_ms[body] - at_ms for body, at_ms in due_ms.items()]

    check_in_time(f"{version} any moment", MOMENT_LATE_MS_MAX, run)


def test_recall(shells: Shells, cluster: Cluster) -> None:
    shell, topic = shells("5.5.0"), "recall-5-5-0"
    start(shell, cluster, topic)
    handles = {
        body: shell.ask(
            "send", name=f"p-{topic}", topic=topic, body=body, deliver_in_ms=wait_ms
        )
        for body, wait_ms in (("kept", 6000), ("taken back", 6000), ("last", 6500))
    }  # fmt: skip
    handle = handles["taken back"]["recallHandle"]
    recalled = shell.ask("recall", name=f"p-{topic}", topic=topic, handle=handle)
    assert recalled == handles["taken back"]["msgId"]
    seen = {m["body"] for m in consumed(shell, f"c-{topic}", 3)}
    assert seen == {"hello", "kept", "last"}


def waits_of_retries(shell: Shell, cluster: Cluster, topic: str) -> tuple[list[Message], list[int]]:
    """All deliveries of a message that always fails, and the broker's delay before each retry.

    Measured from the call of the listener until the broker stores the message for the next retry.
    That includes sending it back, so it can be too long and never too short.
    """
    start(shell, cluster, topic, max_times=3, succeed_after=99)
    tries = [m for m in consumed(shell, f"c-{topic}", 4) if m["body"] == "hello"]
    return tries, [after["storeMs"] - before["nowMs"] for before, after in pairwise(tries)]


@pytest.mark.parametrize("version", EACH_VERSION)
def test_a_failing_message_is_retried_with_growing_delays_and_becomes_a_dead_letter(
    shells: Shells, cluster: Cluster, version: str
) -> None:
    shell, levels_ms = shells(version), [1000 * LEVELS_S[level - 1] for level in (3, 4, 5)]
    assert levels_ms == sorted(set(levels_ms)), "or nothing would rise"
    topic, tries, waits_ms = "", list[Message](), list[int]()
    for number in range(RUNS_MAX):
        topic = f"fails-{number}-{version.replace('.', '-')}"
        tries, waits_ms = waits_of_retries(shell, cluster, topic)
        assert all(wait >= level for wait, level in zip(waits_ms, levels_ms, strict=True)), waits_ms
        if waits_ms == sorted(waits_ms):
            break
    assert waits_ms == sorted(waits_ms), f"waits of {waits_ms} ms"
    assert [m["reconsumeTimes"] for m in tries] == [0, 1, 2, 3]
    assert {m["topic"] for m in tries} == {topic}, "clients show the topic it was first in"
    assert len({m["msgId"] for m in tries}) == 1
    dead_letters = f"dead-{topic}"
    shell.ask(
        "start_consumer", name=dead_letters, namesrv=cluster.namesrv.address,
        group=f"g-{dead_letters}", topic=f"%DLQ%g-{topic}",
    )  # fmt: skip
    (dead,) = consumed(shell, dead_letters, 1)
    assert dead["body"] == "hello"
    assert dead["msgId"] == tries[0]["msgId"]
    assert dead["properties"]["RETRY_TOPIC"] == topic
    assert dead["properties"]["ORIGIN_MESSAGE_ID"]
    assert dead["reconsumeTimes"] == 4


@pytest.mark.parametrize("version", EACH_VERSION)
def test_a_message_that_succeeds_on_retry_is_not_redelivered(
    shells: Shells, cluster: Cluster, version: str
) -> None:
    shell, topic = shells(version), f"second-{version.replace('.', '-')}"
    start(shell, cluster, topic, succeed_after=1)
    tries = consumed(shell, f"c-{topic}", 2)
    assert [m["reconsumeTimes"] for m in tries] == [0, 1]
    assert tries[1]["nowMs"] - tries[0]["nowMs"] >= LEVELS_S[2] * 1000


TWO_LEVELS = "1s 15s"
SHAPE: dict[str, object] = {
    key: BROKER_DEFAULTS[key]
    for key in (
        "mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum",
    )
} | {"messageDelayLevel": TWO_LEVELS}  # fmt: skip
"""Settings that must be the same for every broker of a store."""


def test_delayed_messages_survive_moving_the_store_to_rocketmq_and_back(
    shells: Shells, apache: None, tmp_path: Path
) -> None:
    """A store with delayed messages moves to another broker; each arrives once, and none early."""
    shell, topic, store = shells("5.5.0"), "moving", tmp_path / "store"
    due_ms: dict[str, int] = {}

    def send(body: str, wait_ms: int, **how: int) -> None:
        sent = shell.ask("send", name=producer, topic=topic, body=body, **how)
        assert sent["status"] == "SEND_OK"
        due_ms[body] = sent["beforeMs"] + wait_ms

    def all_of(consumer: str) -> list[Message]:
        """The messages of a new group, once everything that was sent has arrived."""
        shell.ask(
            "start_consumer", name=consumer, namesrv=namesrv.address, group=f"g-{consumer}",
            topic=topic,
        )  # fmt: skip
        return consumed(shell, consumer, len(due_ms))

    with tianzhou_namesrv() as namesrv:
        with tianzhou_broker(namesrv, storePathRootDir=store, **SHAPE):
            producer = "p-moving-1"
            shell.ask("start_producer", name=producer, namesrv=namesrv.address)
            send("delivered by us: timed", 500, delay_ms=500)
            send("delivered by us: delayed", 1000, delay_level=1)
            all_of("moving-1")
            send("for RocketMQ: timed", 15_000, delay_ms=15_000)
            send("for RocketMQ: delayed", 15_000, delay_level=2)
            shell.ask("stop_consumer", name="moving-1")
        with apache_broker("5.5.0", namesrv.address, store_dir=store, messageDelayLevel=TWO_LEVELS):
            all_of("moving-2")
            producer = "p-moving-2"
            shell.ask("start_producer", name=producer, namesrv=namesrv.address)
            send("for us: timed", 15_000, delay_ms=15_000)
            send("for us: delayed", 15_000, delay_level=2)
            shell.ask("stop_consumer", name="moving-2")
        with tianzhou_broker(namesrv, storePathRootDir=store, **SHAPE):
            seen = all_of("moving-3")
            shell.ask("stop_consumer", name="moving-3")
    assert sorted(m["body"] for m in seen) == sorted(due_ms)
    early = [m for m in seen if m["storeMs"] < due_ms[m["body"]]]
    assert not early
