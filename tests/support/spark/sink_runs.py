"""Runs of `sink_driver`: started, paused within a batch, killed, and checked at the end."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.apache.requests import ask_server
from tests.support.spark import sink_driver
from tests.support.spark.temporary_files import passing_files
from tianzhou.message import StoredMessage
from tianzhou.names import HALF_TOPIC
from tianzhou.protocol.codes import RequestCode

ROOT = Path(__file__).resolve().parents[3]
SOURCE, TOPIC = sink_driver.SOURCE, sink_driver.TOPIC
_DEADLINE_S = 900.0


def half_count(broker_address: str) -> int:
    """The number of half messages that a broker has stored."""
    fields = {"topic": HALF_TOPIC, "queueId": "0"}
    return int(ask_server(broker_address, RequestCode.GET_MAX_OFFSET, fields).fields["offset"])


@dataclass
class SinkRun:
    """A driver that can be killed and restarted, and the folder with its state.

    It runs from `with` on, and not longer than that.
    """

    namesrv: str
    folder: Path
    count: int
    """Numbers in all, of which the driver takes `row_count` at a time."""
    row_count: int
    driver: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self.kill()

    def start(self) -> None:
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.sink_driver", self.namesrv,
                 str(self.folder), str(self.count), str(self.row_count)],
                stdout=log, stderr=log, start_new_session=True, cwd=ROOT,
                env=os.environ | passing_files(self.folder),
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL, to the JVM and all workers."""
        assert self.driver is not None
        os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait(60)

    def finish(self) -> None:
        """Wait until the driver says that all is done."""
        assert self.driver is not None
        assert self.driver.wait(_DEADLINE_S) == 0, self._log()

    # -- moments -----------------------------------------------------------------------------------

    def await_batch(self, batch: int) -> None:
        """Until a batch is decided."""
        self._until(lambda: len(self._states()) > batch, lambda: f"waiting for batch {batch}")

    def await_undone(self, batch: int) -> None:
        """Wait until this batch or a later one is decided and may be invisible."""
        self._until(
            lambda: "decided" in self._states()[batch:],
            lambda: f"no batch from {batch} on was met between its decision and its end",
        )

    def hold(self, batch: int) -> None:
        """Pause the tasks of a batch after some rows."""
        (self.folder / f"hold-{batch}").touch()

    def await_held(self, batch: int, broker_address: str) -> None:
        """Wait until a task is paused, with some rows sent and none of them decided."""
        assert batch == 1, "halves of earlier batches would be counted as those of this one"
        held = self.folder / f"held-{batch}"
        self._until(held.exists, lambda: f"no task of batch {batch} is held")
        self._until(lambda: half_count(broker_address) > 0, lambda: "nothing was sent")
        assert len(self._states()) <= batch

    def release(self, batch: int) -> None:
        """Resume the tasks; returns when one has resumed."""
        passed = self.folder / f"passed-{batch}"
        (self.folder / f"hold-{batch}").unlink()
        self._until(passed.exists, lambda: f"no task of batch {batch} goes on")

    def _until(self, is_so: Callable[[], bool], seen: Callable[[], str]) -> None:
        assert self.driver is not None
        deadline_s = time.monotonic() + _DEADLINE_S
        while not is_so():
            assert self.driver.poll() is None, f"the driver has ended, {seen()}: {self._log()}"
            assert time.monotonic() < deadline_s, f"{seen()}: {self._log()}"
            time.sleep(0.005)

    def _log(self) -> str:
        log = (self.folder / "driver.log").read_text(errors="replace")[-3000:]
        return f"batches are {self._states()}, and the driver says:\n{log}"

    def _states(self) -> list[str]:
        """The states of the batches in the sink's ledger, from batch 0 on."""
        path = self.folder / "ledger.db"
        if not path.exists():
            return []
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)
        try:
            wanted = "SELECT batch, state FROM tianzhou_sink_batches ORDER BY batch"
            found = connection.execute(wanted).fetchall()
        except sqlite3.OperationalError:
            return []
        finally:
            connection.close()
        assert [batch for batch, _ in found] == list(range(len(found)))
        return [state for _, state in found]

    # -- the end -----------------------------------------------------------------------------------

    def check(self, seen: Iterable[StoredMessage], note: str = "") -> None:
        """Every number is in the topic and in the table, once; and some task had failed."""
        assert Counter(int(each.body) for each in seen) == Counter(range(self.count)), note
        assert list(self.folder.glob("failed-*")), "no task has failed, so nothing was shown"
        connection = sqlite3.connect(self.folder / "table.db")
        taken = connection.execute("SELECT number, queue_id, queue_offset FROM taken").fetchall()
        connection.close()
        assert sorted(row[0] for row in taken) == list(range(self.count)), note
        assert len({row[1:] for row in taken}) == self.count, note
