"""Every sub command of the stock mqadmin, run from the stock jars against our servers.

The table has one row for each sub command: its command lines, and what the output must contain.
`test_every_sub_command_has_a_row` compares it with the list in the jars. A version has one JVM,
which also runs its producer and its consumer; a command takes some 50 ms.
"""

import json
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from string import Template

import pytest

from tests.apache.test_broker_compat import Cluster, our_cluster
from tests.support.apache.mqadmin_rows import ASKS_NO_SERVER, BODIES, TABLE, TOOLS, V4, V5, Row
from tests.support.apache.requests import SUCCESS, ask_server
from tests.support.apache.servers import VERSIONS, Shell, wait_until
from tests.support.gate import EACH_TOOL, NEWEST

pytestmark = pytest.mark.apache

UPDATE_CONSUMER_OFFSET, UPDATE_AND_CREATE_TOPIC, UPDATE_GROUP = 15, 17, 200
GET_CONSUMER_CONNECTION_LIST = 203
SMALL_LOG_FILE_BYTES = 8_192
# Larger bodies would be compressed.
FILLING = ["x" * 3_000] * 8
SOON_S = 90
LOOK_S = 0.3
COMMAND_COUNTS: dict[str, int] = dict(zip(TOOLS, (56, 96), strict=True))
TRACED_TRIES, TRACED_LOOKS = 5, 20
BODIES_OF_THE_TOOL = Path("/tmp/rocketmq/msgbodys")  # noqa: S108 - the stock tool writes there


# -- the stage ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """Servers, names and clients for the rows of one version."""

    shell: Shell
    namesrv: str
    acl_namesrv: str
    names: dict[str, str]

    def play(self, each: Row, lines: Sequence[str]) -> list[str]:
        """The output of each command, the content of its files, and the state of the servers."""
        outputs: list[str] = []
        for line in lines:
            filled = Template(line).substitute(self.names)
            namesrv = self.acl_namesrv if "$acl_broker" in line else self.namesrv
            outputs.append(
                self.shell.mqadmin(
                    namesrv, *shlex.split(filled), interrupt_after_ms=each.interrupt_after_ms
                )
            )
        folder = Path(self.names["folder"])
        outputs.append("".join((folder / name).read_text() for name in each.files))
        return [*outputs, each.then(self.names) if each.then is not None else ""]


def send_traced(shell: Shell, namesrv: str, topic: str) -> str:
    """The id of a message whose trace is stored.

    The tool stops its producer immediately and waits briefly for the trace to be sent, so on a busy
    machine it may need another message.
    """
    for _ in range(TRACED_TRIES):
        sent = shell.mqadmin(namesrv, "sendMessage", "-t", topic, "-p", "t", "-m", "true")
        message_id = sent.split()[-1]
        for _ in range(TRACED_LOOKS):
            shown = shell.mqadmin(namesrv, "queryMsgTraceById", "-i", message_id)
            if re.search(r"^Pub ", shown, re.MULTILINE):
                return message_id
            time.sleep(LOOK_S)
    raise AssertionError(f"no trace of {TRACED_TRIES} messages was stored")


def prepare(shell: Shell, cluster: Cluster, acl: Cluster, folder: Path) -> Stage:
    """Topics, groups, messages and clients of a version."""
    mark = shell.version[0]
    broker, namesrv = cluster.broker.address, cluster.namesrv.address
    topics = ("orders", "sent", "changed", "made", "doomed", "listed", "static", "ruled",
              "made_fifo", "shrunk")  # fmt: skip
    groups = ("readers", "idle", "makers", "cloned", "doomed_group", "made_group", "tools",
              "listed_group")  # fmt: skip
    names = {name: f"{name.replace('_', '-')}-{mark}" for name in (*topics, *groups)}
    for name in ("orders", "sent", "changed", "doomed"):
        create_topic(broker, names[name])
    for name in ("idle", "cloned", "doomed_group"):
        body = json.dumps({"groupName": names[name]}).encode()
        assert ask_server(broker, UPDATE_GROUP, body=body).code == SUCCESS
        # The tool finds a group by its retry topic, which a consumer would have created.
        create_topic(broker, f"%RETRY%{names[name]}")
    await_route(shell, namesrv, names["orders"])
    shell.start_producer(names["makers"], namesrv, group=names["makers"])
    before_ms = int(time.time() * 1000)
    sent = shell.send(names["makers"], names["orders"], BODIES, tags="the-tag", keys="the-key")
    again = shell.send(names["makers"], names["sent"], ["again"])
    fill(shell, acl, names["shrunk"])
    commit(broker, names["idle"], names["orders"], 0, 1)
    commit(broker, names["idle"], names["orders"], 1, 2)
    shell.start_consumer(names["readers"], namesrv, group=names["readers"], topic=names["orders"])
    traced_id = send_traced(shell, namesrv, names["sent"])
    wait_until(
        lambda: len(shell.consumed(names["readers"])) == len(BODIES),
        "consumption",
        timeout_s=SOON_S,
        seen=lambda: shell.consumed(names["readers"]),
    )
    topic_file, group_file = folder / "topics-in.json", folder / "groups-in.json"
    listed = {"topicName": names["listed"], "readQueueNums": 5, "writeQueueNums": 5}
    topic_file.write_text(json.dumps([{**listed, "attributes": {"+message.type": "FIFO"}}]))
    listed_group = {"groupName": names["listed_group"], "retryMaxTimes": 7}
    group_file.write_text(json.dumps([listed_group]))
    names |= {
        "namesrv": namesrv,
        "broker": broker,
        "acl_broker": acl.broker.address,
        "folder": str(folder),
        "topic_file": str(topic_file),
        "group_file": str(group_file),
        "version": shell.version.replace(".", "_"),
        "unique_id": sent[0]["msgId"],
        "offset_id": sent[0]["offsetMsgId"],
        "queue_id": str(sent[0]["queueId"]),
        "log_offset": str(int(sent[0]["offsetMsgId"][16:], 16)),
        "traced_id": traced_id,
        "again_id": again[0]["offsetMsgId"],
        "again_unique_id": again[0]["msgId"],
        "before_ms": str(before_ms),
        "reader_id": only_member(broker, names["readers"]),
        "acl_store": str(folder.parent / "acl-store"),
    }
    return Stage(shell, namesrv, acl.namesrv.address, names)


def await_route(shell: Shell, namesrv: str, topic: str) -> None:
    wait_until(
        lambda: '"writeQueueNums":2' in shell.mqadmin(namesrv, "topicRoute", "-t", topic),
        f"the route of {topic}",
        timeout_s=SOON_S,
    )


def fill(shell: Shell, cluster: Cluster, topic: str) -> None:
    """Messages in both queues of a topic, stored in log files before the last one."""
    name = f"filler-{topic}"
    shell.start_producer(name, cluster.namesrv.address, group=name)
    for each in (topic, f"last-{topic}"):
        create_topic(cluster.broker.address, each)
        await_route(shell, cluster.namesrv.address, each)
        shell.send(name, each, FILLING)
    shell.ask("stop_producer", name=name)


def only_member(broker: str, group: str) -> str:
    """The client id of a group's one consumer."""
    answer = ask_server(broker, GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
    (connection,) = json.loads(answer.body)["connectionSet"]
    return str(connection["clientId"])


def create_topic(broker: str, topic: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2",
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    assert ask_server(broker, UPDATE_AND_CREATE_TOPIC, fields).code == SUCCESS


def commit(broker: str, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id),
        "commitOffset": str(queue_offset),
    }  # fmt: skip
    assert ask_server(broker, UPDATE_CONSUMER_OFFSET, fields).code == SUCCESS


ACL_FILE = """globalWhiteRemoteAddresses:
  - 127.0.0.1
accounts:
  - accessKey: rocketmq2
    secretKey: 12345678
    admin: true
"""


@pytest.fixture(scope="module")
def stages(apache: None, shells: Callable[[str], Shell]) -> Iterator[Callable[[str], Stage]]:
    """The stage of a version, set up on first use."""
    prepared: dict[str, Stage | None] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqadmin-")))
        (folder / "plain_acl.yml").write_text(ACL_FILE)
        access = {
            "aclEnable": "true",
            "aclFile": folder / "plain_acl.yml",
            "aclFolder": folder / "acl",
            "storePathRootDir": folder / "acl-store",
            # Its log files are small and expire immediately, so that there are some to delete.
            "mappedFileSizeCommitLog": SMALL_LOG_FILE_BYTES,
            "fileReservedTime": 0,
        }
        cluster = stack.enter_context(our_cluster(traceTopicEnable="true"))
        acl = stack.enter_context(our_cluster(**access))

        def stage(version: str) -> Stage:
            if version not in prepared:
                # A failed set-up is not repeated for every row.
                prepared[version] = None
                own = folder / version
                own.mkdir()
                prepared[version] = prepare(shells(version), cluster, acl, own)
            found = prepared[version]
            if found is None:
                pytest.fail("the stage could not be set up, see the first failure")
            return found

        yield stage
        for each in prepared.values():
            for name in ("unique_id", "offset_id"):
                if each is not None:
                    (BODIES_OF_THE_TOOL / each.names[name]).unlink(missing_ok=True)


# -- the tests ------------------------------------------------------------------------------------

CASES = [
    pytest.param(
        version, each,
        id=f"{version}-{each.command}", marks=() if version == NEWEST else pytest.mark.full,
    )
    for version in TOOLS for each in TABLE if version in each.versions
]  # fmt: skip


@pytest.mark.parametrize(("version", "each"), CASES)
def test_a_sub_command_succeeds(stages: Callable[[str], Stage], version: str, each: Row) -> None:
    stage = stages(version)
    names = {name: re.escape(value) for name, value in stage.names.items()}
    wanted = [Template(pattern).substitute(names) for pattern in each.holds]
    outputs = stage.play(each, each.lines)

    def missing() -> list[str]:
        return [pattern for pattern in wanted if not re.search(pattern, "".join(outputs))]

    deadline_s = time.monotonic() + SOON_S
    while missing() and time.monotonic() < deadline_s:
        time.sleep(LOOK_S)
        again = each.lines if each.whole_again else each.lines[-1:]
        outputs[len(each.lines) - len(again) :] = stage.play(each, again)
    assert not missing(), f"{missing()} not in:\n{''.join(outputs)}"


@pytest.mark.parametrize("version", EACH_TOOL)
def test_every_sub_command_has_a_row(shells: Callable[[str], Shell], version: str) -> None:
    listed: str = shells(version).ask("admin", args=[])
    commands = set(re.findall(r"(?m)^ {3}(\w+) +\S", listed))
    assert len(commands) == COMMAND_COUNTS[version]
    played = {each.command for each in TABLE if version in each.versions}
    spared = set(ASKS_NO_SERVER) if version in V5 else set[str]()
    assert commands - played - spared == set()
    assert (played | spared) - commands == set(), "rows of commands that there are not"


def test_accounts_are_shown_by_the_last_release_with_that_command(
    stages: Callable[[str], Stage], shells: Callable[[str], Shell]
) -> None:
    stage = stages(V4[0])
    broker = stage.names["acl_broker"]
    shown = shells(VERSIONS[0]).mqadmin(stage.acl_namesrv, "getAclConfig", "-b", broker)
    assert re.search("accessKey +: +rocketmq2", shown)
    assert "globalWhiteRemoteAddresses" in shown


@pytest.mark.parametrize("version", EACH_TOOL)
def test_stock_tools_work_with_inconsistent_subscriptions(
    stages: Callable[[str], Stage], version: str
) -> None:
    stage = stages(version)
    shell, names = stage.shell, stage.names
    group = f"divided-{version[0]}"
    for tags in ("a", "b"):
        shell.start_consumer(
            f"{group}-{tags}", stage.namesrv, group=group, topic=names["orders"], tags=tags
        )
    answer = wait_until(
        lambda: told_differences(names["broker"], group),
        "differences between the members",
        timeout_s=SOON_S,
    )
    assert {answer[0]["subscribes"], answer[0]["otherSubscribes"]} == {"by TAG 'a'", "by TAG 'b'"}
    output = shell.mqadmin(stage.namesrv, "consumerConnection", "-g", group)
    for tags in ("a", "b"):
        assert f"@{group}-{tags}" in output
        shell.ask("stop_consumer", name=f"{group}-{tags}")
    assert "ConsumeType: CONSUME_PASSIVELY" in output


def told_differences(broker: str, group: str) -> list[dict[str, str]] | None:
    answer = ask_server(broker, GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group})
    found = re.search(rb'"subscriptionDifferences":(\[.*?\])', answer.body)
    clients: list[dict[str, str]] | None = json.loads(found[1]) if found else None
    return clients
