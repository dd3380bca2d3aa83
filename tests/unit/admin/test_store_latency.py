"""Store latency between two samples of cumulative counts."""

from tianzhou.admin.fanout import BrokerRef
from tianzhou.admin.rates import BrokerRates, read_rates
from tianzhou.admin.store_latency import PutTimes, StoreLatencyWindow, between, put_times

AT = BrokerRef("broker-a", 0, "10.0.0.7:10911", "c")
STEPS = ("<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s",
         "2~3s", "3~4s", "4~5s", "5~10s", "10s~")  # fmt: skip


def told(*counts: int) -> BrokerRates:
    """A broker that has stored so many messages within each step."""
    padded = [*counts, *[0] * (len(STEPS) - len(counts))]
    steps = zip(STEPS, padded, strict=True)
    table = " ".join(f"[{name}]:{count}" for name, count in steps)
    runtime = {
        "putMessageDistributeTime": table, "putLatency99": "700", "putMessageEntireTimeMax": "900",
    }  # fmt: skip
    return read_rates(AT, runtime, 1.0)


def late(looks: StoreLatencyWindow, now: BrokerRates) -> tuple[float | None, float | None]:
    (each,) = looks.update([now])
    return each.put_p99_ms, each.put_max_ms


def test_only_messages_since_last_sample_count() -> None:
    looks = StoreLatencyWindow()
    assert late(looks, told(1000, 0, 0, 0, 0, 0, 50)) == (700, 900), "as the broker tells it"
    assert late(looks, told(1200, 1, 0, 0, 0, 0, 50)) == (0, 10)
    assert late(looks, told(1200, 1, 0, 0, 0, 0, 50)) == (None, None), "nothing was stored"
    assert late(looks, told(1200, 1, 0, 0, 9, 0, 50)) == (200, 200)


def test_restarted_counts_are_used_alone() -> None:
    assert between((90, 9), (10, 3)) == (10, 3)
    assert between(None, (10, 3)) == (10, 3)
    assert between((90, 9), (95, 9)) == (5, 0)


def test_last_bucket_uses_maximum_of_broker() -> None:
    assert put_times([0] * 12 + [4]) == PutTimes(None, None)
    looks = StoreLatencyWindow()
    late(looks, told(5))
    assert late(looks, told(5, *[0] * 11, 4)) == (900, 900)


def test_broker_without_counts_keeps_its_figures() -> None:
    looks = StoreLatencyWindow()
    silent = read_rates(AT, {"putMessageEntireTimeMax": "12"}, 1.0)
    assert late(looks, silent) == (None, 12)
    assert late(looks, silent) == (None, 12)
