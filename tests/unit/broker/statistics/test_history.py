"""Statistics over time: counters and times in, sums and rates out."""

from datetime import datetime

import msgspec
import pytest

from tianzhou.broker.statistics.counters import Stats
from tianzhou.broker.statistics.history import STATISTICS, History
from tianzhou.broker.statistics.series import DAY, HOUR, MINUTE, Amount, Series, steps_at
from tianzhou.broker.statistics.totals import DayStart, Totals, day_of, next_midnight_ms
from tianzhou.broker.tables.saver import encode_text
from tianzhou.errors import BodyError

NOON_MS = int(datetime(2026, 3, 10, 12).timestamp() * 1000)  # noqa: DTZ001 - local by meaning
SECOND_MS = 1000
HOUR_MS = 3_600_000


def started(now_ms: int = NOON_MS, *, detailed: bool = True) -> tuple[Stats, History]:
    stats = Stats(started_ms=now_ms)
    return stats, History(stats, now_ms, cluster="C", is_detailed=lambda: detailed)


# -- series ----------------------------------------------------------------------------------------


def test_a_series_covers_a_minute_an_hour_and_a_day() -> None:
    series = Series(NOON_MS)
    for hour in range(30):
        series.add(Amount(10, 1000, 2), steps_at(NOON_MS + hour * HOUR_MS))
    now_ms = NOON_MS + 29 * HOUR_MS
    assert series.over(MINUTE, 0, now_ms).sum == 10
    assert series.over(HOUR, 1, now_ms).sum == 1000
    assert series.over(DAY, 0, now_ms).sum == 240, "24 steps, the present one included"
    assert series.over(DAY, 0, now_ms).per_call == 5
    assert series.over(MINUTE, 0, now_ms + 120 * SECOND_MS).sum == 0
    assert series.over(DAY, 0, now_ms + 25 * HOUR_MS).sum == 0
    assert series.is_idle(steps_at(now_ms + 25 * HOUR_MS))
    assert not series.is_idle(steps_at(now_ms + 10 * HOUR_MS))


def test_rates_of_a_series_are_over_the_time_it_covers() -> None:
    series = Series(NOON_MS)
    for second in range(0, 100, 10):
        series.add(Amount(50, 0, 1), steps_at(NOON_MS + second * SECOND_MS))
    # The minute has five whole steps and nearly all of the sixth: 6 * 50 messages.
    seen = series.over(MINUTE, 0, NOON_MS + 99_999)
    assert seen.sum == 300
    assert seen.per_second == pytest.approx(5.0, rel=0.01)
    assert series.over(HOUR, 0, NOON_MS + 99_999).per_second == pytest.approx(500 / 110, rel=0.01)


def test_a_clock_that_is_set_back_loses_nothing() -> None:
    series = Series(NOON_MS)
    series.add(Amount(1, 1, 1), steps_at(NOON_MS))
    series.add(Amount(1, 1, 1), steps_at(NOON_MS - HOUR_MS))
    assert series.over(MINUTE, 0, NOON_MS).sum == 2


# -- the broker's ----------------------------------------------------------------------------------


def test_every_statistic_has_its_key() -> None:
    stats, history = started()
    stats.stored("t", 3, 300, 4, queue_id=1)
    stats.stored("t", 1, 100, 0, queue_id=2)
    stats.stored("SCHEDULE_TOPIC_XXXX", 5, 500, 0)
    stats.delivered("t", "g", 2, 200, queue_id=1, took_ms=7)
    stats.delivered("t", "TOOLS_CONSUMER", 1, 100, queue_id=1)
    stats.sent_back["t", "g"] += 2
    stats.dead["t", "g"] += 1
    stats.popped["t", "g"] += 3
    stats.popped["t", "h"] += 1
    stats.acked["t", "g"] += 4
    stats.channels = lambda: {"CONNECT": 6, "CLOSE": 0}
    expected = {
        ("TOPIC_PUT_NUMS", "t"): 4, ("TOPIC_PUT_SIZE", "t"): 400, ("TOPIC_PUT_LATENCY", "t"): 4,
        ("QUEUE_PUT_NUMS", "t@1"): 3, ("QUEUE_PUT_SIZE", "t@2"): 100,
        ("GROUP_GET_NUMS", "t@g"): 2, ("GROUP_GET_SIZE", "t@g"): 200,
        ("QUEUE_GET_NUMS", "t@1@g"): 2, ("QUEUE_GET_SIZE", "t@1@g"): 200,
        ("TOPIC_PUT_LATENCY", "1@t"): 4, ("TOPIC_PUT_LATENCY", "2@t"): 0,
        ("GROUP_GET_LATENCY", "t@g"): 7, ("GROUP_GET_LATENCY", "1@t@g"): 7,
        ("SNDBCK_PUT_NUMS", "t@g"): 2, ("SNDBCK2DLQ_TIMES", "t@g"): 1,
        ("SNDBCK2DLQ_TIMES", "null@t@g@SEND_BACK_TO_DLQ"): 1,
        ("GROUP_CK_NUMS", "t@g"): 3, ("GROUP_ACK_NUMS", "t@g"): 4,
        ("BROKER_PUT_NUMS", "C"): 9, ("BROKER_GET_NUMS", "C"): 3,
        ("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C"): 4,
        ("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", "C"): 2,
        ("BROKER_CK_NUMS", "C"): 4, ("BROKER_ACK_NUMS", "C"): 4,
        ("CHANNEL_ACTIVITY", "CONNECT"): 6,
    }  # fmt: skip
    assert {name for name, _ in expected} == set(STATISTICS)
    for (name, key), total in expected.items():
        series = history.look_up(name, key, NOON_MS + SECOND_MS)
        assert series is not None, (name, key)
        assert [series[window].sum for window in (MINUTE, HOUR, DAY)] == [total] * 3, (name, key)
    series = history.look_up("TOPIC_PUT_NUMS", "t", NOON_MS + SECOND_MS)
    assert series is not None
    assert series[MINUTE].per_call == 2, "four messages in two requests"
    assert history.look_up("TOPIC_PUT_NUMS", "unknown", NOON_MS) is None
    assert history.look_up("NO_SUCH_THING", "t", NOON_MS) is None
    assert history.look_up("CHANNEL_ACTIVITY", "CLOSE", NOON_MS) is None
    assert history.per_second("GROUP_GET_NUMS", "t@other", NOON_MS) == 0


def test_queues_have_series_only_in_detail() -> None:
    stats, history = started(detailed=False)
    stats.stored("t", 1, 1, 0, queue_id=1)
    stats.delivered("t", "g", 1, 1, queue_id=1)
    assert history.look_up("TOPIC_PUT_NUMS", "t", NOON_MS) is not None
    assert history.look_up("QUEUE_PUT_NUMS", "t@1", NOON_MS) is None
    assert history.look_up("QUEUE_GET_NUMS", "t@1@g", NOON_MS) is None


def test_rates_are_over_ten_seconds_a_minute_and_ten_minutes() -> None:
    stats, history = started()
    for second in range(1, 1001):
        now_ms = NOON_MS + second * SECOND_MS
        # 10 a second at first, none in the last half minute.
        if second <= 970:
            stats.stored("t", 10, 0, 0)
            stats.delivered("t", "g", 5, 0)
            stats.pulls_missed += 2
        history.tick(now_ms)
    rates = history.rates(NOON_MS + 1000 * SECOND_MS)
    assert rates.put == pytest.approx((0.0, 5.0, 9.5))
    assert rates.found == pytest.approx((0.0, 0.5, 0.95))
    assert rates.missed == pytest.approx((0.0, 1.0, 1.9))
    assert rates.transferred == pytest.approx((0.0, 2.5, 4.75))


def test_a_new_broker_reports_its_rate_since_the_start() -> None:
    stats, history = started()
    stats.stored("t", 100, 0, 0)
    assert history.rates(NOON_MS + 5 * SECOND_MS).put == (20.0, 20.0, 20.0)
    assert history.rates(NOON_MS).put == (100.0, 100.0, 100.0), "never more than in a second"


def test_rates_survive_a_clock_that_is_set_back() -> None:
    stats, history = started()
    stats.stored("t", 100, 0, 0)
    history.tick(NOON_MS + 10 * SECOND_MS)
    history.tick(NOON_MS - HOUR_MS)
    stats.stored("t", 10, 0, 0)
    assert history.rates(NOON_MS - HOUR_MS + 10 * SECOND_MS).put == (1.0, 1.0, 1.0)


def test_memory_follows_activity() -> None:
    stats, history = started()
    for number in range(100):
        stats.stored(f"t{number}", 1, 1, 0)
    history.tick(NOON_MS + 10 * SECOND_MS)
    for hour in range(1, 30):
        stats.stored("t1", 1, 1, 0)
        history.tick(NOON_MS + hour * HOUR_MS)
    now_ms = NOON_MS + 30 * HOUR_MS
    assert history.look_up("TOPIC_PUT_NUMS", "t0", now_ms) is None
    assert history.look_up("TOPIC_PUT_NUMS", "t1", now_ms) is not None


def test_a_deleted_topic_leaves_its_share_of_the_totals_only() -> None:
    stats, history = started()
    stats.stored("t", 5, 5, 0)
    stats.delivered("t", "g", 5, 5)
    stats.delivered("u", "g", 1, 1)
    history.forget_topic("t", NOON_MS)
    assert history.look_up("TOPIC_PUT_NUMS", "t", NOON_MS) is None
    assert history.look_up("GROUP_GET_NUMS", "t@g", NOON_MS) is None
    stats.stored("t", 2, 2, 0)
    series = history.look_up("TOPIC_PUT_NUMS", "t", NOON_MS)
    assert series is not None
    assert series[MINUTE].sum == 2, "the new topic counts anew"
    assert (history.totals.put, history.totals.got) == (7, 6)
    stats.stored("u", 1, 1, 0, queue_id=7)
    history.collect(NOON_MS)
    for group in ("g", "7"):
        history.forget_group(group, NOON_MS)
    assert history.look_up("GROUP_GET_NUMS", "u@g", NOON_MS) is None
    assert history.look_up("QUEUE_PUT_NUMS", "u@7", NOON_MS) is not None
    stats.delivered("u", "g", 3, 3)
    series = history.look_up("GROUP_GET_NUMS", "u@g", NOON_MS)
    assert series is not None
    assert series[MINUTE].sum == 3


def test_thousands_of_counters_are_read_in_slices() -> None:
    stats, history = started()
    for number in range(30_000):
        stats.stored("t", 1, 1, 0, queue_id=number)
    now_ms = NOON_MS
    seen: list[int] = []
    for _ in range(12):
        now_ms += SECOND_MS
        history.tick(now_ms)
        seen.append(history.totals.put)
    assert seen[0] == 1000, "not all at once"
    stats.stored("t", 1, 1, 0, queue_id=0)
    for _ in range(20):
        now_ms += SECOND_MS
        history.tick(now_ms)
    assert history.totals.put == 30_001, "but each in its turn"


def test_detail_is_switched_on_and_off() -> None:
    wanted = [False]
    stats = Stats(started_ms=NOON_MS)
    history = History(stats, NOON_MS, cluster="C", is_detailed=lambda: wanted[-1])
    sums: list[int | None] = []
    for detailed in (False, True, False, True):
        wanted.append(detailed)
        stats.stored("t", 1, 1, 0, queue_id=1)
        series = history.look_up("QUEUE_PUT_NUMS", "t@1", NOON_MS)
        sums.append(None if series is None else series[MINUTE].sum)
    assert sums == [None, 1, 1, 2]


# -- totals ----------------------------------------------------------------------------------------


def test_totals_leave_out_system_topics_and_groups() -> None:
    stats, history = started()
    stats.stored("t", 5, 5, 0)
    stats.stored("SCHEDULE_TOPIC_XXXX", 7, 7, 0)
    stats.stored("rmq_sys_wheel_timer", 7, 7, 0)
    stats.delivered("t", "g", 3, 3)
    stats.delivered("t", "TOOLS_CONSUMER", 9, 9)
    stats.delivered("TBW102", "g", 9, 9)
    history.collect(NOON_MS)
    assert (history.totals.put, history.totals.got) == (5, 3)


def test_a_day_starts_at_local_midnight() -> None:
    stats, history = started()
    midnight_ms = next_midnight_ms(NOON_MS)
    assert midnight_ms == NOON_MS + 12 * HOUR_MS
    stats.stored("t", 5, 5, 0)
    history.tick(midnight_ms - 1)
    assert history.totals.today.put == 0
    stats.stored("t", 1, 1, 0)
    history.tick(midnight_ms)
    assert (history.totals.today, history.totals.yesterday) == (DayStart(put=6), DayStart())
    stats.stored("t", 10, 1, 0)
    history.tick(midnight_ms + 24 * HOUR_MS)
    assert (history.totals.today, history.totals.yesterday) == (DayStart(put=16), DayStart(put=6))
    assert history.totals.day == day_of(midnight_ms + 24 * HOUR_MS)


def test_totals_continue_after_a_restart() -> None:
    stats, history = started()
    stats.stored("t", 5, 5, 0)
    history.collect(NOON_MS)
    saved = msgspec.json.decode(encode_text(history.totals), type=dict[str, object])
    stats, next_day = started(NOON_MS + 24 * HOUR_MS)
    next_day.load(saved, NOON_MS + 24 * HOUR_MS)
    assert (next_day.totals.put, next_day.totals.today.put) == (5, 5)
    stats.stored("t", 1, 1, 0)
    next_day.collect(NOON_MS + 24 * HOUR_MS)
    assert next_day.totals.put == 6
    _, much_later = started(NOON_MS + 240 * HOUR_MS)
    much_later.load(saved, NOON_MS + 240 * HOUR_MS)
    assert much_later.totals.yesterday.put == 5, "nothing was put yesterday"
    assert much_later.totals.on(1) is much_later.totals, "a clock before its time changes nothing"


@pytest.mark.parametrize("saved", [{"put": "many"}, {"put": -1.5}, {"today": 5}])
def test_totals_that_cannot_be_read_change_nothing(saved: dict[str, object]) -> None:
    _, history = started()
    before = history.totals
    with pytest.raises(BodyError, match="totals"):
        history.load(saved, NOON_MS)
    assert history.totals == before


def test_changes_of_the_totals_are_reported_once_a_minute_and_at_midnight() -> None:
    reported: list[Totals] = []
    stats = Stats(started_ms=NOON_MS)
    history = History(
        stats, NOON_MS, cluster="C", on_totals=lambda: reported.append(history.totals)
    )
    for second in range(1, 121):
        stats.stored("t", 1, 1, 0)
        history.tick(NOON_MS + second * SECOND_MS)
    assert len(reported) == 2
    reported.clear()
    for second in range(121, 301):
        history.tick(NOON_MS + second * SECOND_MS)
    assert reported == [], "nothing happened, nothing is written"
    history.tick(next_midnight_ms(NOON_MS))
    assert len(reported) == 1
