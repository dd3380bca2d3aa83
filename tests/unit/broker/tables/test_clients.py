"""Producer and consumer tables: values in, values out."""

import pytest

from tianzhou.broker.tables.clients import (
    Client,
    ConsumerHeartbeat,
    ConsumerTable,
    ProducerTable,
    Subscription,
    make_subscription,
)
from tianzhou.protocol.command import Language


def client(client_id: str, seen_ms: int = 0) -> Client:
    return Client(client_id, Language.JAVA, 400, seen_ms)


def heartbeat_of(
    group: str, *subscriptions: Subscription, model: str = "CLUSTERING"
) -> ConsumerHeartbeat:
    return ConsumerHeartbeat(
        group, "CONSUME_PASSIVELY", model, "CONSUME_FROM_LAST_OFFSET", subscriptions
    )


def tags(topic: str, expression: str = "*", version: int = 1) -> Subscription:
    return make_subscription(topic, expression, "TAG", version)


# -- subscriptions ---------------------------------------------------------------------------------


def test_a_subscription_is_compiled_once_and_an_invalid_one_has_a_problem() -> None:
    by_tags = make_subscription("t", "a || b", None, 5)
    assert (by_tags.expression_type, by_tags.is_by_tags, by_tags.version) == ("TAG", True, 5)
    assert by_tags.tags.tags == ("a", "b")
    everything = make_subscription("t", None, "", 1)
    assert everything.tags.selects_all
    by_sql = make_subscription("t", "a > 5", "SQL92", 1)
    assert by_sql.sql is not None
    assert by_sql.sql.matches({"a": "6"}.get)
    bad = make_subscription("t", "a >", "SQL92", 1)
    assert bad.sql is None
    assert bad.problem is not None
    assert "a value is expected" in bad.problem
    strange = make_subscription("t", "x", "XPATH", 1)
    assert strange.problem is not None
    assert "XPATH" in strange.problem


# -- consumers -------------------------------------------------------------------------------------


def test_members_join_once_and_all_are_notified() -> None:
    table = ConsumerTable[str]()
    first = table.heartbeat("channel 1", client("c1"), heartbeat_of("g", tags("t")))
    assert first is not None
    assert first.notify == ("channel 1",)
    assert table.heartbeat("channel 1", client("c1", 5), heartbeat_of("g", tags("t"))) is None
    second = table.heartbeat("channel 2", client("c2"), heartbeat_of("g", tags("t")))
    assert second is not None
    assert second.notify == ("channel 1", "channel 2")
    group = table.get("g")
    assert group is not None
    assert group.client_ids() == ["c1", "c2"]
    assert group.members["channel 1"].seen_ms == 5
    assert table.groups_of_topic("t") == {"g"}


def test_the_newest_subscriptions_replace_the_old() -> None:
    table = ConsumerTable[str]()
    table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t", "a", 1), tags("u")))
    assert (
        table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t", "b", 1), tags("u"))) is None
    )
    subscription = table.subscription("g", "t")
    assert subscription is not None
    assert subscription.expression == "a", "the same version is the same subscription"
    change = table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t", "b", 2)))
    assert change is not None
    assert table.subscription("g", "u") is None
    subscription = table.subscription("g", "t")
    assert subscription is not None
    assert subscription.expression == "b"


def test_a_group_is_removed_with_its_last_member() -> None:
    table = ConsumerTable[str]()
    for number in (1, 2):
        table.heartbeat(f"channel {number}", client(f"c{number}"), heartbeat_of("g", tags("t")))
    table.heartbeat("channel 1", client("c1"), heartbeat_of("h", tags("t")))
    changes = list(table.closed("channel 1"))
    assert [(change.group, change.notify) for change in changes] == [
        ("g", ("channel 2",)), ("h", ()),
    ]  # fmt: skip
    assert table.get("h") is None
    assert not list(table.closed("channel 1"))
    gone = table.unregister("channel 2", "g")
    assert gone is not None
    assert gone.notify == ()
    assert table.unregister("channel 2", "g") is None
    assert table.groups == {}


def test_members_expire_by_the_time_of_their_last_heartbeat() -> None:
    table = ConsumerTable[str]()
    table.heartbeat("old", client("c1", 1000), heartbeat_of("g", tags("t")))
    table.heartbeat("new", client("c2", 2000), heartbeat_of("g", tags("t")))
    assert table.expired(3000, 2000) == []
    assert table.expired(3001, 2000) == ["old"]


def test_a_broadcasting_group_is_not_notified() -> None:
    table = ConsumerTable[str]()
    change = table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t"), model="BROADCASTING"))
    assert change is not None
    assert change.notify == ()


@pytest.mark.parametrize("other", ["b", None])
def test_different_subscriptions_are_reported_once_with_both_sides(other: str | None) -> None:
    table = ConsumerTable[str]()
    table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t", "a"), tags("%RETRY%g")))
    theirs = (tags("t", other),) if other else (tags("u"),)
    change = table.heartbeat("2", client("c2"), heartbeat_of("g", *theirs))
    assert change is not None
    text = str(change.differences[0])
    assert "group g: members subscribe differently to t" in text
    assert "c1 by TAG 'a'" in text
    assert ("c2 by TAG 'b'" if other else "c2 not at all") in text
    assert {each.topic for each in change.differences} == ({"t"} if other else {"t", "u"})
    again = table.heartbeat("2", client("c2"), heartbeat_of("g", *theirs))
    assert again is None or not again.differences
    assert list(table.closed("2"))
    group = table.get("g")
    assert group is not None
    assert group.differences == ()


def test_versions_alone_are_no_difference() -> None:
    table = ConsumerTable[str]()
    table.heartbeat("1", client("c1"), heartbeat_of("g", tags("t", "a", 1)))
    change = table.heartbeat("2", client("c2"), heartbeat_of("g", tags("t", "a", 99)))
    assert change is not None
    assert change.differences == ()


# -- producers -------------------------------------------------------------------------------------


def test_producers_register_and_leave() -> None:
    table = ProducerTable[str]()
    assert table.heartbeat("1", client("p1", 1000), "g")
    assert not table.heartbeat("1", client("p1", 2000), "g")
    assert table.heartbeat("1", client("p1", 2000), "h")
    assert table.expired(2000, 1000) == []
    assert table.expired(3001, 1000) == ["1"]
    assert list(table.closed("1")) == ["g", "h"]
    assert table.groups == {}
    assert not table.unregister("1", "g")
