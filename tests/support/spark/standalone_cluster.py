"""Spark's own standalone cluster on this machine: a master and workers, each in a JVM.

Everything listens on the loopback address, on ports that were free, and keeps its files in one
folder. Processes are ended by their ids.
"""

import os
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from tests.support.apache.processes import LOOPBACK, wait_until
from tests.support.ports import free_port
from tests.support.spark.fast_session import QUICK
from tests.support.spark.temporary_files import passing_files
from tianzhou.spark.session import find_java

SPARK_HOME = Path(pyspark.__file__).parent
START_TIMEOUT_S = 240
SUBMIT_TIMEOUT_S = 400
STOP_TIMEOUT_S = 30
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The optimizing compiler does not pay off in a JVM that runs for seconds."""
CONFIGURATION = QUICK | {
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    # Both workers take part from the first task on; without the cores Spark does not know of both.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
    "spark.log.level": "WARN",
}


@dataclass(frozen=True, slots=True)
class Standalone:
    """A running cluster."""

    master: str
    folder: Path
    environment: Mapping[str, str]

    def submit(
        self, folder: Path, words: Sequence[str], **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `spark-submit` in a folder; its deadline is generous."""
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"),
            *("--master", self.master, "--driver-memory", "512m", "--executor-memory", "512m"),
            *(word for pair in CONFIGURATION.items() for word in ("--conf", "=".join(pair))),
            *words,
        ]
        return subprocess.run(
            command, cwd=folder, env={**self.environment, **environment}, text=True,
            capture_output=True, timeout=SUBMIT_TIMEOUT_S, check=False,
        )  # fmt: skip


@contextmanager
def standalone(folder: Path, worker_count: int = 2) -> Generator[Standalone]:
    """A master and workers of one core each, until the block ends."""
    environment = _environment(folder)
    port = free_port()
    with ExitStack() as stack:
        master = _Part("master", folder, environment)
        stack.callback(master.end)
        master.start("Master", "--port", str(port))
        master.wait_for("I have been elected leader")
        url = f"spark://{LOOPBACK}:{port}"
        workers = [_Part(f"worker-{number}", folder, environment) for number in range(worker_count)]
        for each in workers:
            stack.callback(each.end)
            each.start("Worker", "--cores", "1", "--memory", "1g", url)
        for each in workers:
            each.wait_for("Successfully registered with master")
        yield Standalone(url, folder, environment)


def _environment(folder: Path) -> dict[str, str]:
    """This process's variables, without those that point Spark to our packages."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV"))
    }
    return {
        **kept,
        **passing_files(folder),
        "JAVA_HOME": str(find_java()),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_WORKER_DIR": str(folder / "work"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{SHORT_LIVED} -Dspark.ui.enabled=false",
    }


class _Part:
    """One process of the cluster."""

    def __init__(self, name: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / f"{name}.log"
        self._environment = environment
        self._name = name
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, kind: str, *words: str) -> None:
        program = f"org.apache.spark.deploy.{kind.lower()}.{kind}"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", program, "--host", LOOPBACK,
                 "--webui-port", "0", *words],
                stdout=output, stderr=subprocess.STDOUT, env=self._environment,
            )  # fmt: skip

    def wait_for(self, line: str) -> None:
        def is_there() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"{self._name} ended: {self._log.read_text()}"
            return line in self._log.read_text()

        wait_until(
            is_there, f"start of {self._name}", timeout_s=START_TIMEOUT_S, seen=self._log.read_text
        )

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_TIMEOUT_S)
