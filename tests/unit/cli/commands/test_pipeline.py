"""`tianzhou pipeline` as far as it goes without Spark: lists, options, records, refusals."""

import json
from pathlib import Path

import pytest
from tests.support.command_line import Ran, run_words

from tianzhou.monitor import tables
from tianzhou.spark.pipelines import catalog

NAMESRV = ("--namesrv", "127.0.0.1:1")


def tianzhou(*words: str) -> Ran:
    return run_words(words)


def test_the_pipelines_are_listed() -> None:
    ran = tianzhou("pipeline", "list", "--json")
    assert ran.code == 0
    assert [row["name"] for row in ran.json] == list(catalog.PIPELINES)
    assert "topic-stats" in tianzhou("pipeline", "list").out


def test_the_options_of_a_pipeline_are_shown() -> None:
    ran = tianzhou("pipeline", "options", "dlq-alarm", "--json")
    assert (ran.json["threshold"], ran.json["window"]) == ("5", "600000")
    ran = tianzhou("pipeline", "options", "dlq-alarms")
    assert (ran.code, "did you mean dlq-alarm" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["nonsense"], "OPTION=VALUE is expected"),
        (["dais=today"], "did you mean days"),
        (["days=someday"], "today, yesterday or"),
        (["database=mysql://x/y"], "only SQLite and PostgreSQL"),
    ],
)
def test_a_bad_option_is_refused_without_starting_spark(
    given: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("tianzhou.spark.session", no_spark)
    flags = [part for each in given for part in ("--set", each)]
    ran = tianzhou("pipeline", "run", "topic-stats", *NAMESRV, *flags)
    assert (ran.code, words in ran.err) == (2, True), ran.err


def test_package_for_a_cluster(tmp_path: Path) -> None:
    out = str(tmp_path / "ship")
    small = [word for name in ("numpy", "pyarrow", "sqlalchemy") for word in ("--without", name)]
    ran = tianzhou("pipeline", "package", "--out", out, "--with", "pytest", *small)
    assert (ran.code, "--archives tianzhou-env.tar.gz#tianzhou-env" in ran.out) == (0, True), ran
    ran = tianzhou("pipeline", "package", "--out", out, "--pure", "--json")
    assert (ran.code, Path(ran.json["path"]).name) == (0, "tianzhou.zip")
    ran = tianzhou("pipeline", "package", "--out", out, "--pure", "--with", "pytest")
    assert (ran.code, "for archives" in ran.err) == (2, True)


def test_status_without_runs_creates_no_file(tmp_path: Path) -> None:
    ran = tianzhou("pipeline", "status", "--database", f"sqlite:///{tmp_path}/none.db")
    assert (ran.code, ran.out.strip()) == (0, "0 runs")
    assert list(tmp_path.iterdir()) == []


def test_status_lists_runs(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    ran = tianzhou("pipeline", "status", "--database", url)
    assert (ran.code, "0 runs" in ran.out) == (0, True)
    engine = tables.open_database(url)
    with engine.begin() as connection:
        for number in range(3):
            row = {
                "pipeline": "topic-stats", "state": "done", "started_ms": 1_000 * number,
                "ended_ms": 1_000 * number + 500, "row_count": number, "options": "{}",
            }  # fmt: skip
            connection.execute(tables.runs.insert().values(row))
    engine.dispose()
    ran = tianzhou("pipeline", "status", "--database", url, "--limit", "2", "--json")
    assert [row["row_count"] for row in json.loads(ran.out)] == [2, 1]
