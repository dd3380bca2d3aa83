"""Parsing of the run-time figures of brokers."""

import pytest

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import disk_ratio, first_number, read_rates

AT = BrokerRef("b", 0, "h:1", "c")


def test_the_figures_of_4_9() -> None:
    told = {
        "brokerVersionDesc": "V4_9_7",
        "putTps": "12.5 11.0 10.0",
        "getTransferedTps": "7.25 0 0",
        "msgPutTotalTodayNow": "30",
        "msgPutTotalTodayMorning": "10",
        "sendThreadPoolQueueSize": "3",
        "bootTimestamp": "1700000000000",
    }
    rates = read_rates(AT, told, 1.5)
    assert (rates.in_tps, rates.out_tps, rates.in_today) == (12.5, 7.25, 20)
    assert (rates.waiting_sends, rates.boot_ms) == (3, 1_700_000_000_000)
    assert (rates.out_today, rates.put_p99_ms, rates.active) == (None, None, None)


def test_the_figures_of_5() -> None:
    told = {"getTransferredTps": "1.0 2.0 3.0", "putLatency99": "4", "brokerActive": "true"}
    rates = read_rates(AT, told, 1.5)
    assert (rates.out_tps, rates.put_p99_ms, rates.active) == (1.0, 4.0, True)


def test_the_fullest_disk_counts() -> None:
    assert disk_ratio({"commitLogDiskRatio": "0.2", "commitLogDiskRatio_/b": "0.7"}) == 0.7
    assert disk_ratio({"commitLogDiskRatio": "-1"}) is None
    assert disk_ratio({}) is None


@pytest.mark.parametrize(("text", "number"), [(None, None), ("", None), ("x", None), (" 3 4", 3.0)])
def test_the_first_number(text: str | None, number: float | None) -> None:
    assert first_number(text) == number
