"""Settings and subscriptions of consumers: defaults of the Java client, rejected values."""

from datetime import UTC, datetime

import pytest

from tianzhou.client import LitePullConsumer, PushConsumer, PushSettings
from tianzhou.client.group.rebalance import averagely
from tianzhou.client.group.subscriptions import by_tags, subscription_of
from tianzhou.errors import ConfigError

NAMESRV = "127.0.0.1:9876"


def test_defaults_equal_those_of_the_java_client() -> None:
    settings = PushSettings()
    assert (settings.pull_batch_size, settings.consume_threads, settings.batch_size) == (32, 20, 1)
    assert (settings.queue_messages_max, settings.queue_mib_max) == (1000, 100)
    assert (settings.queue_span_max, settings.topic_messages_max) == (2000, -1)
    assert (settings.consume_timeout_ms, settings.suspend_ms) == (900_000, 1_000)
    assert (settings.max_reconsume_times, settings.start) == (-1, "last")
    assert settings.strategy() is averagely


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"consume_threads": 0}, "consume_threads is 0, at least 1"),
        ({"batch_size": 0}, "batch_size is 0, at least 1"),
        ({"start": "middle"}, "start is 'middle'; it is first, last or a datetime"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the mistake
        ({"allocate": "fairly"}, "allocate is 'fairly'; known are averagely, averagely_by_circle"),
        ({"topic_mib_max": 0}, "topic_mib_max is 0, at least 1 or -1"),
        ({"pull_timeout_ms": 1000}, "must be above pull_suspend_ms"),
        ({"pull_interval_ms": -1}, "cannot be negative"),
        ({"max_reconsume_times": -2}, "max_reconsume_times is -2"),
    ],
)
def test_invalid_settings_are_rejected(options: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PushSettings(**options)  # type: ignore[arg-type]  # wrong on purpose


def test_error_for_an_unknown_setting_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown setting consume_thread, did you mean"):
        PushConsumer("g", consume_thread=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong on purpose


async def test_failed_start_names_the_reason() -> None:
    with pytest.raises(ConfigError, match="no topic is subscribed"):
        await PushConsumer("g", namesrv=NAMESRV).start()
    ordered = PushConsumer("g", namesrv=NAMESRV, ordered=True)
    ordered.subscribe("t")
    with pytest.raises(ConfigError, match="ordered messages need a handler"):
        await ordered.start()
    nameless = PushConsumer("", namesrv=NAMESRV)
    nameless.subscribe("t", print)
    with pytest.raises(ConfigError, match="name of its group"):
        await nameless.start()


def test_subscriptions_are_checked() -> None:
    consumer = PushConsumer("g", namesrv=NAMESRV)
    with pytest.raises(ConfigError, match="names no tag"):
        consumer.subscribe("t", print, tags=" || ")
    with pytest.raises(ConfigError, match="tags or sql, not both"):
        consumer.subscribe("t", print, tags="a", sql="b = 1")
    with pytest.raises(ConfigError, match="condition is empty"):
        consumer.subscribe("t", print, sql=" ")
    with pytest.raises(ConfigError, match="at least 1 message"):
        consumer.subscribe_batches("t", print, size=0)
    with pytest.raises(ConfigError, match="cannot be called"):
        consumer.subscribe("t", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong on purpose
    consumer.subscribe("t", print)
    with pytest.raises(ConfigError, match="this one needs one, too"):
        consumer.subscribe("u")
    with pytest.raises(ConfigError, match="go to its handlers"):
        aiter(consumer)
    other = PushConsumer("g", namesrv=NAMESRV)
    other.subscribe("t")
    with pytest.raises(ConfigError, match="have no handlers"):
        other.subscribe("u", print)


def test_heartbeat_fields() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    consumer = PushConsumer("g", namesrv=NAMESRV, namespace="shop", start=moment)
    consumer.subscribe("t", print, tags="b || a")
    told = consumer.heartbeat()
    assert (told.group_name, told.consume_type) == ("shop%g", "CONSUME_PASSIVELY")
    assert (told.message_model, told.consume_from_where) == ("CLUSTERING", "CONSUME_FROM_TIMESTAMP")
    (subscription,) = told.subscriptions
    assert (subscription.topic, subscription.tags) == ("shop%t", ["b", "a"])
    assert set(subscription.tag_codes) == {97, 98}
    lite = LitePullConsumer("g", namesrv=NAMESRV, start="first", broadcasting=True).heartbeat()
    assert (lite.consume_type, lite.message_model) == ("CONSUME_ACTIVELY", "BROADCASTING")
    assert lite.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"


def test_versions_of_subscriptions_increase() -> None:
    subscription = by_tags("t", "*", 100)
    assert subscription.renewed(200).version == 200
    assert subscription.renewed(50).version == 101
    assert subscription_of("t", "*", "a > 1", 5).to_wire().expression_type == "SQL92"
