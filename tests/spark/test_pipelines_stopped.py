"""Stopped pipelines end cleanly, record the stop, and resume exactly with the next run."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.spark.fast_session import QUICK
from tests.support.spark.reading import DEADLINE_S, rows, stored, until
from tests.support.spark.temporary_files import passing_files
from tianzhou.client import Message
from tianzhou.client.sync import Producer, QueueReader
from tianzhou.errors import PipelineError
from tianzhou.monitor import tables
from tianzhou.spark.pipelines import runner
from tianzhou.testing import Cluster

ROUNDS = 3
"""Minimum number of rounds before a run is stopped."""
ROWS, BATCH = 600, 10
"""Far more work than fits between a stop and its effect."""


def quick_spark(folder: Path) -> Path:
    """A configuration folder for programs that start Spark themselves."""
    lines = (f"{key} {value}\n" for key, value in QUICK.items())
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return folder


def stop_when(stop: threading.Event, is_so: Callable[[], bool]) -> None:
    """Stop a run at a condition, or at the latest at the deadline of the test."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not is_so() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    stop.set()


@pytest.mark.full
def test_signals_end_a_streaming_pipeline_and_the_next_run_resumes(
    cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alarms.db'}"
    cluster.create_topic("stopped", 1)
    producer.send("stopped", b"x")
    with QueueReader("stoppers", namesrv=cluster.namesrv_address) as reader:
        reader.commit(reader.queues("stopped")[0], 0)
    options = {"every": "100ms", "threshold": "0", "checkpoint": str(tmp_path / "checkpoint")}
    words = ["pipeline", "run", "backlog-alarm", "--namesrv", cluster.namesrv_address]
    words += ["--database", url]
    for name, value in options.items():
        words += ["--set", f"{name}={value}"]
    environ = os.environ | passing_files(tmp_path)
    environ["SPARK_CONF_DIR"] = str(quick_spark(tmp_path))
    # SIGTERM goes to the program alone, Ctrl-C to all its child processes, too.
    last: list[int] = []
    for sign, kill in ((signal.SIGTERM, os.kill), (signal.SIGINT, os.killpg)):
        code, text = stopped_by(sign, kill, words, environ, url, tmp_path / "log")
        assert code == 0, text
        assert "backlog-alarm: stopping" in text
        assert text.rstrip().endswith("notices; stopped)"), text
        # The current round was not interrupted.
        assert "check of the cluster failed" not in text
        assert "Exception" not in text
        assert runner.status(url)[0].state == "stopped"
        done = rows(url, tables.batches)
        assert len({row.query for row in done}) == 1
        last.append(max(row.batch for row in done))
    # A round that Spark begins while the pipeline stops may be omitted; none is done twice.
    assert last[0] < last[1], "the next run began anew"
    events = [row for row in rows(url, tables.alarm_events) if row.consumer_group == "stoppers"]
    assert [(row.topic, row.event, row.value) for row in events] == [("stopped", "open", 1)]


def stopped_by(
    sign: int,
    kill: Callable[[int, int], None],
    words: list[str],
    environ: dict[str, str],
    url: str,
    log: Path,
) -> tuple[int, str]:
    """Run the command line and stop it after some rounds; returns exit code and output."""
    wanted = len(rows(url, tables.batches)) + ROUNDS
    with log.open("wb") as output:
        program = subprocess.Popen(
            [sys.executable, "-m", "tianzhou", *words],
            stdout=output, stderr=output, env=environ, start_new_session=True,
        )  # fmt: skip
    try:
        until(
            lambda: program.poll() is not None or len(rows(url, tables.batches)) >= wanted,
            log.read_text,
        )
        if program.poll() is None:
            kill(program.pid, sign)
        return program.wait(DEADLINE_S), log.read_text()
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def test_a_stopped_archive_resumes_and_contains_each_message_once(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("kept-on", 2)
    producer.send_many(Message("kept-on", f"{number}") for number in range(ROWS))
    url = f"sqlite:///{tmp_path / 'results.db'}"
    path = tmp_path / "archive"
    given = {
        "nameServer": cluster.namesrv_address, "database": url, "topics": "kept-on",
        "path": str(path), "maxOffsetsPerTrigger": str(BATCH),
    }  # fmt: skip
    stop = threading.Event()

    # Batch 0 is empty.
    done = path / "_checkpoint" / "commits" / "1"
    watcher = threading.Thread(target=stop_when, args=(stop, done.exists))
    watcher.start()
    first = runner.run("archive", given, spark=spark, stop=stop)
    watcher.join()
    assert not first.is_complete
    assert "stopped before its end, the next run continues" in first.note
    assert BATCH <= first.row_count < ROWS
    second = runner.run("archive", given | {"maxOffsetsPerTrigger": str(ROWS)}, spark=spark)
    assert second.is_complete
    assert first.row_count + second.row_count >= ROWS
    bodies = [int(row.body) for row in spark.read.parquet(str(path)).select("body").collect()]
    assert Counter(bodies) == Counter(range(ROWS))
    assert [run.state for run in runner.status(url)] == ["done", "stopped"]


def test_a_stopped_replay_is_cancelled_and_recorded_as_stopped(
    spark: SparkSession, cluster: Cluster, producer: Producer, tmp_path: Path
) -> None:
    cluster.create_topic("slowly", 1)
    producer.send_many(Message("slowly", f"{number}") for number in range(ROWS))
    url = f"sqlite:///{tmp_path / 'results.db'}"
    given = {
        "nameServer": cluster.namesrv_address, "database": url, "path": str(tmp_path / "archive"),
    }  # fmt: skip
    runner.run("archive", given | {"topics": "slowly"}, spark=spark)
    cluster.create_topic("slowly-again", 1)
    stop = threading.Event()
    watcher = threading.Thread(
        target=stop_when, args=(stop, lambda: bool(stored(cluster, "slowly-again")))
    )
    watcher.start()
    # Ten minutes of work, which the stop cuts short.
    slow = given | {"toTopic": "slowly-again", "rate": "1"}
    with pytest.raises(PipelineError, match=r"^stopped before its end$"):
        runner.run("replay", slow, spark=spark, stop=stop)
    watcher.join()
    assert runner.status(url)[0].state == "stopped"
    assert len(stored(cluster, "slowly-again")) < ROWS
