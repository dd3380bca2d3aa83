"""Every sub command of the stock mqadmin, run from the stock jars against our servers.

The table has one row for each sub command: the lines that are typed, and what the output must hold.
`test_no_sub_command_is_left_out` compares it with what the jars themselves list. A version has one
JVM, in which its producer and its consumer live, too; a line takes some 50 ms.
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
from typing import TypedDict, Unpack

import pytest

from tests.apache.asking import SUCCESS, ask_server
from tests.apache.kit import VERSIONS, Shell, wait_until
from tests.apache.test_broker_compat import Cluster, our_cluster

pytestmark = pytest.mark.apache

UPDATE_CONSUMER_OFFSET, UPDATE_AND_CREATE_TOPIC, UPDATE_GROUP = 15, 17, 200
GET_CONSUMER_CONNECTION_LIST = 203
SOON_S = 90
LOOK_S = 0.3
TRACED_TRIES, TRACED_LOOKS = 5, 20
BODIES = ("one", "two", "three", "four")
BODIES_OF_THE_TOOL = Path("/tmp/rocketmq/msgbodys")  # noqa: S108 - the stock tool writes there


@dataclass(frozen=True, slots=True)
class Row:
    """Lines of one sub command, and patterns that their output must hold, in any order.

    Both are templates: `$orders` and the like stand for names of the stage. What a line shows may
    come about a little later than the answer to the line before, so the last one is typed again
    until all patterns are there.
    """

    lines: tuple[str, ...]
    holds: tuple[str, ...]
    versions: tuple[str, ...] = VERSIONS
    interrupt_after_ms: int = 0
    """For a command that goes on forever."""
    files: tuple[str, ...] = ()
    """Written by the command; their content counts as output."""
    whole_again: bool = False
    """All lines are typed again, not only the last."""

    @property
    def command(self) -> str:
        return self.lines[0].split()[0]


class Options(TypedDict, total=False):
    """What else a row may have."""

    versions: tuple[str, ...]
    interrupt_after_ms: int
    files: tuple[str, ...]
    whole_again: bool


def row(*lines: str, holds: tuple[str, ...], **options: Unpack[Options]) -> Row:
    return Row(lines, holds, **options)


V4, V5 = VERSIONS[:1], VERSIONS[1:]

TOPICS = (
    row("updateTopic -c DefaultCluster -t $made -r 3 -w 3", "topicRoute -t $made",
        holds=(r"create topic to $broker success", r"readQueueNums=3, writeQueueNums=3, perm=RW-",
               r'"writeQueueNums":3')),
    row("updateTopicPerm -b $broker -t $changed -p 4", "topicRoute -t $changed",
        holds=(r"update topic perm from 6 to 4 in $broker success", r'"perm":4')),
    row("updateOrderConf -m put -t $changed -v broker-a:4", "updateOrderConf -m get -t $changed",
        "updateOrderConf -m delete -t $changed",
        holds=(r"update orderConf success. topic=\[$changed\], orderConf=\[broker-a:4\]",
               r"get orderConf success. topic=\[$changed\], orderConf=\[broker-a:4\]",
               r"delete orderConf success. topic=\[$changed\]")),
    row("topicRoute -t $orders",
        holds=(r'"brokerName":"broker-a"', r'0:"$broker"', r'"cluster":"DefaultCluster"',
               r'"readQueueNums":2')),
    row("topicStatus -t $orders",
        holds=(r"broker-a +0 +0 +2 +20\d\d-", r"broker-a +1 +0 +2 +20\d\d-")),
    row("topicClusterList -t $orders", holds=(r"DefaultCluster",)),
    row("topicList", "topicList -c",
        holds=(r"(?m)^$orders\s", r"DefaultCluster +$orders +(?:\w|-)+")),
    row("allocateMQ -t $orders -i 10.0.0.1,10.0.0.2",
        holds=(r'"10.0.0.1":\[\{"brokerName":"broker-a","queueId":[01],"topic":"$orders"\}\]',
               r'"10.0.0.2":\[\{"brokerName":"broker-a","queueId":[01],"topic":"$orders"\}\]')),
    row("statsAll -t $orders",
        holds=(r"$orders +$readers +\d+ +0\.\d\d +0\.\d\d +4 +4\b",)),
    row("deleteTopic -c DefaultCluster -t $doomed", "topicList -c",
        holds=(r"delete topic \[$doomed\] from cluster \[DefaultCluster\] success",
               r"delete topic \[$doomed\] from NameServer success",
               r"\A(?!(?s:.*)DefaultCluster +$doomed )")),
)  # fmt: skip

BROKERS = (
    row("brokerStatus -b $broker",
        holds=(r"putTps +: [\d.]+ [\d.]+ [\d.]+\n", r"getTransfer\w+Tps +: [\d.]+ [\d.]+ [\d.]+\n",
               r"msgPutTotalTodayNow +: [1-9]\d*\n", r"msgPutTotalYesterdayMorning +: 0\n",
               r"putMessageDistributeTime *: \[<=0ms\]:\d+ \[0~10ms\]:\d+ ",
               r"commitLogDirCapacity +: Total : [\d.]+ GiB, Free : ")),
    row("brokerConsumeStats -b $broker",
        holds=(r"$orders +$idle +broker-a +0 +2 +1 +1 +20\d\d-",
               r"$orders +$idle +broker-a +1 +2 +2 +0 +20\d\d-", r"Diff Total: \d+")),
    row("getBrokerConfig -b $broker",
        holds=(r"brokerName +=  broker-a\n", r"brokerClusterName +=  DefaultCluster\n")),
    row("updateBrokerConfig -b $broker -k pullBatchMaxMessageCount -v 155",
        "getBrokerConfig -b $broker",
        holds=(r"update broker config success, $broker", r"pullBatchMaxMessageCount +=  155\n")),
    row("cleanExpiredCQ -b $broker", holds=(r"\Asuccess",)),
    row("cleanUnusedTopic -b $broker", "topicStatus -t $orders",
        holds=(r"\Asuccess", r"broker-a +0 +0 +2 ")),
    row("deleteExpiredCommitLog -b $broker", holds=(r"\Asuccess",)),
    row("sendMsgStatus -b broker-a -s 64 -c 2",
        holds=(r"(?s)sendStatus=SEND_OK.*topic=broker-a.*sendStatus=SEND_OK.*topic=broker-a",)),
    row("clusterList", "clusterList -m",
        holds=(r"DefaultCluster +broker-a +0 +$broker +V4_9_\d +[\d.]+\(0,\d+ms",
               r"(?s)#InTotalYest.*DefaultCluster +broker-a +0 +0 +[1-9]\d* +[1-9]\d*")),
    row("clusterRT -a 2 -s 16 -i 60", interrupt_after_ms=1200,
        holds=(r"DefaultCluster +broker-a +[\d.]+ +2 +0 ",)),
)  # fmt: skip

MESSAGES = (
    row("queryMsgById -i $offset_id", versions=V4,
        holds=(r"OffsetID: +$offset_id", r"Topic: +$orders", r"UNIQ_KEY=$unique_id",
               r"MessageTrack \[consumerGroup=$readers, trackType=")),
    row("queryMsgById -i $offset_id -t $orders", versions=V5,
        holds=(r"OffsetID: +$offset_id", r"Topic: +$orders", r"UNIQ_KEY=$unique_id")),
    row("queryMsgByKey -t $orders -k the-key", holds=(r"$unique_id +\d +\d",)),
    row("queryMsgByUniqueKey -t $orders -i $unique_id",
        holds=(r"Keys: +\[the-key\]", r"Queue ID: +$queue_id\n", r"Queue Offset: +0\n",
               r"MessageTrack \[consumerGroup=$readers, trackType=")),
    row("queryMsgByOffset -t $orders -b broker-a -i $queue_id -o 0",
        holds=(r"OffsetID: +$offset_id", r"Tags: +\[the-tag\]")),
    row("printMsg -t $orders -d true",
        holds=tuple(rf"topic='$orders'.* BODY: {body}" for body in BODIES)),
    row("printMsgByQueue -t $orders -a broker-a -i $queue_id -p true -d true -f true",
        holds=(r"BODY: one\n", r"Tag: the-tag +Count: 2")),
    row("sendMessage -t $sent -p body-of-$sent -k a -c b -b broker-a -i 1", "printMsg -t $sent",
        holds=(r"broker-a +1 +SEND_OK +[0-9A-F]{32}", r"BODY: body-of-$sent\n")),
    row("consumeMessage -t $orders -g $tools -b broker-a -i $queue_id -o 0 -c 1",
        holds=(r"Consume ok", r"BODY: one\n")),
    row("checkMsgSendRT -t $sent -a 3 -s 16",
        holds=(r"(?s)(broker-a +[01] +true +\d+\n){3}", r"Avg RT: [\d.]+")),
    row("queryCq -t $orders -q $queue_id -i 0 -c 2 -b $broker -g $readers",
        holds=(r'"subString":"\*"', r"max: 2, min: 0\n", r"idx: 1\n",
               r"physicOffset=$log_offset, physicSize=\d+, tagsCode=-?\d+, .*eval=true")),
    row("queryMsgTraceById -i $traced_id",
        holds=(r"Pub +\d+ +\S+ +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +\d+ms +success",)),
)  # fmt: skip

CLIENTS = (
    row("producerConnection -g $makers -t $orders",
        holds=(r"0001 +\S+@$makers\S* +127.0.0.1:\d+ +JAVA +V$version",)),
    row("consumerConnection -g $readers",
        holds=(r"\S+@$readers\S* +127.0.0.1:\d+ +JAVA +V$version", r"$orders +\*\n",
               r"MessageModel: CLUSTERING", r"ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET")),
    row("producer -b $broker",
        holds=(r"producer group \($makers\) instance : clientId=\S+@$makers\S*,"
               r"remoteIP=/?127.0.0.1:\d+, language=JAVA, version=\d+",)),
    row("consumerProgress -g $idle", "consumerProgress",
        holds=(r"$orders +broker-a +0 +2 +1 (?:.* )?1 +(?:0 +)?20\d\d-",
               r"$orders +broker-a +1 +2 +2 (?:.* )?0 +(?:0 +)?20\d\d-",
               r"Consume TPS: [\d.]+\n", r"Diff Total: 1\n",
               r"$readers +1 +V$version +PUSH +CLUSTERING +\d+ +\d+")),
    row("getConsumerConfig -g $idle",
        holds=(r"DefaultCluster:broker-a", r"groupName +=  $idle\n", r"retryMaxTimes +=  16\n")),
    row("updateSubGroup -b $broker -g $made_group -r 5 -s false",
        "getConsumerConfig -g $made_group",
        holds=(r"create subscription group to $broker success", r"retryMaxTimes +=  5\n",
               r"consumeEnable +=  false\n")),
    row("cloneGroupOffset -s $idle -d $cloned -t $orders -o true", "consumerProgress -g $cloned",
        holds=(r"clone group offset success. srcGroup\[$idle\], destGroup=\[$cloned\], "
               r"topic\[$orders\]", r"$orders +broker-a +1 +2 +2 ")),
    row("deleteSubGroup -b $broker -g $doomed_group -r true",
        "exportMetadata -b $broker -g -f $folder", files=("subscriptionGroup.json",),
        holds=(r"delete subscription group \[$doomed_group\] from broker \[$broker\] success",
               r'(?s)\A(?!.*"groupName":"$doomed_group")(?=.*"groupName":"$idle")')),
)  # fmt: skip

NAMESERVERS = (
    row("updateKvConfig -s $orders -k k -v v",
        holds=(r"create or update kv config to namespace success",)),
    row("deleteKvConfig -s $orders -k k", holds=(r"delete kv config from namespace success",)),
    # Should the broker register in the meantime, it writes again.
    row("wipeWritePerm -b broker-a", "topicRoute -t $orders", "addWritePerm -b broker-a",
        whole_again=True,
        holds=(r"wipe write perm of broker\[broker-a\] in name server\[$namesrv\] OK, [1-9]",
               r'"perm":4')),
    row("addWritePerm -b broker-a", "topicRoute -t $orders",
        holds=(r"add write perm of broker\[broker-a\] in name server\[$namesrv\] OK, [1-9]",
               r'"perm":6')),
    row("getNamesrvConfig", holds=(r"=+$namesrv=+", r"listenPort +=  \d+")),
    row("updateNamesrvConfig -k waitSecondsForService -v 44", "getNamesrvConfig",
        holds=(r"update name server config success!\[$namesrv\]", r"waitSecondsForService +=  44")),
)  # fmt: skip

EXPORTS = (
    row("exportMetadata -c DefaultCluster -f $folder", files=("metadata.json",),
        holds=(r"export $folder/metadata.json success", r'"topicName":"$orders"',
               r'"groupName":"$idle"')),
    row("exportConfigs -c DefaultCluster -f $folder", files=("configs.json",),
        holds=(r"export $folder/configs.json success", r'"brokerName":"broker-a"',
               r'"filterServerNums":"0"', r'"masterBrokerSize":1')),
    row("exportMetrics -c DefaultCluster -f $folder", files=("metrics.json",),
        holds=(r"export $folder/metrics.json success", r'"rocketmqVersion":"V\d_\d_\d"',
               r'"totalNormalInTps":[\d.]+', r'"cpuNum":"\d+"')),
)  # fmt: skip

ONLINE = (
    row("consumerStatus -g $readers",
        holds=(r"1 +\S+@$readers\S* +V$version", r"Same subscription in the same group")),
    row("resetOffsetByTime -g $readers -t $orders -s now -f true",
        holds=(r"consumer offset by specified,? group\[$readers\], ?topic\[$orders\]",
               r"broker-a +0 +2 ", r"broker-a +1 +2 ")),
    row("skipAccumulatedMessage -g $readers -t $orders -f true",
        holds=(r"broker-a +0 +2 ", r"broker-a +1 +2 ")),
    row("startMonitoring", "consumerConnection -g __MONITOR_CONSUMER", whole_again=True,
        holds=(r"OFFSET_MOVED_EVENT +\*",)),
)  # fmt: skip

FIVE = (
    row("updateTopicList -b $broker -f $topic_file", "topicRoute -t $listed", versions=V5,
        holds=(r"submit batch of topic config to $broker success", r'"writeQueueNums":5')),
    row("updateSubGroupList -b $broker -f $group_file", "getConsumerConfig -g $listed_group",
        versions=V5,
        holds=(r"submit batch of group config to $broker success", r"retryMaxTimes +=  7\n")),
    row("haStatus -b $broker", versions=V5,
        holds=(r"#MasterAddr\t$broker", r"#MasterCommitLogMaxOffset\t[1-9]\d*", r"#SlaveNum\t0")),
    row("resetMasterFlushOffset -b $broker -o 0", versions=V5,
        holds=(r"reset master flush offset to 0 success",)),
    row("setConsumeMode -b $broker -t $orders -g $idle -m POP -q 0", versions=V5,
        holds=(r"set consume mode to $broker success",)),
)  # fmt: skip

ACCESS = (
    row("updateAclConfig -b $acl_broker -a somebody -s 87654321 -t topicA=PUB", versions=V4,
        holds=(r"create or update plain access config to $acl_broker success",)),
    row("updateGlobalWhiteAddr -b $acl_broker -g 10.1.1.1,127.0.0.1", versions=V4,
        holds=(r"update global white remote addresses to $acl_broker success",)),
    row("clusterAclConfigVersion -b $acl_broker", versions=V4,
        holds=(r"DefaultCluster +broker-a +$acl_broker +\S+plain_acl.yml +\d+ +20\d\d-",
               r"get broker's plain access config version success")),
    row("getAclConfig -b $acl_broker", versions=V4,
        holds=(r'accessKey +: +rocketmq2', r"globalWhiteRemoteAddresses")),
    row("deleteAclConfig -b $acl_broker -a somebody", versions=V4,
        holds=(r"delete plain access config account from $acl_broker success",)),
)  # fmt: skip


def refused(line: str, because: str) -> Row:
    return row(line, versions=V5, holds=(rf"not supported because {because}",))


REFUSED = (
    refused("setCommitLogReadAheadMode -b $broker -m 0", "reading ahead"),
    refused("getColdDataFlowCtrInfo -b $broker", "cold reads"),
    refused("updateColdDataFlowCtrGroupConfig -b $broker -g $idle -v 100", "cold reads"),
    refused("removeColdDataFlowCtrGroupConfig -b $broker -g $idle", "cold reads"),
    refused("getBrokerEpoch -b broker-a", "there is no RocketMQ controller"),
    refused("getControllerConfig -a $broker", "there is no RocketMQ controller"),
    refused("updateControllerConfig -a $broker -k k -v v", "there is no RocketMQ controller"),
    refused("getControllerMetaData -a $broker", "there is no RocketMQ controller"),
    refused("getSyncStateSet -a $broker -b broker-a", "there is no RocketMQ controller"),
    refused("electMaster -a $broker -b 0 -bn broker-a -c C", "there is no RocketMQ controller"),
    refused("cleanBrokerMetadata -a $broker -bn broker-a -c C", "there is no RocketMQ controller"),
    refused("switchTimerEngine -b $broker -e R", "there is one way to keep timed messages"),
    refused("getBrokerLiteInfo -b $broker", "there are no lite topics"),
    # These keep the reason to themselves.
    row("getParentTopicInfo -p $orders", versions=V5, holds=(r"broker-a\]? +error",)),
    row("getLiteTopicInfo -p $orders -l l", versions=V5, holds=(r"broker-a\]? +error",)),
    row("getLiteClientInfo -p $orders -g $idle -c c", versions=V5, holds=(r"broker-a\]? +error",)),
    row("getLiteGroupInfo -p $orders -g $idle", versions=V5, holds=(r"broker-a\]? +error",)),
    row("triggerLiteDispatch -p $orders -g $idle", versions=V5, holds=(r"broker-a\]? +error",)),
    refused("addBroker -c $broker -b /none", "there is no broker container"),
    refused("removeBroker -c $broker -b C:b:0", "there is no broker container"),
    refused("updateStaticTopic -b broker-a -t $static -qn 2", "there are no static topics"),
    refused("rocksDBConfigToJson -c DefaultCluster -t topics", "there is no RocksDB"),
    refused("checkRocksdbCqWriteProgress -c DefaultCluster -t $orders", "there is no RocksDB"),
    refused("exportPopRecord -b $broker", "there is no RocksDB"),
    refused("createUser -b $broker -u u -p p", "users and policies of 5.x"),
    refused("updateUser -b $broker -u u -p p", "users and policies of 5.x"),
    refused("deleteUser -b $broker -u u", "users and policies of 5.x"),
    refused("getUser -b $broker -u u", "users and policies of 5.x"),
    refused("listUser -b $broker", "users and policies of 5.x"),
    refused("copyUser -f $broker -t $broker", "users and policies of 5.x"),
    refused("createAcl -b $broker -s User:u -r Topic:t -a Pub -d Allow -i 10.0.0.1", "users and"),
    refused("updateAcl -b $broker -s User:u -r Topic:t -a Pub -d Allow -i 10.0.0.1", "users and"),
    refused("deleteAcl -b $broker -s User:u", "users and policies of 5.x"),
    refused("getAcl -b $broker -s User:u", "users and policies of 5.x"),
    refused("listAcl -b $broker", "users and policies of 5.x"),
    refused("copyAcl -f $broker -t $broker", "users and policies of 5.x"),
)
"""What makes no sense here says so."""

ASKS_NO_SERVER = {
    "remappingStaticTopic": "moves static topics, of which there are none",
    "exportMetadataInRocksDB": "reads the files of a RocksDB on the same machine",
    "dumpCompactionLog": "reads a file on the same machine",
}
"""Sub commands of 5.x that send nothing to the broker they could be run against."""

TABLE = (
    *TOPICS, *BROKERS, *MESSAGES, *CLIENTS, *NAMESERVERS, *EXPORTS, *FIVE, *REFUSED, *ACCESS,
    *ONLINE,
)  # fmt: skip


# -- the stage ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stage:
    """What the rows of one version play on."""

    shell: Shell
    namesrv: str
    acl_namesrv: str
    names: dict[str, str]

    def play(self, each: Row, lines: Sequence[str]) -> list[str]:
        """What each line printed, and last what is in the files."""
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
        return [*outputs, "".join((folder / name).read_text() for name in each.files)]


def send_traced(shell: Shell, namesrv: str, topic: str) -> str:
    """The id of a message whose trace is stored.

    The tool stops its producer at once and waits only so long for the trace to leave, so on a busy
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
    topics = ("orders", "sent", "changed", "made", "doomed", "listed", "static")
    groups = ("readers", "idle", "makers", "cloned", "doomed_group", "made_group", "tools",
              "listed_group")  # fmt: skip
    names = {name: f"{name.replace('_', '-')}-{mark}" for name in (*topics, *groups)}
    for name in ("orders", "sent", "changed", "doomed"):
        create_topic(broker, names[name])
    for name in ("idle", "cloned", "doomed_group"):
        body = json.dumps({"groupName": names[name]}).encode()
        assert ask_server(broker, UPDATE_GROUP, body=body).code == SUCCESS
        # The tool looks for a group where its retries are; a consumer would have made this topic.
        create_topic(broker, f"%RETRY%{names[name]}")
    wait_until(
        lambda: '"writeQueueNums":2' in shell.mqadmin(namesrv, "topicRoute", "-t", names["orders"]),
        "the route of the topic",
        timeout_s=SOON_S,
    )
    shell.start_producer(names["makers"], namesrv, group=names["makers"])
    sent = shell.send(names["makers"], names["orders"], BODIES, tags="the-tag", keys="the-key")
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
    }
    return Stage(shell, namesrv, acl.namesrv.address, names)


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
    """The stage of a version, set when it is first asked for."""
    prepared: dict[str, Stage | None] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mqadmin-")))
        (folder / "plain_acl.yml").write_text(ACL_FILE)
        access = {
            "aclEnable": "true",
            "aclFile": folder / "plain_acl.yml",
            "aclFolder": folder / "acl",
        }
        cluster = stack.enter_context(our_cluster(traceTopicEnable="true"))
        acl = stack.enter_context(our_cluster(**access))

        def stage(version: str) -> Stage:
            if version not in prepared:
                # One that could not be set is not tried again for every row.
                prepared[version] = None
                own = folder / version
                own.mkdir()
                prepared[version] = prepare(shells(version), cluster, acl, own)
            found = prepared[version]
            if found is None:
                pytest.fail("the stage could not be set, as the first failure tells")
            return found

        yield stage
        for each in prepared.values():
            for name in ("unique_id", "offset_id"):
                if each is not None:
                    (BODIES_OF_THE_TOOL / each.names[name]).unlink(missing_ok=True)


# -- the tests ------------------------------------------------------------------------------------

CASES = [(version, each) for version in VERSIONS for each in TABLE if version in each.versions]


@pytest.mark.parametrize(
    ("version", "each"), CASES, ids=[f"{version}-{each.command}" for version, each in CASES]
)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_no_sub_command_is_left_out(shells: Callable[[str], Shell], version: str) -> None:
    listed: str = shells(version).ask("admin", args=[])
    commands = set(re.findall(r"(?m)^ {3}(\w+) +\S", listed))
    assert len(commands) >= 56
    played = {each.command for each in TABLE if version in each.versions}
    spared = set(ASKS_NO_SERVER) if version in V5 else set[str]()
    assert commands - played - spared == set()
    assert (played | spared) - commands == set(), "rows of commands that there are not"


@pytest.mark.parametrize("version", VERSIONS)
def test_members_that_subscribe_differently_do_not_disturb_stock_tools(
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
    told: list[dict[str, str]] | None = json.loads(found[1]) if found else None
    return told
