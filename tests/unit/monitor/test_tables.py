"""The database of the pipelines: creation, migration, idempotent writes."""

import threading
from pathlib import Path

import pytest
from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    inspect,
    text,
)

from tianzhou.errors import ConfigError
from tianzhou.monitor import database, tables


def stat(topic: str, produced: int) -> dict[str, object]:
    return {
        "cluster": "c", "topic": topic, "consumer_group": "", "day": "2024-02-29", "hour": 3,
        "produced": produced, "updated_ms": 1,
    }  # fmt: skip


def test_an_existing_row_is_replaced(engine: Engine) -> None:
    for produced in (5, 7):
        with engine.begin() as connection:
            tables.upsert(connection, tables.topic_stats, [stat("a", produced), stat("b", 1)])
    with engine.connect() as connection:
        rows = tables.rows_of(connection, tables.topic_stats)
    assert sorted((row.topic, row.produced, row.consumed) for row in rows) == [
        ("a", 7, 0),
        ("b", 1, 0),
    ]


def test_many_rows_at_once(engine: Engine) -> None:
    with engine.begin() as connection:
        rows = [stat(f"t{number}", number) for number in range(1_000)]
        assert tables.upsert(connection, tables.topic_stats, rows) == 1_000
        assert tables.upsert(connection, tables.topic_stats, []) == 0
        assert len(tables.rows_of(connection, tables.topic_stats)) == 1_000


def test_long_tokens_are_shortened_and_stay_distinct() -> None:
    assert tables.token("k" * 512) == "k" * 512
    one, two = tables.token("k" * 600 + "1"), tables.token("k" * 600 + "2")
    assert one != two
    assert {len(one), len(two)} == {512}


def test_a_batch_is_applied_once(engine: Engine) -> None:
    calls: list[int] = []

    def work(connection: Connection) -> None:
        calls.append(1)
        tables.upsert(connection, tables.topic_stats, [stat("a", len(calls))])

    assert tables.apply_once(engine, "q", 4, work)
    assert not tables.apply_once(engine, "q", 4, work)
    assert tables.apply_once(engine, "q", 5, work)
    assert tables.apply_once(engine, "other", 4, work)
    assert len(calls) == 3


def test_a_failed_batch_writes_nothing_and_can_be_repeated(engine: Engine) -> None:
    def fail(connection: Connection) -> None:
        tables.upsert(connection, tables.topic_stats, [stat("a", 1)])
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        tables.apply_once(engine, "q", 1, fail)
    with engine.connect() as connection:
        assert tables.rows_of(connection, tables.topic_stats) == []
    assert tables.apply_once(engine, "q", 1, lambda connection: None)


def test_concurrent_writers_apply_a_batch_once(engine: Engine) -> None:
    calls: list[int] = []
    gate = threading.Barrier(4)

    def one() -> None:
        gate.wait()
        tables.apply_once(engine, "q", 9, lambda connection: calls.append(1))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]


def test_new_columns_are_added_to_an_old_table(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    old = create_engine(url)
    with old.begin() as connection:
        connection.execute(
            text(
                "CREATE TABLE tianzhou_topic_stats (topic TEXT, consumer_group TEXT, day TEXT, "
                "hour INTEGER, produced BIGINT, updated_ms BIGINT, "
                "PRIMARY KEY (topic, consumer_group, day, hour))"
            )
        )
        connection.execute(text("CREATE TABLE mine (x INTEGER)"))
        connection.execute(
            text("INSERT INTO tianzhou_topic_stats VALUES ('a', '', '2024-01-01', 0, 5, 1)")
        )
    old.dispose()
    for _ in range(2):
        engine = tables.open_database(url)
        with engine.connect() as connection:
            (row,) = tables.rows_of(connection, tables.topic_stats)
            names = inspect(connection).get_table_names()
        engine.dispose()
        assert (row.topic, row.produced, row.consumed, row.distinct_keys) == ("a", 5, 0, 0)
        assert "mine" in names


def test_a_database_of_a_newer_release_is_rejected(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    engine = tables.open_database(url)
    with engine.begin() as connection:
        connection.execute(tables.versions.update().values(version=tables.VERSION + 1))
    engine.dispose()
    with pytest.raises(ConfigError, match="this release supports"):
        tables.open_database(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nonsense", "database nonsense"),
        ("mysql://h/x", "only SQLite and PostgreSQL"),
        ("sqlite:////no/such/folder/x.db", "unable to open"),
        ("postgresql://u:secret@127.0.0.1:1/x", "database postgresql://..."),
    ],
)
def test_a_database_that_cannot_be_opened_is_an_error_without_secrets(
    url: str, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        tables.open_database(url)
    assert "secret" not in str(caught.value)


# -- version 1 -------------------------------------------------------------------------------------

VERSION_1 = {
    "topic_stats": ("topic", "consumer_group", "day", "hour"),
    "alarms": ("kind", "tenant", "consumer_group", "topic"),
    "trace_latency": ("day", "topic", "consumer_group", "step"),
    "slow_messages": ("day", "topic", "consumer_group", "place"),
    "duplicates": ("day", "topic", "by", "token"),
    "reconciliation": ("name", "token"),
    "alarm_rules": ("id",),
    "alarm_events": ("id",),
    "pipeline_runs": ("id",),
}
"""The keys of the first release."""
NEW_IN_2 = {"cluster", "resets", "source"}


def version_1() -> MetaData:
    """The tables of the first release: those of today without what is new."""
    old = MetaData()
    Table("tianzhou_pipeline_schema", old, Column("version", Integer, primary_key=True))
    for name, key in VERSION_1.items():
        columns = [
            Column(
                each.name, each.type, primary_key=each.name in key, nullable=each.nullable,
                autoincrement=each.name == "id", server_default=each.server_default,
            )
            for each in tables.metadata.tables[f"tianzhou_{name}"].columns
            if each.name not in NEW_IN_2
        ]  # fmt: skip
        Table(f"tianzhou_{name}", old, *columns)
    return old


def row_of(table: Table, mark: str) -> dict[str, object]:
    """A row with a value in each column."""
    return {
        column.name: mark if isinstance(column.type, String) else 1
        for column in table.columns
        if column.name != "id"
    }


def test_rows_of_version_1_get_an_empty_cluster_in_their_key(empty_url: str) -> None:
    old, engine = version_1(), database.engine_of(empty_url)
    with engine.begin() as connection:
        old.create_all(connection)
        connection.execute(old.tables["tianzhou_pipeline_schema"].insert().values(version=1))
        for name in VERSION_1:
            table = old.tables[f"tianzhou_{name}"]
            connection.execute(table.insert().values(row_of(table, "x")))
    engine.dispose()
    for _ in range(2):
        engine = tables.open_database(empty_url)
        with engine.connect() as connection:
            for name, key in VERSION_1.items():
                table = tables.metadata.tables[f"tianzhou_{name}"]
                (row,) = tables.rows_of(connection, table)
                assert row.cluster == "", name
                found = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
                assert set(found) == set(key) | ({"cluster"} if key != ("id",) else set()), name
            assert [row.version for row in tables.rows_of(connection, tables.versions)] == [2]
            (stats,) = tables.rows_of(connection, tables.topic_stats)
            assert (stats.source, stats.resets) == ("log", 0)
        engine.dispose()
    engine = tables.open_database(empty_url)
    with engine.begin() as connection:
        for name, key in VERSION_1.items():
            table = tables.metadata.tables[f"tianzhou_{name}"]
            values = row_of(table, "x") | {"cluster": "two"}
            # The same names in another cluster are another row.
            connection.execute(table.insert().values(values))
            assert len(tables.rows_of(connection, table)) == 2, (name, key)
    engine.dispose()
