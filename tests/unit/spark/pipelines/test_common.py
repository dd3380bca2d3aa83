"""Days in zones, and options of pipelines."""

from datetime import UTC, datetime

import pytest

from tianzhou.errors import ConfigError
from tianzhou.spark.options import read_options
from tianzhou.spark.pipelines import catalog, runner, topic_stats
from tianzhou.spark.pipelines.common import (
    DayOptions,
    PipelineOptions,
    day_of,
    next_midnight_ms,
    reason,
)

HOUR_MS = 3_600_000


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = at("2024-03-31T12:00:00")


def test_days_are_named_or_dates() -> None:
    assert day_of("today", "UTC", NOON).name == "2024-03-31"
    yesterday = day_of("yesterday", "UTC", NOON)
    assert (yesterday.begin_ms, yesterday.end_ms) == (at("2024-03-30"), at("2024-03-31"))
    assert day_of("2024-02-29", "UTC", NOON).begin_ms == at("2024-02-29")


def test_days_depend_on_the_time_zone() -> None:
    shanghai = day_of("today", "Asia/Shanghai", at("2024-03-31T17:00:00"))
    assert shanghai.name == "2024-04-01"
    assert shanghai.begin_ms == at("2024-03-31T16:00:00")


def test_days_with_a_clock_change_are_shorter_or_longer() -> None:
    short = day_of("2024-03-31", "Europe/Berlin", NOON)
    long = day_of("2024-10-27", "Europe/Berlin", NOON)
    assert (short.end_ms - short.begin_ms, long.end_ms - long.begin_ms) == (
        23 * HOUR_MS,
        25 * HOUR_MS,
    )


def test_midnight_is_the_end_of_today() -> None:
    assert next_midnight_ms("UTC", NOON) == at("2024-04-01")
    assert next_midnight_ms("UTC", at("2024-04-01")) == at("2024-04-02")


def test_options_of_days_are_parsed() -> None:
    options = read_options(DayOptions, {"days": "2024-02-29, today", "zone": "Asia/Shanghai"})
    assert [day.name for day in options.spans(NOON)] == ["2024-02-29", "2024-03-31"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"day": "today"}, "did you mean days"),
        ({"days": "tomorow"}, "option days: 'tomorow' cannot be used"),
        ({"days": ","}, "at least one day"),
        ({"zone": "Mars/Olympus"}, "a time zone such as"),
        ({"nameServer": "::::"}, "namesrv"),
        ({"accessKey": "a"}, "accessKey and secretKey go together"),
        ({"midnight": "perhaps"}, "true or false"),
    ],
)
def test_an_invalid_option_is_rejected_before_anything_starts(
    given: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tianzhou.spark.session", no_spark)
    with pytest.raises(ConfigError, match=reason):
        runner.run("topic-stats", {"nameServer": "127.0.0.1:9876"} | given)


def test_the_error_of_an_unknown_pipeline_names_the_closest() -> None:
    with pytest.raises(ConfigError, match="did you mean topic-stats"):
        runner.run("topic-stat", {})


@pytest.mark.parametrize("name", catalog.PIPELINES)
def test_every_pipeline_has_options_and_a_function(name: str) -> None:
    module = catalog.load(name)
    assert issubclass(module.Options, PipelineOptions)
    assert callable(module.run)
    assert "nameServer" in catalog.option_defaults(name)


def test_options_of_the_cluster_are_passed_to_spark() -> None:
    given = {"nameServer": "a:1;b:2", "accessKey": "k", "secretKey": "s", "tls": "true"}
    options = read_options(topic_stats.Options, given | {"days": "today"})
    assert options.for_spark() == given


def test_rows_of_statistics() -> None:
    class Row(dict[str, object]):
        __getattr__ = dict[str, object].__getitem__

    counted = [
        Row(topic="a", consumerGroup="", hour=3, messages=5, bytes=500),
        Row(topic="a", consumerGroup="", hour=None, messages=9, bytes=900),
        Row(topic="a", consumerGroup="g", hour=3, messages=2, bytes=200),
    ]
    keys = [Row(topic="a", hour=3, keys=4), Row(topic="a", hour=None, keys=6)]
    rows = list(topic_stats.stat_rows(counted, keys, "c", "2024-02-29", 1))
    wanted = ("consumer_group", "hour", "produced", "consumed", "consumed_bytes", "distinct_keys")
    assert [tuple(row[name] for name in wanted) for row in rows] == [
        ("", 3, 5, 0, 0, 4),
        ("", -1, 9, 0, 0, 6),
        ("g", 3, 0, 2, 200, 0),
    ]
    assert {(row["cluster"], row["source"]) for row in rows} == {("c", "log")}


def test_the_reason_of_a_failure_is_our_error_or_the_first_line_of_spark() -> None:
    called = "An error occurred while calling o27.save.\n"
    trace = "\tat org.apache.spark.Somewhere(Somewhere.scala:1)\n"
    theirs = ": org.apache.spark.SparkException: [X] it failed\n"
    assert reason(called + theirs + trace) == "org.apache.spark.SparkException: [X] it failed"
    ours = "tianzhou.errors.DataLost: queue a: 5 messages\n"
    assert reason(called + theirs + trace + ours) == "queue a: 5 messages"
    assert reason("  \n") == "no reason given"
