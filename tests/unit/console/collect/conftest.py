"""Each supported database, with the tables of the collectors."""

import itertools
from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.support.databases import fresh_database, postgresql

from tianzhou.console.collect import tables

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'console.db'}"
    server: str = request.getfixturevalue("postgresql_url")
    return fresh_database(server, f"console_{next(_numbers)}")


@pytest.fixture
def engine(database_url: str) -> Generator[Engine]:
    made = tables.open_tables(database_url)
    yield made
    made.dispose()
