"""The demonstration of `make run`, from the first message to the Spark job and Ctrl-C."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.spark.temporary_files import passing_files
from tianzhou.cli.demo import run
from tianzhou.testing.cluster import SMALL

DEADLINE_S = 400
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.full
def test_messages_flow_are_plotted_and_counted_by_spark(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ["up", "--demo", "--data", str(data), "--namesrv-port", "0", "--port", str(free_port())]
    for setting in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"):
        words += ["--set", f"{setting}={SMALL[setting]}"]
    environment = os.environ | passing_files(tmp_path)
    del environment["JDK_JAVA_OPTIONS"]  # as for users: the demonstration chooses some itself
    program = subprocess.Popen(
        [sys.executable, "-m", "tianzhou", *words], stdout=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    too_late = threading.Timer(DEADLINE_S, program.kill)
    too_late.start()
    shown: list[str] = []
    try:
        assert program.stdout is not None
        for line in program.stdout:
            shown.append(line)
            if line.startswith("Ctrl-C stops everything"):
                break
        program.send_signal(signal.SIGINT)
        shown += program.communicate(timeout=240)[0].splitlines(keepends=True)
    finally:
        too_late.cancel()
        program.kill()
        program.wait()
    text = "".join(shown)
    assert program.returncode == 0, text
    sent = re.search(r"^ +([\d,]+) sent, ([\d,]+) received$", text, re.MULTILINE)
    assert sent is not None, text
    assert sent[1] == sent[2], text
    assert (data / run.PLOT).read_bytes().startswith(PNG)
    log = data / run.SPARK_LOG
    assert f"Spark counted {sent[1]} messages in the log" in text, text + log.read_text()
    assert re.search(r"^  4000-a-second +[\d,]+", text, re.MULTILINE), text
