"""The database of the pipelines, on each supported database."""

from collections.abc import Generator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.support.databases import postgresql

from tianzhou.spark.pipelines import tables


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    with postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[Engine]:
    if request.param == "sqlite":
        made = tables.open_database(f"sqlite:///{tmp_path / 'p.db'}")
    else:
        made = tables.open_database(request.getfixturevalue("postgresql_url"))
        with made.begin() as connection:
            for table in tables.metadata.tables.values():
                connection.execute(table.delete())
    yield made
    made.dispose()
