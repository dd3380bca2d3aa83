"""The project of examples/declarative, run by Spark's own `spark-pipelines`."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.ports import spark_connect
from tests.support.spark.standalone_cluster import SHORT_LIVED, SPARK_HOME
from tests.support.spark.temporary_files import passing_files
from tianzhou.client import Message
from tianzhou.client.sync import Producer
from tianzhou.spark.session import find_java
from tianzhou.testing import Cluster

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "examples" / "declarative"
CACHE = ROOT / ".cache" / "declarative"
NEEDED = ("grpcio", "grpcio-status", "googleapis-common-protos", "zstandard", "pandas<3", "pyyaml")
"""The requirements of `pyspark[pipelines]` beyond those of the extra `spark`."""
INSTALL_TIMEOUT_S = 240
RUN_TIMEOUT_S = 500
COUNT = 100


@pytest.fixture(scope="module")
def needed() -> str:
    """A folder with the imports of Spark's declarative pipelines, fetched once, else skipped."""
    if importlib.util.find_spec("grpc") and importlib.util.find_spec("pandas"):
        return ""
    if not (CACHE / "grpc").is_dir():
        command = [
            sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check",
            "--target", str(CACHE), *NEEDED,
        ]  # fmt: skip
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_TIMEOUT_S)
        except (subprocess.SubprocessError, OSError) as e:
            shutil.rmtree(CACHE, ignore_errors=True)
            pytest.skip(f"what pyspark[pipelines] needs could not be installed: {e}")
    return str(CACHE)


@pytest.mark.full
def test_topics_become_tables(
    spark: SparkSession, needed: str, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.create_topic("declared", 2)
    with Producer("declarative", namesrv=cluster.namesrv_address) as producer:
        producer.send_many(Message("declared", f"{number}") for number in range(COUNT))
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    file = project / "spark-pipeline.yml"
    text = file.read_text().replace("127.0.0.1:9876", cluster.namesrv_address)
    text = text.replace("file:///var/tmp/tianzhou-declarative", f"file://{tmp_path / 'storage'}")
    file.write_text(text.replace("topics: orders", "topics: declared"))
    environment = os.environ | passing_files(tmp_path, SHORT_LIVED) | {
        "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": needed,
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    with spark_connect():
        ran = subprocess.run(
            [str(SPARK_HOME / "bin" / "spark-pipelines"), "run"], cwd=project, env=environment,
            capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[-6000:]
    hours = spark.read.parquet(str(project / "spark-warehouse" / "topic_hours"))
    (whole,) = hours.groupBy("topic").agg({"messages": "sum"}).collect()
    assert tuple(whole) == ("declared", COUNT)
