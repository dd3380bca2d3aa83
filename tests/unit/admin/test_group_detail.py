"""A group from all sides: what is made of the answers of brokers and members."""

from tianzhou.admin.group_detail import (
    NOT_SUBSCRIBED,
    HeldQueue,
    Member,
    SubscriptionConflict,
    conflicts,
    filter_text,
    filters_of,
    merge_progress,
    queue_progress,
    reported_conflicts,
    subscriptions_of,
)
from tianzhou.protocol.bodies.clients import ConsumerConnection, SubscriptionDifference
from tianzhou.protocol.bodies.queues import MessageQueue
from tianzhou.protocol.bodies.stats import ConsumeOffsets, ConsumeStats
from tianzhou.protocol.bodies.subscription import SubscriptionData


def member(client_id: str, subscriptions: dict[str, str] | None) -> Member:
    return Member(client_id, "127.0.0.1:1", "PYTHON", "V4_9_7", ("b",), subscriptions)


def test_equal_subscriptions_are_no_conflict() -> None:
    assert conflicts([member("a", {"t": "x"}), member("b", {"t": "x"})]) == ()
    assert conflicts([]) == ()


def test_conflict_names_all_members() -> None:
    found = conflicts(
        [member("a", {"t": "x", "u": "*"}), member("b", {"t": "y", "u": "*"}), member("c", {})]
    )
    assert found == (
        SubscriptionConflict("t", {NOT_SUBSCRIBED: ("c",), "x": ("a",), "y": ("b",)}),
        SubscriptionConflict("u", {"*": ("a", "b"), NOT_SUBSCRIBED: ("c",)}),
    )
    assert found[1].describe() == "u: a and b: *; c: not subscribed"


def test_silent_member_is_no_conflict() -> None:
    assert conflicts([member("a", {"t": "x"}), member("b", None)]) == ()


def test_order_of_tags_does_not_matter() -> None:
    one = SubscriptionData(topic="t", expression="b || a")
    other = SubscriptionData(topic="t", expression="a||b ")
    assert filter_text(one) == filter_text(other) == "a || b"
    assert filter_text(SubscriptionData(topic="t")) == "*"
    sql = SubscriptionData(topic="t", expression="a > 1", expression_type="SQL92")
    assert filter_text(sql) == "SQL92 a > 1"


def test_retry_topic_is_not_listed() -> None:
    given = [SubscriptionData(topic="%RETRY%g"), SubscriptionData(topic="t")]
    assert filters_of(given) == {"t": "*"}


def test_subscriptions_of_group() -> None:
    told = ConsumerConnection(subscriptions={"t": SubscriptionData(topic="t", expression="z")})
    assert subscriptions_of([], [told]) == {"t": "z"}
    assert subscriptions_of([member("a", None)], [told]) == {"t": "z"}
    two = [member("a", {"t": "y"}), member("b", {"t": "x", "u": "*"})]
    assert subscriptions_of(two, [told]) == {"t": "x or y", "u": "*"}


def test_conflicts_reported_by_brokers() -> None:
    told = ConsumerConnection(
        differences=[
            SubscriptionDifference(
                topic="t",
                client_id="a",
                subscribes="by TAG 'x'",
                other_client_id="b",
                other_subscribes="not at all",
            )
        ]
    )
    (found,) = reported_conflicts([told, told])
    assert found == SubscriptionConflict("t", {"by TAG 'x'": ("a",), "not at all": ("b",)})
    assert reported_conflicts([ConsumerConnection()]) == ()


def test_progress_names_the_member_that_holds_a_queue() -> None:
    queue = MessageQueue(topic="t", broker_name="b", queue_id=1)
    stats = ConsumeStats(offsets={queue: ConsumeOffsets(broker_offset=9, consumer_offset=4)})
    holder = Member("a", "", "", "", (), {}, queues={queue: HeldQueue(4, 0)})
    (row,) = queue_progress(merge_progress([stats]), [holder])
    assert (row.lag_count, row.client_id, row.queue_id) == (5, "a", 1)


def test_lag_is_never_negative() -> None:
    queue = MessageQueue(topic="t", broker_name="b", queue_id=0)
    stats = ConsumeStats(offsets={queue: ConsumeOffsets(broker_offset=3, consumer_offset=8)})
    (row,) = queue_progress(merge_progress([stats]))
    assert row.lag_count == 0
