"""Which groups count as consumers of which topics."""

from tianzhou.spark.pipelines.backlog_alarm import Subscription, subscriptions_of
from tianzhou.spark.pipelines.cluster import Committed, Members


def test_groups_consume_topics_with_committed_offsets_or_subscriptions() -> None:
    committed = [
        Committed("orders", "a", 0, "offline", 7),
        Committed("orders", "b", 1, "offline", 9),
        Committed("orders", "a", 0, "moved", 7),
        Committed("orders", "a", 0, "assigned", 7),
    ]
    online = {
        "moved": Members(frozenset({"mails"}), is_broadcast=False),
        # Of consumers without subscriptions only the committed offsets show the topics.
        "assigned": Members(frozenset(), is_broadcast=False),
        "new": Members(frozenset({"orders", "%RETRY%new"}), is_broadcast=False),
        "everybody": Members(frozenset({"orders"}), is_broadcast=True),
    }
    assert subscriptions_of(committed, online) == [
        Subscription("assigned", "orders"),
        Subscription("moved", "mails"),
        Subscription("new", "%RETRY%new"),
        Subscription("new", "orders"),
        Subscription("offline", "orders"),
    ]


def test_without_groups_there_are_no_subscriptions() -> None:
    assert subscriptions_of([], {}) == []
