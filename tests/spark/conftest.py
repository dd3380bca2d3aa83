"""One Spark session and one cluster for all tests of pipelines.

A session takes seconds to start, so tests share it; each works on topics of its own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed: no pyspark")

from pyspark.sql import SparkSession

from tests.spark.quick import QUICK
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
