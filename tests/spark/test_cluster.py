"""Source, sink and `topic-stats` on a Spark cluster that gets Tianzhou by spark-submit.

The cluster's Python has only the shipped packages, and for the zip the distributions that
docs/spark-cluster.md lists.
"""

import json
import subprocess
import sys
import tarfile
import venv
from collections.abc import Generator
from datetime import UTC, datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

from tests.support.spark.reading import rows
from tests.support.spark.standalone_cluster import Standalone, standalone
from tianzhou.monitor import tables
from tianzhou.protocol import kernel
from tianzhou.spark import cluster_package
from tianzhou.testing import Cluster

COUNT = 2_000
DAY_MS = 24 * 3_600_000
JOB = Path(__file__).parents[1] / "support" / "spark" / "cluster_job.py"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Generator[Standalone]:
    with standalone(tmp_path_factory.mktemp("standalone")) as running:
        yield running


@pytest.fixture(scope="module")
def topics() -> Generator[Cluster]:
    with Cluster(topics={"shipped": 2, "pure": 2}) as cluster:
        # Noon of a future day: no midnight between writing and counting.
        now_ms = cluster.clock()
        cluster.advance(ms=(now_ms // DAY_MS + 1) * DAY_MS + DAY_MS // 2 - now_ms)
        yield cluster


def bare_python(folder: Path, distributions: tuple[str, ...] = ()) -> str:
    """A Python that has these distributions and nothing else."""
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    for name in distributions:
        dist = distribution(name)
        for top in {file.parts[0] for file in dist.files or () if ".." not in file.parts}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(dist.locate_file(top))).resolve())
    return str(folder / "bin" / "python")


def told_by(ran: subprocess.CompletedProcess[str]) -> str:
    """The output of a program without Spark's own lines."""
    lines = (ran.stdout + ran.stderr).splitlines()
    return "\n".join(line for line in lines if " INFO " not in line)[-6000:]


def check_job(
    machines: Standalone, folder: Path, topics: Cluster, topic: str, ship: list[str], **env: str
) -> list[tuple[str, str, str | None]]:
    """Submit the job and check its result; returns where each executor loaded its code from."""
    report, url = folder / "report.json", f"sqlite:///{folder / 'stats.db'}"
    day = datetime.fromtimestamp(topics.clock() / 1000, UTC).date().isoformat()
    job = [str(JOB), topics.namesrv_address, topic, str(COUNT), str(report), day, url]
    ran = machines.submit(folder, [*ship, *job], **env)
    assert ran.returncode == 0, told_by(ran)
    seen: dict[str, Any] = json.loads(report.read_text())
    assert seen["rows"] == [[n, "b" if n % 4 else "a"] for n in range(COUNT)]
    assert seen["code"] == 0, told_by(ran)
    (whole,) = rows(url, tables.topic_stats, topic=topic, hour=-1)
    assert (whole.day, whole.produced) == (day, COUNT)
    executors: list[tuple[str, str, str | None]] = [
        (each[0], each[1], each[2]) for each in seen["executors"]
    ]
    assert len({executor for executor, _, _ in executors}) == 2, "both workers took part"
    return executors


def test_an_archive_brings_package_and_kernel(
    machines: Standalone, topics: Cluster, tmp_path: Path
) -> None:
    # The largest two are taken from the machines, which saves time.
    there = ("numpy", "pyarrow")
    made = cluster_package.write_archive(tmp_path, without=there)
    assert made.needs == there
    with tarfile.open(made.path) as tar:
        tar.extractall(tmp_path / cluster_package.FOLDER, filter="data")
    ship = [
        *("--archives", f"{cluster_package.ARCHIVE}#{cluster_package.FOLDER}"),
        *("--conf", f"spark.executorEnv.PYTHONPATH={cluster_package.FOLDER}"),
    ]
    python = bare_python(tmp_path / "python", there)
    env = {"PYSPARK_PYTHON": python, "PYTHONPATH": cluster_package.FOLDER}
    for executor, code, why_pure in check_job(machines, tmp_path, topics, "shipped", ship, **env):
        assert code.startswith(f"{executor}/{cluster_package.FOLDER}/tianzhou/")
        assert (why_pure is None) == made.has_kernel == (kernel.WHY_PURE is None)


@pytest.mark.full
def test_a_zip_brings_the_package_without_the_kernel(
    machines: Standalone, topics: Cluster, tmp_path: Path
) -> None:
    made = cluster_package.write_zip(tmp_path)
    assert not made.has_kernel
    env = {"PYSPARK_PYTHON": bare_python(tmp_path / "python", made.needs)}
    ship = ["--py-files", cluster_package.ZIP]
    for _, code, why_pure in check_job(machines, tmp_path, topics, "pure", ship, **env):
        assert f"/{cluster_package.ZIP}/tianzhou/" in code
        assert why_pure is not None
        assert "tianzhou_kernel" in why_pure
