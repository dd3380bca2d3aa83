"""The rows of test_mqadmin: command lines of each sub command, and the expected output."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from tests.support.apache.requests import ask_server
from tests.support.apache.servers import TOOLS_ONLY, VERSIONS

TOOLS = (TOOLS_ONLY, VERSIONS[-1])
"""The releases whose tools are run: the last of 4.9, and 5.x."""

GET_BROKER_CLUSTER_ACL_CONFIG, GET_KV_CONFIG, QUERY_ASSIGNMENT = 54, 101, 400
GET_PARENT_TOPIC_INFO, GET_LITE_TOPIC_INFO, GET_LITE_CLIENT_INFO = 200075, 200076, 200077
GET_LITE_GROUP_INFO, TRIGGER_LITE_DISPATCH = 200078, 200079
BODIES = ("one", "two", "three", "four")


@dataclass(frozen=True, slots=True)
class Row:
    """Command lines of one sub command, and patterns that their output must contain, in any order.

    Both are templates: `$orders` and the like stand for names of the stage. Effects of a command
    may be visible a little later than its response, so the last one is repeated until all
    patterns match.
    """

    lines: tuple[str, ...]
    holds: tuple[str, ...]
    versions: tuple[str, ...] = TOOLS
    interrupt_after_ms: int = 0
    """For a command that does not end."""
    files: tuple[str, ...] = ()
    """Written by the command; their content counts as output."""
    whole_again: bool = False
    """Repeat all lines, not only the last."""
    of: str = ""
    """The sub command, if the first line only prepares for it."""
    then: Callable[[Mapping[str, str]], str] | None = None
    """Queries the servers directly for the effect; the response counts as output."""

    @property
    def command(self) -> str:
        return self.of or self.lines[0].split()[0]


class Options(TypedDict, total=False):
    """Optional fields of a row."""

    versions: tuple[str, ...]
    interrupt_after_ms: int
    files: tuple[str, ...]
    whole_again: bool
    of: str
    then: Callable[[Mapping[str, str]], str]


def row(*lines: str, holds: tuple[str, ...], **options: Unpack[Options]) -> Row:
    return Row(lines, holds, **options)


V4, V5 = TOOLS[:1], TOOLS[1:]


# -- effects on the servers ------------------------------------------------------------------------


def accounts(names: Mapping[str, str]) -> str:
    """Accounts and white list of the broker with access control."""
    return ask_server(names["acl_broker"], GET_BROKER_CLUSTER_ACL_CONFIG).body.decode()


def kv(names: Mapping[str, str]) -> str:
    """Code and value of the key that the rows put and delete."""
    fields = {"namespace": names["orders"], "key": "k"}
    answer = ask_server(names["namesrv"], GET_KV_CONFIG, fields)
    return f"code={answer.code} value={answer.fields.get('value')}"


def assignment(names: Mapping[str, str]) -> str:
    """The reader's queue assignment, and whether to pull or to pop."""
    wanted = {
        "topic": names["orders"], "consumerGroup": names["readers"],
        "clientId": names["reader_id"], "strategyName": "AVG", "messageModel": "CLUSTERING",
    }  # fmt: skip
    body = json.dumps(wanted).encode()
    return ask_server(names["broker"], QUERY_ASSIGNMENT, body=body).body.decode()


def queue_folders(names: Mapping[str, str]) -> str:
    """The queue directories of the topic that shrinks."""
    folder = Path(names["acl_store"]) / "consumequeue" / names["shrunk"]
    return "queues=" + ",".join(sorted(each.name for each in folder.iterdir()))


def refusal_of(request_code: int) -> Callable[[Mapping[str, str]], str]:
    """The remark of the response, which the tool does not print."""
    return lambda names: ask_server(names["broker"], request_code).remark or ""


TOPICS = (
    row("updateTopic -c DefaultCluster -t $made -r 3 -w 3", "topicRoute -t $made",
        holds=(r"create topic to $broker success", r"readQueueNums=3, writeQueueNums=3, perm=RW-",
               r'"writeQueueNums":3')),
    row("updateTopic -c DefaultCluster -t $ruled -r 1 -w 1 -p 4 -o true", "topicRoute -t $ruled",
        "updateOrderConf -m get -t $ruled",
        holds=(r"set cluster orderConf. isOrder=true, orderConf=\[broker-a:1\]", r'"perm":4',
               r"get orderConf success. topic=\[$ruled\], orderConf=\[broker-a:1\]")),
    row("updateTopic -b $broker -t $made_fifo -a +message.type=FIFO",
        "exportMetadata -b $broker -t -f $folder", files=("topic.json",), versions=V5,
        holds=(r'(?s)"attributes":\{\s*"message.type":"FIFO"\s*\}(?:(?!"attributes").)*'
               r'"topicName":"$made_fifo"',)),
    row("updateTopic -b $broker -t made-mixed -a +message.type=MIXED", versions=V5,
        holds=(r"CODE: 29  DESC: MIXED message type is not supported",)),
    row("updateTopic -b $broker -t batched -a +queue.type=BatchCQ", versions=V5,
        holds=(r"DESC: topic batched is refused: attribute queue.type=BatchCQ has no effect",)),
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
    row("topicClusterList -t $orders", holds=(r"\ADefaultCluster\s*\Z",)),
    row("topicList", "topicList -c",
        holds=(r"(?m)^$orders\s", r"DefaultCluster +$orders +(?:\w|-)+")),
    row("allocateMQ -t $orders -i 10.0.0.1,10.0.0.2",
        holds=(r'"10.0.0.1":\[\{"brokerName":"broker-a","queueId":[01],"topic":"$orders"\}\]',
               r'"10.0.0.2":\[\{"brokerName":"broker-a","queueId":[01],"topic":"$orders"\}\]')),
    row("statsAll -t $orders",
        holds=(r"$orders +$readers +\d+ +0\.\d\d +0\.\d\d +4 +4\b",)),
    row("statsAll -a",
        holds=(r"$orders +$readers +\d+ ", r"\A(?!(?s:.*)^$changed )")),
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
    row("brokerConsumeStats -b $broker -l 1 -t 5000",
        holds=(r"$orders +$idle +broker-a +0 +2 +1 +1 +20\d\d-",
               r"\A(?!(?s:.*)$orders +$idle +broker-a +1 )")),
    row("brokerConsumeStats -b $broker -o true",
        holds=(r"Diff Total: 0\b", r"\A(?!(?s:.*)$orders )")),
    row("getBrokerConfig -b $broker",
        holds=(r"brokerName +=  broker-a\n", r"brokerClusterName +=  DefaultCluster\n")),
    row("updateBrokerConfig -b $broker -k pullBatchMaxMessageCount -v 155",
        "getBrokerConfig -b $broker",
        holds=(r"update broker config success, $broker", r"pullBatchMaxMessageCount +=  155\n")),
    row("brokerStatus -b $acl_broker", "deleteExpiredCommitLog -b $acl_broker",
        "brokerStatus -b $acl_broker", of="deleteExpiredCommitLog",
        holds=(r"(?m)^success", r"commitLogMinOffset +: [1-9]")),
    row("deleteExpiredCommitLog -b $acl_broker",
        "updateTopic -b $acl_broker -t $shrunk -r 1 -w 1", "cleanExpiredCQ -b $acl_broker",
        of="cleanExpiredCQ", then=queue_folders,
        holds=(r"(?m)^success", r"queues=0\Z")),
    row("cleanUnusedTopic -b $broker", "topicStatus -t $orders",
        holds=(r"\Asuccess", r"broker-a +0 +0 +2 ")),
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
    row("queryMsgById -i $offset_id -g $readers -d $reader_id", versions=V4,
        holds=(r"consumeResult=CR_SUCCESS",)),
    row("queryMsgById -i $offset_id -t $orders -g $readers -d $reader_id", versions=V5,
        holds=(r"consumeResult=CR_SUCCESS",)),
    row("queryMsgById -i $again_id -s true", versions=V4,
        holds=(r"originalMsgId=$again_id", r"sendStatus=SEND_OK, msgId=$again_unique_id")),
    row("queryMsgById -i $again_id -t $sent -s true", versions=V5,
        holds=(r"originalMsgId=$again_id", r"sendStatus=SEND_OK, msgId=$again_unique_id")),
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
    row("updateKvConfig -s $orders -k k -v v", then=kv,
        holds=(r"create or update kv config to namespace success", r"code=0 value=v")),
    row("deleteKvConfig -s $orders -k k", then=kv,
        holds=(r"delete kv config from namespace success", r"code=22 value=None")),
    # If the broker registers in the meantime, the route has write permission again.
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
    row("consumerStatus -g $readers -i $reader_id -s",
        holds=(r"#Consumer Subscription#", r"#Consumer jstack#", r"ConsumeMessageThread_")),
    row("resetOffsetByTime -g $readers -t $orders -s $before_ms",
        holds=(r"broker-a +0 +0 ", r"broker-a +1 +0 ")),
    row("resetOffsetByTime -g $readers -t $orders -s now -f true",
        holds=(r"consumer offset by specified,? group\[$readers\], ?topic\[$orders\]",
               r"broker-a +0 +2 ", r"broker-a +1 +2 ")),
    row("skipAccumulatedMessage -g $readers -t $orders -f true",
        holds=(r"broker-a +0 +2 ", r"broker-a +1 +2 ")),
    row("startMonitoring", "consumerConnection -g __MONITOR_CONSUMER", whole_again=True,
        holds=(r"OFFSET_MOVED_EVENT +\*",)),
)  # fmt: skip

FIVE = (
    row("setCommitLogReadAheadMode -b $broker -m 1", "setCommitLogReadAheadMode -b $broker -m 0",
        versions=V5, holds=(r"(?s)readahead mode success, mode: 1.*success, mode: 0",)),
    row("getColdDataFlowCtrInfo -b $broker", of="getColdDataFlowCtrInfo",
        versions=V5, holds=(r'"runtimeTable": ?\{\s*\}', r'"configTable": ?\{\s*\}')),
    row("updateColdDataFlowCtrGroupConfig -b $broker -g $idle -v 100",
        "getColdDataFlowCtrInfo -b $broker", of="updateColdDataFlowCtrGroupConfig",
        versions=V5,
        holds=(r"updateColdDataFlowCtrGroupConfig success, $broker", r'"$idle": ?100')),
    row("removeColdDataFlowCtrGroupConfig -b $broker -g $idle", "getColdDataFlowCtrInfo -b $broker",
        of="removeColdDataFlowCtrGroupConfig", versions=V5,
        holds=(r"remove broker cold read threshold success, $broker", r'"configTable": ?\{\s*\}')),
    row("exportPopRecord -b $broker", versions=V5,
        holds=(r"Export broker records, brokerName=broker-a, brokerAddr=$broker, dryRun=false",)),
    row("updateTopicList -b $broker -f $topic_file", "topicRoute -t $listed", versions=V5,
        holds=(r"submit batch of topic config to $broker success", r'"writeQueueNums":5')),
    row("updateSubGroupList -b $broker -f $group_file", "getConsumerConfig -g $listed_group",
        versions=V5,
        holds=(r"submit batch of group config to $broker success", r"retryMaxTimes +=  7\n")),
    row("haStatus -b $broker", versions=V5,
        holds=(r"#MasterAddr\t$broker", r"#MasterCommitLogMaxOffset\t[1-9]\d*", r"#SlaveNum\t0")),
    # Only a slave uses it; a master accepts it, and its log is unchanged.
    row("resetMasterFlushOffset -b $broker -o 0", "haStatus -b $broker", versions=V5,
        holds=(r"reset master flush offset to 0 success", r"#MasterCommitLogMaxOffset\t[1-9]")),
    row("getBrokerEpoch -b broker-a", versions=V5,
        holds=(r"#brokerName\tbroker-a", r"#brokerAddr\t$broker")),
    row("setConsumeMode -b $broker -t $orders -g $readers -m POP", versions=V5, then=assignment,
        holds=(r"set consume mode to $broker success", r'"mode":"POP"')),
)  # fmt: skip

ACCESS = (
    row("updateAclConfig -b $acl_broker -a somebody -s 87654321 -t topicA=PUB", versions=V4,
        then=accounts,
        holds=(r"create or update plain access config to $acl_broker success",
               r'"accessKey":"somebody"', r'"topicPerms":\["topicA=PUB"\]')),
    row("updateGlobalWhiteAddr -b $acl_broker -g 10.1.1.1,127.0.0.1", versions=V4,
        then=accounts,
        holds=(r"update global white remote addresses to $acl_broker success",
               r'"globalWhiteAddrs":\["10.1.1.1","127.0.0.1"\]')),
    row("clusterAclConfigVersion -b $acl_broker", versions=V4,
        holds=(r"DefaultCluster +broker-a +$acl_broker +\S+plain_acl.yml +\d+ +20\d\d-",
               r"get broker's plain access config version success")),
    row("deleteAclConfig -b $acl_broker -a somebody", versions=V4,
        then=accounts,
        holds=(r"delete plain access config account from $acl_broker success",
               r'(?s)\A(?!.*"somebody")(?=.*"accessKey":"rocketmq2")')),
)  # fmt: skip


def refused(line: str, because: str) -> Row:
    return row(line, versions=V5, holds=(rf"not supported because {because}",))


def refused_silently(line: str, request_code: int) -> Row:
    """The tool prints "error" without the reason."""
    return row(
        line,
        versions=V5,
        then=refusal_of(request_code),
        holds=(r"broker-a\]? +error", "not supported because there are no lite topics"),
    )


FIXED_ROLE = "this broker has a fixed role: there is no automatic failover"
REFUSED = (
    refused("getControllerConfig -a $broker", "there is no RocketMQ controller"),
    refused("updateControllerConfig -a $broker -k k -v v", "there is no RocketMQ controller"),
    # With automatic failover these are answered: tests/apache/test_failover_tools.py.
    row("getControllerMetaData -a $broker", versions=V5, holds=(FIXED_ROLE,)),
    row("getSyncStateSet -a $broker -b broker-a", versions=V5, holds=(FIXED_ROLE,)),
    row("electMaster -a $broker -b 1 -bn broker-a -c C", versions=V5, holds=(FIXED_ROLE,)),
    # The tool asks for the controller's metadata first.
    row("cleanBrokerMetadata -a $broker -bn broker-a -c C", versions=V5, holds=(FIXED_ROLE,)),
    refused("switchTimerEngine -b $broker -e R", "timed messages are stored in one way"),
    refused("getBrokerLiteInfo -b $broker", "there are no lite topics"),
    refused_silently("getParentTopicInfo -p $orders", GET_PARENT_TOPIC_INFO),
    refused_silently("getLiteTopicInfo -p $orders -l l", GET_LITE_TOPIC_INFO),
    refused_silently("getLiteClientInfo -p $orders -g $idle -c c", GET_LITE_CLIENT_INFO),
    refused_silently("getLiteGroupInfo -p $orders -g $idle", GET_LITE_GROUP_INFO),
    refused_silently("triggerLiteDispatch -p $orders -g $idle", TRIGGER_LITE_DISPATCH),
    refused("addBroker -c $broker -b /none", "there is no broker container"),
    refused("removeBroker -c $broker -b C:b:0", "there is no broker container"),
    refused("updateStaticTopic -b broker-a -t $static -qn 2", "there are no static topics"),
    refused("rocksDBConfigToJson -c DefaultCluster -t topics", "there is no RocksDB"),
    refused("checkRocksdbCqWriteProgress -c DefaultCluster -t $orders", "there is no RocksDB"),
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
"""Commands that do not apply here return an error that says so."""

ASKS_NO_SERVER = {
    "remappingStaticTopic": "moves static topics, of which there are none",
    "exportMetadataInRocksDB": "reads the files of a RocksDB on the same machine",
    "dumpCompactionLog": "reads a file on the same machine",
}
"""Sub commands of 5.x that send no request to a broker."""

TABLE = (
    *TOPICS, *BROKERS, *MESSAGES, *CLIENTS, *NAMESERVERS, *EXPORTS, *FIVE, *REFUSED, *ACCESS,
    *ONLINE,
)  # fmt: skip
