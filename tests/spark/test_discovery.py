"""Spark discovers both sources automatically, in a session that does not import Tianzhou."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark.fast_session import QUICK
from tests.support.spark.temporary_files import passing_files
from tianzhou.client.sync import Producer
from tianzhou.spark.session import find_java
from tianzhou.testing import Cluster

PROGRAM = Path(__file__).parents[1] / "support" / "spark" / "plain_program.py"
DEADLINE_S = 400


@pytest.fixture(scope="module")
def results(
    cluster: Cluster,
    producer: Producer,
    store_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """The output of the program, run once because Spark starts slowly."""
    cluster.create_topic("found", 2)
    for number in range(6):
        producer.send("found", f"{number}", tags="wanted" if number % 2 else "other")
    words = [cluster.namesrv_address, str(store_folder / "broker-0"), "found"]
    configuration = [word for pair in QUICK.items() for word in ("--conf", "=".join(pair))]
    folder = tmp_path_factory.mktemp("plain")
    environment = {
        **os.environ,
        **passing_files(folder),
        "JAVA_HOME": str(find_java()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": shlex.join([*configuration, "pyspark-shell"]),
    }
    ran = subprocess.run(
        [sys.executable, PROGRAM, *words], env=environment, cwd=folder,
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert found["imported"] == [], "Spark found the sources, the program did not"
    return found


@pytest.mark.parametrize("name", ["rocketmq", "rocketmq-store"])
def test_any_session_finds_both_sources(results: dict[str, Any], name: str) -> None:
    assert results[f"{name}, push-down on"] == ["1", "3", "5"]
    assert results[f"{name}, nothing set"] == ["1", "3", "5"]


@pytest.mark.parametrize("name", ["rocketmq", "rocketmq-store"])
def test_push_down_without_its_configuration_is_an_error_that_names_it(
    results: dict[str, Any], name: str
) -> None:
    assert results["default"] == "false"
    assert "spark.sql.python.filterPushdown.enabled" in results[f"{name}, push-down off"]
