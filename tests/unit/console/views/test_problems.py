"""What is wrong in a cluster: every kind of problem, worst first."""

import pytest
from msgspec.structs import replace

from tianzhou.console.collect.snapshot import (
    Broker,
    Contradiction,
    Failover,
    Group,
    Member,
    Nameserver,
    Replication,
    Slave,
    Snapshot,
    Totals,
)
from tianzhou.console.views.cluster.problems import is_behind, problems_of

WELL = Broker(name="broker-a", broker_id=0, address="10.0.0.1:10911", answered=True)
MEMBER = Member(client_id="one")
GROUP = Group(name="billing", lag=0, members=(MEMBER,))


def _of(*brokers: Broker, groups: tuple[Group, ...] = (), **more: object) -> list[tuple[str, str]]:
    snapshot = Snapshot(cluster="main", version=1, as_of_ms=0, brokers=brokers, groups=groups)
    snapshot = replace(snapshot, **more)
    found = problems_of(snapshot, is_stale=False)
    return [(each.level, str(each.text)) for each in found]


def test_nothing_is_wrong() -> None:
    assert _of(WELL, groups=(GROUP,)) == []


@pytest.mark.parametrize(
    ("broker", "level", "words"),
    [
        (replace(WELL, answered=False, problem="time-out"), "bad", "does not answer: time-out"),
        (replace(WELL, is_registered=False), "warn", "not registered"),
        (replace(WELL, disk_ratio=0.8), "warn", "80 % full"),
        (replace(WELL, disk_ratio=0.9), "bad", "90 % full"),
        (replace(WELL, replication=Replication(slaves=(Slave(name="id:1", problem="gone"),))),
         "warn", "id:1 does not follow broker-a: gone"),
        (replace(WELL, replication=Replication(slaves=(Slave(name="id:1", is_in_sync=False),))),
         "warn", "id:1 is behind its master broker-a"),
        (replace(WELL, broker_id=1, replication=Replication(state="connecting")),
         "warn", "broker-a[1] does not follow its master: connecting"),
        (replace(WELL, failover=Failover(mode="master", epoch=3, refusal="too few replicas")),
         "bad", "refuses sends: too few replicas"),
        (replace(WELL, failover=Failover(mode="stopped", epoch=3)), "bad", "no part in elections"),
        (replace(WELL, failover=Failover(mode="slave", epoch=3, authority_problem="refused")),
         "warn", "cannot reach etcd: refused"),
        (replace(WELL, failover=Failover(mode="master", epoch=3, is_paused=True)),
         "warn", "are paused"),
        (replace(WELL, failover=Failover(mode="master", epoch=3, alarms=("one replica is lost",))),
         "warn", "broker-a: one replica is lost"),
    ],
)  # fmt: skip
def test_a_broker(broker: Broker, level: str, words: str) -> None:
    ((found_level, text),) = _of(broker)
    assert found_level == level
    assert words in text


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (replace(GROUP, contradictions=(Contradiction(topic="t", sides=()),)), "differently"),
        (replace(GROUP, lag=5, members=()), "no member"),
        (replace(GROUP, lag=500, oldest_age_ms=90_000), "billing is behind"),
        (replace(GROUP, duplicate_ids=("x",)), "same client id"),
        (replace(GROUP, dead_letters_today=2), "new dead letters"),
    ],
)
def test_a_group_and_several(group: Group, words: str) -> None:
    ((_, text),) = _of(WELL, groups=(group,))
    assert words in text
    several = tuple(replace(group, name=f"g{number}") for number in range(5))
    ((_, text),) = _of(WELL, groups=several)
    assert "5 groups" in text
    assert text.endswith("g0, g1, g2 ...")
    assert _of(WELL, groups=(replace(group, is_internal=True),)) == []


def test_a_backlog_that_goes_away_is_none() -> None:
    assert not is_behind(replace(GROUP, lag=100_000, oldest_age_ms=1_000))
    assert not is_behind(replace(GROUP, lag=100, oldest_age_ms=900_000))
    assert is_behind(replace(GROUP, lag=101, oldest_age_ms=None))
    assert is_behind(replace(GROUP, lag=101, oldest_age_ms=5, oldest_is_minimum=True))


def test_masters_nameservers_and_the_round() -> None:
    slave = replace(WELL, broker_id=1)
    assert _of(slave, totals=Totals(masters_missing=("broker-a",))) == [
        ("bad", "broker-a has no master: nothing can be sent to it.")
    ]
    down = Nameserver(address="10.0.0.7:9876")
    views = tuple(Nameserver(address=f"n{each}", answered=True, brokers=(each,)) for each in "ab")
    assert _of(WELL, nameservers=(*views, down)) == [
        ("warn", "The nameserver 10.0.0.7:9876 does not answer."),
        ("warn", "The nameservers list different brokers."),
    ]
    assert _of(WELL, problem="no nameserver responds", nameservers=(down,)) == [
        ("bad", "Nothing could be read: no nameserver responds")
    ]
    assert _of(WELL, interval_reason="rounds are slow")[0][0] == "info"
    stale = problems_of(Snapshot(cluster="main", version=1, as_of_ms=0), is_stale=True)
    assert [each.level for each in stale] == ["bad"]


def test_the_worst_comes_first_and_each_says_where() -> None:
    full = replace(WELL, name="a b/%", disk_ratio=0.76)
    silent = replace(WELL, name="broker-c", answered=False, problem="refused")
    snapshot = Snapshot(cluster="main", version=1, as_of_ms=0, brokers=(full, silent))
    found = problems_of(snapshot, is_stale=False)
    assert [(each.level, each.path) for each in found] == [
        ("bad", "/brokers/broker-c"), ("warn", "/brokers/a%20b%2F%25"),
    ]  # fmt: skip
