"""The checks of the doctor, with plain values."""

import pytest

from tianzhou.admin.doctor import checks
from tianzhou.admin.doctor.checks import BrokerState
from tianzhou.admin.doctor.findings import Finding, Level
from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.group_detail import (
    GroupOverview,
    Member,
    QueueProgress,
    SubscriptionConflict,
)
from tianzhou.admin.group_detail import (
    HeldQueue as Held,
)
from tianzhou.errors import ConnectError
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.route import BrokerData, ClusterInfo

AT = BrokerRef("broker-a", 0, "10.0.0.7:10911", "c")
BOOT_MS = 1_700_000_000_000


def vitals(
    asked_ms: int = 0, settings: dict[str, str] | None = None, **runtime: str
) -> BrokerState:
    return BrokerState(runtime, settings or {}, asked_ms)


def overview(committed: int, members: tuple[Member, ...] = (), end: int = 10) -> GroupOverview:
    queue = QueueProgress("t", "broker-a", 0, end, committed, 0, None)
    return GroupOverview("g", {}, members, {}, (queue,), (), 0.0, None, None, None)


def levels(findings: list[Finding]) -> list[Level]:
    return [each.level for each in findings]


QUEUE, OTHER = (MessageQueue(topic="t", broker_name="broker-a", queue_id=n) for n in (0, 1))


def member(
    *works: Held, queues: tuple[MessageQueue, ...] = (QUEUE, OTHER), consume_ms: float = 0
) -> tuple[Member, ...]:
    """The only member, with what it tells of its queues."""
    held = dict(zip(queues, works, strict=False))
    return (Member("c1", "", "", "", (), {}, queues=held, consume_ms={"t": consume_ms}),)


IDLE = member(Held(3, 100))


@pytest.mark.parametrize(
    ("ahead_s", "level"), [(0, Level.OK), (4, Level.OK), (60, Level.ERROR), (-60, Level.ERROR)]
)
def test_clock_skew(ahead_s: int, level: Level) -> None:
    up = "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"
    clock_ms = BOOT_MS + 1000 * (86_400 + 7_200 + 180 + 4)
    told = vitals(clock_ms - ahead_s * 1000, runtime=up, bootTimestamp=str(BOOT_MS))
    (found,) = checks.check_clock(AT, told)
    assert found.level is level
    if level is Level.ERROR:
        assert ("ahead of" if ahead_s > 0 else "behind") in found.what
        assert "NTP" in found.advice


def test_no_clock_check_without_reported_age() -> None:
    assert checks.check_clock(AT, vitals()) == []


@pytest.mark.parametrize(
    ("ratio", "level"), [("0.10", Level.OK), ("0.80", Level.WARNING), ("0.90", Level.ERROR)]
)
def test_disk_usage(ratio: str, level: Level) -> None:
    (found,) = checks.check_disk(AT, vitals(commitLogDiskRatio=ratio))
    assert found.level is level


def test_no_disk_figure_is_no_finding() -> None:
    assert checks.check_disk(AT, vitals()) == []
    assert checks.check_disk(AT, vitals(commitLogDiskRatio="-1")) == []


def test_automatic_creation_is_a_warning() -> None:
    careless = {"autoCreateTopicEnable": "true", "autoCreateSubscriptionGroup": "true"}
    found = checks.check_settings(AT, vitals(settings=careless))
    assert levels(found) == [Level.WARNING, Level.WARNING]
    assert found[0].advice == "tianzhou broker config broker-a --set autoCreateTopicEnable=false"
    careful = {"autoCreateTopicEnable": "false", "autoCreateSubscriptionGroup": "false"}
    assert levels(checks.check_settings(AT, vitals(settings=careful))) == [Level.OK]


def test_inactive_broker() -> None:
    found = checks.check_settings(AT, vitals(brokerActive="false"))
    assert levels(found) == [Level.ERROR]


def test_unreachable_advertised_address() -> None:
    (found,) = checks.check_addresses([AT], {AT: ConnectError("no connection")}, ["10.0.0.1"])
    assert found.level is Level.ERROR
    assert "brokerIP1" in found.advice


def test_loopback_address_is_a_warning_with_remote_nameservers() -> None:
    home = BrokerRef("b", 0, "127.0.0.1:10911", "c")
    assert levels(checks.check_addresses([home], {}, ["127.0.0.1", "localhost"])) == [Level.OK]
    (found,) = checks.check_addresses([home], {}, ["10.0.0.1"])
    assert found.level is Level.WARNING


def test_nameservers_must_know_the_same_brokers() -> None:
    full = ClusterInfo(brokers={"a": BrokerData(), "b": BrokerData()})
    poor = ClusterInfo(brokers={"a": BrokerData()})
    assert levels(checks.check_views({"n1": full, "n2": full})) == [Level.OK]
    (found,) = checks.check_views({"n1": full, "n2": poor})
    assert (found.level, found.subject) == (Level.ERROR, "n2")
    assert "b" in found.what


def test_broker_without_master() -> None:
    info = ClusterInfo(
        brokers={
            "a": BrokerData(addresses={0: "h:1"}),
            "s": BrokerData(addresses={1: "h:2"}),
        }
    )
    (found,) = checks.check_masters(info)
    assert found.subject == "s"


def test_different_versions() -> None:
    other = BrokerRef("broker-b", 0, "10.0.0.8:10911", "c")
    same = {AT: {"brokerVersionDesc": "V5"}, other: {"brokerVersionDesc": "V5"}}
    assert checks.check_versions(same) == []
    (found,) = checks.check_versions({**same, other: {"brokerVersionDesc": "V4"}})
    assert found.what == "V5: broker-a; V4: broker-b"


def test_stuck_queues() -> None:
    def judged(
        before: int, after: int, was: tuple[Member, ...] = IDLE, now: tuple[Member, ...] = IDLE
    ) -> list[Finding]:
        return checks.check_progress(overview(before, was), overview(after, now), 6000)

    assert judged(3, 5) == []
    assert judged(10, 10) == []
    (stuck,) = judged(3, 3)
    assert (stuck.level, stuck.check) == (Level.ERROR, "stuck queues")
    assert levels(judged(3, 3, member(), member())) == [Level.ERROR], "nobody holds the queue"
    assert judged(3, 3, member(), IDLE) == [], "its holder has just begun"


@pytest.mark.parametrize(
    ("was", "now", "is_stuck"),
    [
        (member(Held(3, 100)), member(Held(4, 100)), False),
        (member(Held(3, 100)), member(Held(3, 900)), False),
        (member(Held(3, 100, in_order=True)), member(Held(3, 900, in_order=True)), True),
        (member(Held(3, 100, in_order=True)), member(Held(5, 900, in_order=True)), False),
        (member(Held(3, 100), Held(1, 90)), member(Held(3, 100), Held(1, 9000)), False),
        (member(Held(3, 100), Held(1, 90)), member(Held(3, 100), Held(1, 90_000)), True),
        (member(Held(3, 100), Held(1, 90)), member(Held(3, 100), Held(1, 90)), True),
        (IDLE, member(Held(3, 100), consume_ms=5000), False),
        (IDLE, member(Held(3, 100), consume_ms=1000), True),
    ],
    ids=[
        "will commit", "finished later ones", "refuses again and again", "goes on in order",
        "works on another queue", "has left it for long", "does nothing", "takes its time",
        "took too long",
    ],
)  # fmt: skip
def test_progress_of_holder_prevents_stuck_finding(
    was: tuple[Member, ...], now: tuple[Member, ...], is_stuck: bool
) -> None:
    found = checks.check_progress(overview(3, was), overview(3, now), 6000)
    assert bool(found) == is_stuck


def test_backlog_without_members() -> None:
    (alone,) = checks.check_backlog(overview(3))
    assert (alone.level, alone.check) == (Level.WARNING, "backlog")
    assert checks.check_backlog(overview(3, IDLE)) == []
    assert checks.check_backlog(overview(10)) == []


def test_different_subscriptions() -> None:
    contradiction = SubscriptionConflict("t", {"x": ("a",), "y": ("b",)})
    group = GroupOverview("g", {}, (), {}, (), (contradiction,), 0.0, None, None, None)
    (found,) = checks.check_subscriptions(group)
    assert found.level is Level.ERROR
    assert "a: x; b: y" in found.what
