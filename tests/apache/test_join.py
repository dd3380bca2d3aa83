"""Our broker joins a cluster of Apache's brokers and takes over their topics and groups."""

from collections.abc import Callable

import pytest

from tests.apache.kit import Shell, apache_broker, tianzhou_namesrv
from tests.apache.test_broker_compat import tianzhou_broker

pytestmark = pytest.mark.apache

OLD, NEW = "4.9.7", "5.5.0"


def test_topics_and_groups_of_apache_brokers_are_taken_over(shells: Callable[[str], Shell]) -> None:
    with (
        tianzhou_namesrv() as namesrv,
        apache_broker(OLD, namesrv.address, brokerName="old", graceful=False) as old,
        apache_broker(NEW, namesrv.address, brokerName="new", graceful=False) as new,
    ):

        def mqadmin(line: str) -> str:
            return shells(OLD).mqadmin(namesrv.address, *line.split())

        for line in (
            f"updateTopic -b {old.address} -t of-old -r 3 -w 5",
            f"updateTopic -b {new.address} -t of-new -r 2 -w 2 -p 4",
            f"updateSubGroup -b {old.address} -g readers -r 7",
            f"updateSubGroup -b {new.address} -g writers -r 8",
        ):
            assert "success" in mqadmin(line), line
        with tianzhou_broker(namesrv, brokerName="ours", copyMetadataOnJoin="true") as broker:
            # It is registered by now, and was complete before.
            for topic, settings in (("of-old", '"writeQueueNums":5'), ("of-new", '"perm":4')):
                route = mqadmin(f"topicRoute -t {topic}")
                assert '"brokerName":"ours"' in route, broker.output()
                assert route.count(settings) == 2, route
            for group, times in (("readers", 7), ("writers", 8)):
                shown = mqadmin(f"getConsumerConfig -g {group}")
                assert "DefaultCluster:ours" in shown, shown
                assert f"retryMaxTimes                           =  {times}" in shown
