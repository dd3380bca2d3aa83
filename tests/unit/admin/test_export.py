"""Documents of `cluster export`, from plain values."""

from tianzhou.admin.export import Tables, add_up, exported_settings, quota_of, summed
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig
from tianzhou.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem
from tianzhou.protocol.bodies.topics import TopicConfig


def tables(queue_count: int) -> Tables:
    topics = {
        name: TopicConfig(
            topic_name=name, read_queue_count=queue_count, write_queue_count=queue_count + 1
        )
        for name in ("t", "%RETRY%g", "%DLQ%g")
    }
    group = SubscriptionGroupConfig(group_name="g", retry_queue_count=queue_count)
    return Tables(topics, {"g": group})


def test_queues_are_summed_over_brokers() -> None:
    told = add_up([tables(2), tables(4)], special=False, now_ms=7)
    assert list(told["topicConfigTable"]) == ["t"]
    topic = told["topicConfigTable"]["t"]
    assert (topic["readQueueNums"], topic["writeQueueNums"], topic["topicName"]) == (6, 8, "t")
    assert told["subscriptionGroupTable"]["g"]["retryQueueNums"] == 6
    assert told["exportTime"] == 7
    # What only 5.x knows is absent, not null: a tool of 4.9 may read this.
    assert "attributes" not in topic


def test_retry_and_dead_letter_topics_with_special() -> None:
    told = add_up([tables(1)], special=True, now_ms=0)
    assert list(told["topicConfigTable"]) == ["%DLQ%g", "%RETRY%g", "t"]


def test_only_listed_settings_are_exported() -> None:
    assert exported_settings({"brokerName": "a", "listenPort": "1"}) == {"brokerName": "a"}


def test_figures_of_a_broker_and_their_sums() -> None:
    runtime = {
        "putTps": "1.5 2 3", "getTransferedTps": "2.5 0 0", "commitLogDiskRatio": "0.5",
        "msgPutTotalTodayMorning": "30", "msgPutTotalYesterdayMorning": "10",
        "putMessageAverageSize": "100.0",
    }  # fmt: skip
    young = BrokerStatsData(
        minute=BrokerStatsItem(sum=6, tps=0.1), hour=BrokerStatsItem(sum=60), day=BrokerStatsItem()
    )
    quota = quota_of(runtime, young, None)
    assert quota["tps"] == {
        "normalInTps": 1.5, "normalOutTps": 2.5, "transInTps": 0.1, "scheduleInTps": 0.0,
    }  # fmt: skip
    # A broker without a whole day yet tells the sum of its hour.
    assert quota["oneDayNum"] == {
        "normalOneDayInNum": 20, "normalOneDayOutNum": 0, "transOneDayInNum": 60,
        "scheduleOneDayInNum": 0,
    }  # fmt: skip
    total = summed({"a": {"runtimeQuota": quota}, "b": {"runtimeQuota": quota}})["totalData"]
    assert total["totalTps"]["totalNormalInTps"] == 3.0
    assert total["totalOneDayNum"]["transOneDayInNum"] == 120


def test_broker_without_figures() -> None:
    quota = quota_of({}, None, None)
    assert quota["tps"]["normalInTps"] == 0.0
    assert quota["diskRatio"] == {"commitLogDiskRatio": None, "consumeQueueDiskRatio": None}
