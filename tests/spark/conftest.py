"""One Spark session and one cluster shared by all tests; each test uses its own topics."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gate import gated

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import SparkSession

from tests.support.databases import fresh_database, postgresql
from tests.support.spark.fast_session import QUICK
from tianzhou.client.sync import Producer
from tianzhou.spark import session
from tianzhou.testing import Cluster


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    made = session("tests", master="local[2]", configuration=QUICK)
    made.sparkContext.setLogLevel("ERROR")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgresql(tmp_path_factory.mktemp("postgresql")) as url:
        yield url


@pytest.fixture(params=gated(["sqlite", "postgresql"], {"sqlite"}))
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each supported kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'database.db'}"
    server: str = request.getfixturevalue("postgresql_url")
    return fresh_database(server, f"test_{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="session")
def cluster(store_folder: Path) -> Iterator[Cluster]:
    with Cluster(folder=store_folder) as made:
        yield made


@pytest.fixture(scope="session")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer("pipelines", namesrv=cluster.namesrv_address) as made:
        yield made
