"""Missing and expected brokers."""

import pytest

from tianzhou.admin.doctor.presence import KNOWN_MAX, Presence, expectation
from tianzhou.admin.fanout import BrokerRef
from tianzhou.errors import ConfigError, TargetError

A = BrokerRef("broker-a", 0, "10.0.0.1:10911", "c")
B = BrokerRef("broker-b", 0, "10.0.0.2:10911", "c")
SLAVE = BrokerRef("broker-b", 1, "10.0.0.3:10911", "c")


def expecting(*texts: str) -> Presence:
    return Presence(expected=[expectation(each) for each in texts])


def test_missing_broker_is_an_error_until_it_returns() -> None:
    presence = Presence()
    assert presence.check([A, B, SLAVE], 1_000) == []
    for now_ms in (2_000, 3_000):
        (gone,) = presence.check([A, B], now_ms)
        assert gone.level == "error"
        assert gone.subject == "broker-b[1] 10.0.0.3:10911"
        assert "--forget broker-b[1]" in gone.advice
    assert presence.check([A, B, SLAVE], 4_000) == []


def test_broker_with_new_address_is_not_missing() -> None:
    presence = Presence()
    presence.check([A], 1_000)
    moved = BrokerRef("broker-a", 0, "10.0.0.9:10911", "c")
    assert presence.check([moved], 2_000) == []
    assert [each.address for each in presence.known.values()] == ["10.0.0.9:10911"]


def test_all_brokers_missing() -> None:
    presence = Presence()
    presence.check([A, B], 1_000)
    assert [each.subject.split()[0] for each in presence.check([], 2_000)] == [A.label, B.label]
    (nobody,) = Presence().check([], 1_000)
    assert nobody.level == "error"


def test_forget_by_name() -> None:
    presence = Presence()
    presence.check([A, B, SLAVE], 1_000)
    assert [each.label for each in presence.forget(["broker-b"], [A])] == [
        "broker-b",
        "broker-b[1]",
    ]
    assert presence.check([A], 2_000) == []
    presence.check([A, B, SLAVE], 3_000)
    assert [each.label for each in presence.forget(["broker-b[1]"], [A])] == ["broker-b[1]"]
    assert len(presence.check([A], 4_000)) == 1
    assert [each.label for each in presence.forget(["all"], [A])] == ["broker-b"]
    assert presence.forget(["all"], [A]) == []


def test_registered_broker_cannot_be_forgotten() -> None:
    presence = Presence()
    presence.check([A, B], 1_000)
    with pytest.raises(TargetError, match=r"broker-a is not a missing broker; missing: broker-b"):
        presence.forget(["broker-a"], [A])


def test_expected_by_name_and_by_number() -> None:
    assert expecting("broker-a", "broker-b[0]", "broker-b[1]", "3").check([A, B, SLAVE], 1) == []
    subjects = [each.subject for each in expecting("broker-b", "broker-b[1]", "2").check([A], 1)]
    assert subjects == ["broker-b", "broker-b[1]", "cluster"]


def test_expected_and_missing_broker_is_reported_once() -> None:
    presence = expecting("broker-b")
    presence.check([A, B], 1)
    assert len(presence.check([A], 2)) == 1


@pytest.mark.parametrize("text", ["", "0", "-1"])
def test_invalid_expectations(text: str) -> None:
    with pytest.raises(ConfigError, match="--expect"):
        expectation(text)


def test_known_brokers_are_limited() -> None:
    presence = Presence()
    presence.check([BrokerRef("oldest", 0, "a:1", "c")], 1)
    presence.check([BrokerRef(f"b{number}", 0, "a:1", "c") for number in range(KNOWN_MAX)], 2)
    assert len(presence.known) == KNOWN_MAX
    assert ("c", "oldest", 0) not in presence.known
