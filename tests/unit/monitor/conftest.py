"""Each supported database, empty."""

import itertools
from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.support.databases import fresh_database, postgresql

from tianzhou.monitor import tables

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'm.db'}"
    server: str = request.getfixturevalue("postgresql_url")
    return fresh_database(server, f"empty_{next(_numbers)}")


@pytest.fixture
def engine(empty_url: str) -> Generator[Engine]:
    """A database with the tables of the pipelines."""
    made = tables.open_database(empty_url)
    yield made
    made.dispose()
