"""Databases of older releases get the missing steps, one transaction each, on both databases."""

import threading
from collections.abc import Sequence

import pytest
from sqlalchemy import (
    BigInteger,
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
from tianzhou.monitor.database import engine_of, open_database, reading
from tianzhou.monitor.migrations import Step, add_columns, change_key, has_table

metadata = MetaData()
versions = Table("app_schema", metadata, Column("version", Integer, primary_key=True))
figures = Table(
    "app_figures",
    metadata,
    Column("cluster", String(64), primary_key=True),
    Column("topic", String(64), primary_key=True),
    Column("seen", BigInteger, nullable=False),
    Column("state", String(8), nullable=False, server_default="new"),
    Column("note", String(8)),
)


def by_cluster(connection: Connection) -> None:
    cluster = Column("cluster", String(64), nullable=False, server_default="")
    change_key(connection, "app_figures", [cluster], ["cluster", "topic"])


def with_state(connection: Connection) -> None:
    state = Column("state", String(8), nullable=False, server_default="old")
    add_columns(connection, "app_figures", state)


STEPS: Sequence[Step] = (by_cluster, with_state)


def make_version_1(url: str, *, records_version: bool = True) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        for statement in (
            "CREATE TABLE app_figures (topic VARCHAR(64) NOT NULL, seen BIGINT NOT NULL, "
            "PRIMARY KEY (topic))",
            "CREATE INDEX app_by_seen ON app_figures (seen)",
            "INSERT INTO app_figures VALUES ('a', 5), ('b', 7)",
        ):
            connection.execute(text(statement))
        if records_version:
            connection.execute(text("CREATE TABLE app_schema (version INTEGER PRIMARY KEY)"))
            connection.execute(text("INSERT INTO app_schema VALUES (1)"))
    engine.dispose()


def rows(engine: Engine) -> list[tuple[object, ...]]:
    with reading(engine) as connection:
        found = connection.execute(figures.select().order_by(figures.c.topic, figures.c.cluster))
        return [tuple(row) for row in found]


def version_of(engine: Engine) -> list[int]:
    with reading(engine) as connection:
        return list(connection.execute(versions.select()).scalars())


@pytest.mark.parametrize("records_version", [True, False])
def test_an_old_database_gets_all_steps_and_keeps_its_rows(
    empty_url: str, records_version: bool
) -> None:
    make_version_1(empty_url, records_version=records_version)
    for _ in range(2):
        engine = open_database(empty_url, metadata, versions, STEPS)
        assert rows(engine) == [("", "a", 5, "old", None), ("", "b", 7, "old", None)]
        assert version_of(engine) == [3]
        seen = inspect(engine)
        assert seen.get_pk_constraint("app_figures")["constrained_columns"] == ["cluster", "topic"]
        assert [each["name"] for each in seen.get_indexes("app_figures")] == ["app_by_seen"]
        engine.dispose()
    engine = open_database(empty_url, metadata, versions, STEPS)
    with engine.begin() as connection:
        connection.execute(figures.insert().values(cluster="x", topic="a", seen=1))
    assert rows(engine)[1] == ("x", "a", 1, "old", None)
    engine.dispose()


def test_a_new_database_is_created_without_steps(empty_url: str) -> None:
    def never(_: Connection) -> None:
        raise AssertionError("a step of older databases")

    engine = open_database(empty_url, metadata, versions, (never, never))
    assert version_of(engine) == [3]
    assert rows(engine) == []
    engine.dispose()


def test_a_step_skips_a_table_that_an_old_database_does_not_have(empty_url: str) -> None:
    engine = engine_of(empty_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE app_schema (version INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO app_schema VALUES (1)"))
    engine.dispose()

    def step(connection: Connection) -> None:
        if has_table(connection, "app_figures"):
            by_cluster(connection)

    engine = open_database(empty_url, metadata, versions, (step,))
    assert version_of(engine) == [2]
    assert rows(engine) == []
    engine.dispose()


def test_a_failed_step_changes_nothing_and_is_repeated(empty_url: str) -> None:
    make_version_1(empty_url)

    def fail(connection: Connection) -> None:
        with_state(connection)
        connection.execute(text("UPDATE app_figures SET seen = 0"))
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        open_database(empty_url, metadata, versions, (by_cluster, fail))
    engine = engine_of(empty_url)
    assert version_of(engine) == [2]
    names = [column["name"] for column in inspect(engine).get_columns("app_figures")]
    assert sorted(names) == ["cluster", "seen", "topic"]
    engine.dispose()
    engine = open_database(empty_url, metadata, versions, STEPS)
    assert [row[2] for row in rows(engine)] == [5, 7]
    engine.dispose()


def test_an_error_of_the_database_in_a_step_is_one_line(empty_url: str) -> None:
    make_version_1(empty_url)

    def fail(connection: Connection) -> None:
        connection.execute(text("UPDATE app_nothing SET x = 0"))

    with pytest.raises(ConfigError, match="app_nothing") as caught:
        open_database(empty_url, metadata, versions, (fail,))
    assert "\n" not in str(caught.value)


def test_programs_that_start_together_migrate_once(empty_url: str) -> None:
    make_version_1(empty_url)
    count: list[int] = []
    gate = threading.Barrier(4)

    def counted(connection: Connection) -> None:
        count.append(1)
        by_cluster(connection)

    def start() -> None:
        gate.wait()
        open_database(empty_url, metadata, versions, (counted, with_state)).dispose()

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == [1]
    engine = open_database(empty_url, metadata, versions, STEPS)
    assert version_of(engine) == [3]
    assert len(rows(engine)) == 2
    engine.dispose()


def test_a_database_of_a_newer_release_is_rejected_unchanged(empty_url: str) -> None:
    open_database(empty_url, metadata, versions, STEPS).dispose()
    with pytest.raises(ConfigError, match=r"schema version 3, this release supports 2: upgrade"):
        open_database(empty_url, metadata, versions, STEPS[:1])
    engine = create_engine(engine_of(empty_url).url)
    assert version_of(engine) == [3]
    engine.dispose()


def test_a_reader_does_not_wait_for_the_writer_of_an_sqlite_file(tmp_path: object) -> None:
    engine = open_database(f"sqlite:///{tmp_path}/r.db", metadata, versions, STEPS)
    with engine.begin() as writer:
        writer.execute(figures.insert().values(cluster="x", topic="a", seen=1))
        assert rows(engine) == []
    assert len(rows(engine)) == 1
    engine.dispose()
