"""Masters and slaves of one name, ours and Apache's in any mixture, and comparisons of them."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.apache.backends import OURS
from tests.support.apache.requests import SUCCESS, Answer, ask_server
from tests.support.apache.servers import (
    Restartable,
    Server,
    apache_broker,
    free_port,
    tianzhou_broker,
    wait_to_hold,
    wait_until,
)
from tianzhou.names import is_system_topic
from tianzhou.protocol import fastjson
from tianzhou.protocol.codes import RequestCode

IN_STEP_S = 90
"""Apache's slaves of 5.x copy tables for the first time after a minute."""
LOST = re.compile(
    r"Remoting(Connect|SendRequest|Timeout|TooMuchRequest)Exception"
    r"|ClosedChannelException|AsynchronousCloseException|ConnectException"
    r"|ha\.FlowMonitor\.run|Connection reset|Broken pipe|[Cc]onnection refused"
)
"""In Apache's logs: a connection was lost, or could not be made."""
NOT_YET = re.compile(r"StoreStatsService\.get\w*Tps")
"""Not about replication: RocketMQ has no run-time information in its first second."""
SETTING = re.compile(r"^\S+ \S+ INFO main - \w+=")


# -- brokers ---------------------------------------------------------------------------------------


@dataclass
class Replica:
    """A broker of a pair; it can be killed, and started again in the same or another role."""

    kind: str
    """`OURS`, or a version of Apache's."""
    namesrv: Server
    folder: Path
    """With the store, and with the log files of all its processes."""
    settings: dict[str, Any]
    port: int = field(default_factory=lambda: free_port(-2, 1))
    graceful: bool = False
    """How `stop` ends Apache's brokers; their logs have exceptions of an orderly stop, too."""
    life: Restartable = field(init=False)

    def __post_init__(self) -> None:
        self.life = Restartable(self._begin)

    @property
    def is_ours(self) -> bool:
        return self.kind == OURS

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def _begin(self) -> AbstractContextManager[Server]:
        self.folder.mkdir(exist_ok=True)
        if self.is_ours:
            own: dict[str, object] = {"listenPort": self.port, "storePathRootDir": self.store}
            return self._our_broker(own | self.settings)
        # The last definition of a property applies: the log files outlive the process.
        options = [f"-Duser.home={self.folder}"]
        # 4.9 reads the misspelt key.
        size = {"mapedFileSizeCommitLog": self.settings["mappedFileSizeCommitLog"]}
        return apache_broker(
            self.kind, self.namesrv.address, store_dir=self.store, port=self.port,
            jvm_options=options, graceful=self.graceful, **(self.settings | size),
        )  # fmt: skip

    @contextmanager
    def _our_broker(self, settings: dict[str, object]) -> Generator[Server]:
        with tianzhou_broker(self.namesrv, **settings) as server:
            try:
                yield server
            finally:
                with (self.folder / "ours.log").open("a") as kept:
                    kept.write(server.output())

    # -- state -------------------------------------------------------------------------------------

    def runtime(self) -> dict[str, str]:
        """The table of `brokerStatus`."""
        answers: list[Answer] = []

        def ask() -> bool:
            answers[:] = [ask_server(self.address, RequestCode.GET_BROKER_RUNTIME_INFO)]
            return answers[0].code == SUCCESS

        # RocketMQ has none in its first second.
        wait_until(ask, f"run-time information of {self.kind}", timeout_s=IN_STEP_S)
        table: dict[str, str] = json.loads(answers[0].body)["table"]
        return table

    def end(self) -> int:
        """The log offset behind the last record."""
        return int(self.runtime()["commitLogMaxOffset"])

    def log_files(self) -> dict[int, Path]:
        """The files of the log, by their first log offset."""
        return {int(path.name): path for path in sorted((self.store / "commitlog").iterdir())}

    def body(self, code: int, fields: dict[str, str] | None = None) -> Any:  # noqa: ANN401 - JSON
        """The JSON body of a response."""
        answer = ask_server(self.address, code, fields)
        assert answer.code == SUCCESS, answer
        return fastjson.loads(answer.body)

    def topics(self) -> dict[str, tuple[Any, ...]]:
        """The topics of users: queues, permissions and the like."""
        page = {"topicSeq": "0", "maxTopicNum": "10000", "dataVersion": ""}
        table = self.body(RequestCode.GET_ALL_TOPIC_CONFIG, page)["topicConfigTable"]
        keys = ("readQueueNums", "writeQueueNums", "perm", "order", "topicSysFlag")
        return {
            name: tuple(each.get(key) for key in keys)
            for name, each in table.items()
            if not is_system_topic(name) and name not in ("broker-a", "DefaultCluster")
        }

    def groups(self) -> dict[str, tuple[Any, ...]]:
        page = {"groupSeq": "0", "maxGroupNum": "10000", "dataVersion": ""}
        answer = self.body(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, page)
        table = answer["subscriptionGroupTable"]
        keys = ("consumeEnable", "retryQueueNums", "retryMaxTimes", "brokerId")
        return {name: tuple(each.get(key) for key in keys) for name, each in table.items()}

    def offsets(self) -> dict[str, dict[str, int]]:
        """Offsets by TOPIC@GROUP and queue."""
        table = self.body(RequestCode.GET_ALL_CONSUMER_OFFSET)["offsetTable"]
        return {
            key: {str(queue): offset for queue, offset in by_queue.items()}
            for key, by_queue in table.items()
        }

    def delays(self) -> dict[str, int]:
        """How far each delay level is delivered."""
        if self.is_ours:
            table: dict[object, int] = self.body(RequestCode.GET_ALL_DELAY_OFFSET)["offsetTable"]
        else:
            # Apache's slave copies the file, and 4.9 reads it when it becomes the master.
            path = self.store / "config" / "delayOffset.json"
            table = fastjson.loads(path.read_bytes())["offsetTable"] if path.exists() else {}
        return {str(level): offset for level, offset in table.items()}

    def queue_ends(self, topics: dict[str, tuple[Any, ...]]) -> dict[tuple[str, int], int]:
        """The next queue offset of every queue of topics."""
        return {
            (topic, queue): self._queue_end(topic, queue)
            for topic, (queues, *_) in topics.items()
            for queue in range(queues)
        }

    def _queue_end(self, topic: str, queue: int) -> int:
        fields = {"topic": topic, "queueId": str(queue)}
        answer = ask_server(self.address, RequestCode.GET_MAX_OFFSET, fields)
        assert answer.code == SUCCESS, answer
        return int(answer.fields["offset"])

    # -- what it wrote -----------------------------------------------------------------------------

    def log_text(self) -> str:
        """All that its processes have logged."""
        paths = [*self.folder.glob("logs/**/*.log"), *self.folder.glob("ours.log")]
        return "\n".join(path.read_text(errors="replace") for path in sorted(paths))

    def errors(self) -> list[str]:
        """Exceptions in Apache's logs, and tracebacks in ours, but for lost connections."""
        text = self.log_text()
        if self.is_ours:
            return re.findall(r"^Traceback .*\n(?:.*\n){0,40}?\S.*", text, re.MULTILINE)
        # A stack trace follows the message that it belongs to.
        shown = re.findall(
            r"^.*\b[\w.]+(?:Exception|Error)\b.*\n(?:\s+at .*\n|\s*\.\.\. .*\n|Caused by: .*\n)*",
            text,
            re.MULTILINE,
        )
        usual = (LOST, NOT_YET, SETTING)
        return [each[:3000] for each in shown if not any(kind.search(each) for kind in usual)]

    def verify(self) -> None:
        """`tianzhou store verify` must find nothing in the store of a stopped broker."""
        program = Path(sys.executable).parent / "tianzhou"
        done = subprocess.run(
            [str(program), "store", "verify", str(self.store)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def remove(self) -> None:
        """Its files, which may be large."""
        shutil.rmtree(self.folder, ignore_errors=True)


# -- comparisons -----------------------------------------------------------------------------------


def assert_equal_logs(master: Replica, slave: Replica, end: int) -> int:
    """Compare the files that both have, up to `end`; returns the number of equal bytes."""
    ours, theirs = master.log_files(), slave.log_files()
    starts = [start for start in sorted(ours.keys() & theirs.keys()) if start < end]
    assert starts, (ours, theirs)
    file_bytes = ours[starts[0]].stat().st_size
    assert starts == list(range(starts[0], end, file_bytes)), "a file is missing"
    for start in starts:
        size = min(file_bytes, end - start)
        one, other = ours[start].read_bytes()[:size], theirs[start].read_bytes()[:size]
        if one != other:
            at = next(i for i in range(size) if one[i : i + 1] != other[i : i + 1])
            raise AssertionError(
                f"the logs differ at {start + at}: {one[at : at + 64]!r} {other[at : at + 64]!r}"
            )
    return end - starts[0]


def in_step(master: Replica, slave: Replica) -> int:
    """Wait until the slave has the master's log; returns its end."""

    def check() -> None:
        assert slave.end() == master.end()

    wait_to_hold(check, timeout_s=IN_STEP_S)
    return slave.end()


def assert_equal_queues(master: Replica, slave: Replica) -> None:
    """Wait until the queues of both have equal ends.

    A slave whose log begins later knows nothing of a queue without messages since then.
    """
    is_whole = min(slave.log_files()) == min(master.log_files())

    def check() -> None:
        copied = slave.queue_ends(master.topics())
        different = {
            queue: (end, copied[queue])
            for queue, end in master.queue_ends(master.topics()).items()
            if copied[queue] != end and (copied[queue] or is_whole)
        }
        assert not different, different

    wait_to_hold(check, timeout_s=IN_STEP_S)


def assert_equal_tables(master: Replica, slave: Replica) -> None:
    """Wait until the slave has the master's tables."""

    def check() -> None:
        assert slave.topics() == master.topics()
        theirs, ours = slave.groups(), master.groups()
        assert {name: theirs.get(name) for name in ours} == ours
        copied, offsets = slave.offsets(), master.offsets()
        assert {key: copied.get(key) for key in offsets} == offsets
        assert slave.delays() == master.delays()

    wait_to_hold(check, timeout_s=IN_STEP_S)
