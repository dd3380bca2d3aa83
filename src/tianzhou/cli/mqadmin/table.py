"""Every subcommand of `mqadmin` 4.9 and 5.x: its options, and the command it is translated to.

An option is written "t/topic=": short name, long name (with _ for a blank), and = if it takes a
value, ? if it takes one in some releases only. `translate` explains the templates.
"""

import re
from dataclasses import dataclass

from tianzhou.cli.mqadmin import translate
from tianzhou.cli.mqadmin.translate import Build

_FIXED = re.compile(r"(?<!\S)-?-?[a-z][a-z-]*(?!\S)")
"""The words of a template that do not depend on options."""


@dataclass(frozen=True, slots=True)
class Alias:
    """One subcommand."""

    options: str
    build: Build | str | None = None
    """A template of our arguments, or a function that chooses between several."""
    commands: str = ""
    """For the help, if it is not the fixed words of the template."""
    why: str = ""
    """Why it is not supported."""

    @property
    def ours(self) -> str:
        """Our command, for the help."""
        template = self.build if isinstance(self.build, str) else ""
        return self.commands or " ".join(_FIXED.findall(template)).removesuffix(" --yes")


_CHOOSE = "b/brokerAddr= c/clusterName="
_OF_CLUSTER = "b/brokerAddr= c/cluster="
_ACL = f"{_CHOOSE} s/subject= r/resources= a/actions= i/sourceIp= d/decision="
_AT_CONTROLLER = "a/controllerAddress="

_UNSUPPORTED = {
    "broker containers are not supported; use `tianzhou broker --workers`": {
        "addBroker": "c/brokerContainerAddr= b/brokerConfigPath=",
        "removeBroker": "c/brokerContainerAddr= b/brokerIdentity=",
    },
    "static topics are not supported": {
        "updateStaticTopic": "c/clusters= b/brokers= t/topic= qn/totalQueueNum= mf/mapFile= "
        "fr/forceReplace=",
        "remappingStaticTopic": "c/clusters= b/brokers= t/topic= mf/mapFile= fr/forceReplace=",
    },
    "RocksDB is not used: tables are JSON files, queues are consume queue files": {
        "exportMetadataInRocksDB": "p/path= t/configType= j/jsonEnable=",
        "exportPopRecord": f"{_CHOOSE} d/dryRun=",
        "rocksDBConfigToJson": "t/configType= p/configPath= e/exportFile= j/jsonEnable= c/cluster= "
        "b/brokerAddr=",
        "checkRocksdbCqWriteProgress": "c/cluster= t/topic= cf/checkFrom=",
    },
    "there is only one timer engine": {"switchTimerEngine": f"{_CHOOSE} e/engineType="},
    "lite topics are not supported": {
        "getBrokerLiteInfo": "b/brokerAddr= c/cluster= d/showDetail",
        "getParentTopicInfo": "p/parentTopic=",
        "getLiteTopicInfo": "p/parentTopic= l/liteTopic= s/showClientId",
        "getLiteClientInfo": "p/parentTopic= g/group= c/clientId= s/showDetail",
        "getLiteGroupInfo": "p/parentTopic= g/group= l/liteTopic= k/topK=",
        "triggerLiteDispatch": "p/parentTopic= g/group= c/clientId= b/brokerName=",
    },
    "there is no controller": {
        "getBrokerEpoch": "c/clusterName= b/brokerName= i/interval=",
        "getControllerMetaData": _AT_CONTROLLER,
        "getControllerConfig": _AT_CONTROLLER,
        "updateControllerConfig": f"{_AT_CONTROLLER} k/key= v/value=",
        "cleanBrokerMetadata": f"{_AT_CONTROLLER} b/brokerControllerIdsToClean= bn/brokerName= "
        "c/clusterName= l/cleanLivingBroker",
    },
    "compacted topics are not supported": {"dumpCompactionLog": "f/file="},
    "cold data control is not supported": {
        "getColdDataFlowCtrInfo": _CHOOSE,
        "updateColdDataFlowCtrGroupConfig": f"{_CHOOSE} g/consumerGroup= v/threshold=",
        "removeColdDataFlowCtrGroupConfig": f"{_CHOOSE} g/consumerGroup=",
        "setCommitLogReadAheadMode": f"{_CHOOSE} m/commitLogReadAheadMode=",
    },
    "users and policies of 5.3 are not supported; `tianzhou acl` manages 4.9 accounts": {
        "createUser": f"{_CHOOSE} u/username= p/password= t/userType=",
        "updateUser": f"{_CHOOSE} u/username= p/password= t/userType= s/userStatus=",
        "deleteUser": f"{_CHOOSE} u/username=",
        "getUser": f"{_CHOOSE} u/username=",
        "listUser": f"{_CHOOSE} f/filter=",
        "copyUser": "f/fromBroker= t/toBroker= u/usernames=",
        "createAcl": _ACL,
        "updateAcl": _ACL,
        "deleteAcl": f"{_CHOOSE} s/subject= r/resources=",
        "getAcl": f"{_CHOOSE} s/subject=",
        "listAcl": f"{_CHOOSE} s/subject= r/resource=",
        "copyAcl": "f/fromBroker= t/toBroker= s/subjects=",
    },
}
"""Subcommands of 5.x that are refused, by reason, with their options."""

ALIASES: dict[str, Alias] = {
    # -- topics ------------------------------------------------------------------------------------
    # As with the original: options not given are reset to defaults, also of existing topics.
    "updateTopic": Alias(
        f"{_CHOOSE} t/topic= r/readQueueNums= w/writeQueueNums= p/perm= o/order= u/unit= "
        "s/hasUnitSub= a/attributes=",
        "topic update {t} --or-create --from-defaults @where --read-queues?r --write-queues?w "
        "--perm?p --ordered/--not-ordered?o --unit/--no-unit?u --unit-sub/--no-unit-sub?s "
        "--attribute/--remove-attribute*a",
    ),
    "deleteTopic": Alias("t/topic= c/clusterName=", "topic delete {t} --cluster?c --yes"),
    "updateTopicPerm": Alias(f"{_CHOOSE} t/topic= p/perm=", "topic update {t} --perm {p} @where"),
    # The output is always a list.
    "topicRoute": Alias("t/topic= l/list", "topic route {t} !l"),
    "topicStatus": Alias("t/topic= c/cluster=", "topic show {t} --through?c"),
    "topicClusterList": Alias("t/topic=", "topic route {t}"),
    "topicList": Alias("c/clusterModel", "topic list --all --groups/?c"),
    "updateOrderConf": Alias("t/topic= v/orderConf= m/method=", translate.order, "namesrv kv"),
    "statsAll": Alias("a/activeTopic t/topic=", "topic stats {t}? --active/?a"),
    "allocateMQ": Alias("t/topic= i/ipList=", "group allocate {t} {i},"),
    # -- groups ------------------------------------------------------------------------------------
    # The same; -m and -d are false if not given, whatever the defaults of a group.
    "updateSubGroup": Alias(
        f"{_CHOOSE} g/groupName= s/consumeEnable= m/consumeFromMinEnable= "
        "d/consumeBroadcastEnable= q/retryQueueNums= r/retryMaxTimes= i/brokerId= "
        "w/whichBrokerWhenConsumeSlowly= a/notifyConsumerIdsChanged= o/consumeMessageOrderly= "
        "p/groupRetryPolicy= /attributes=",
        "group update {g} --or-create --from-defaults @where --consume/--no-consume?s "
        "--from-min/--not-from-min?m:false --broadcast/--no-broadcast?d:false "
        "--orderly/--not-orderly?o --notify/--no-notify?a --retry-queues?q --retries?r "
        "--broker-id?i --broker-id-when-slow?w --retry-policy?p "
        "--attribute/--remove-attribute*attributes",
    ),
    "deleteSubGroup": Alias(
        f"{_CHOOSE} g/groupName= r/removeOffset=",
        "group delete {g} @where /--keep-offsets?r:false --yes",
    ),
    "consumerConnection": Alias("g/consumerGroup= b/brokerAddr=", "group show {g} --broker?b"),
    "consumerProgress": Alias(
        "g/groupName= s/showClientIP= t/topicName= c/cluster=",
        translate.progress, "group show, group list",
    ),
    "consumerStatus": Alias(
        "g/consumerGroup= i/clientId= b/brokerAddr= s/jstack",
        "group members {g} --client?i --broker?b --stacks/?s",
    ),
    "getConsumerConfig": Alias("g/groupName=", "group show {g}"),
    "producerConnection": Alias(
        "g/producerGroup= t/topic=", "group producers {g} --topic {t}", "group producers"
    ),
    "producer": Alias("b/broker=", "group producers --broker?b"),
    "setConsumeMode": Alias(
        f"{_CHOOSE} t/topicName= g/groupName= m/mode= q/popShareQueueNum=",
        "group mode {g} {t} {m} --share?q @where",
    ),
    # -- offsets -----------------------------------------------------------------------------------
    "resetOffsetByTime": Alias(
        "g/group= t/topic= s/timestamp= f/force= c/cluster? /cplus b/broker= q/queue= o/offset=",
        translate.reset, "offset reset",
    ),
    "skipAccumulatedMessage": Alias(
        "g/group= t/topic= f/force= c/cluster=", translate.skip, "offset skip"
    ),
    "cloneGroupOffset": Alias(
        "s/srcGroup= d/destGroup= t/topic= o/offline=",
        "offset clone {s} {d} {t} --yes --online-too/?o",
    ),
    # -- messages ----------------------------------------------------------------------------------
    "queryMsgById": Alias(
        "i/msgId= g/consumerGroup= d/clientId= s/sendMessage= u/unitName= t/topic= f/bodyFormat= "
        "c/cluster=",
        translate.by_id, "message show, message resend, message push",
    ),
    "queryMsgByKey": Alias(
        "t/topic= k/msgKey= b/beginTimestamp= e/endTimestamp= m/maxNum= c/cluster= p/keyType= "
        "l/lastKey=",
        "message query {t} --key {k} --from?b --to?e --limit?m --key-type?p --last-key?l "
        "--through?c",
    ),
    "queryMsgByUniqueKey": Alias(
        "i/msgId= g/consumerGroup= d/clientId= t/topic= a/showAll c/cluster= s/startTime= "
        "e/endTime=",
        translate.by_unique_key, "message query --unique-key, message push",
    ),
    "queryMsgByOffset": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= f/bodyFormat= r/routeTopic=",
        "message at {t} --broker {b} --queue {i} --offset {o} --charset?f --through?r",
        "message at",
    ),
    "queryMsgTraceById": Alias(
        "i/msgId= t/traceTopic= b/beginTimestamp= e/endTimestamp= c/maxNum=",
        "message trace {i} --trace-topic?t --from?b --to?e --limit?c",
    ),
    "printMsg": Alias(
        "t/topic= c/charsetName= s/subExpression= b/beginTimestamp= e/endTimestamp= d/printBody= "
        "l/lmqParentTopic=",
        f"{translate.PRINT_MESSAGES} --through?l", "message query --from",
    ),
    "printMsgByQueue": Alias(
        "t/topic= a/brokerName= i/queueId= c/charsetName= s/subExpression= b/beginTimestamp= "
        "e/endTimestamp= p/print_msg= d/printBody= f/calculate=",
        translate.print_queue, "message query --from",
    ),
    "sendMessage": Alias(
        "t/topic= p/body= k/key= c/tags= b/broker= i/qid= m/msgTraceEnable=",
        "message send {t} {p} --key?k --tag?c --broker?b --queue?i --trace/?m",
    ),
    "consumeMessage": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= g/consumerGroup= s/beginTimestamp= "
        "e/endTimestamp= c/MessageNumber=",
        "message query {t} --from?s:earliest --to?e --broker?b --queue?i --offset?o --group?g "
        "--limit?c:128", "message query --from",
    ),
    "queryCq": Alias(
        "t/topic= q/queue= i/index= c/count= b/broker= g/consumer=",
        "message entries {t} --broker?b --queue {q} --offset {i} --count?c --group?g",
        "message entries",
    ),
    "sendMsgStatus": Alias(
        "b/brokerName= s/messageSize= c/count=",
        "bench send {b} --count?c --size?s --concurrency 1", "bench send",
    ),
    "checkMsgSendRT": Alias(
        "t/topic= a/amount= s/size=",
        "bench send {t} --count?a --size?s --concurrency 1", "bench send",
    ),
    "clusterRT": Alias(
        "a/amount= s/size= c/cluster= p/print_log= m/machine_room= i/interval=",
        translate.latency, "cluster latency",
    ),
    # -- brokers and clusters ----------------------------------------------------------------------
    "clusterList": Alias(
        "m/moreStats i/interval= c/clusterName=", translate.clusters, "cluster show, cluster top"
    ),
    "brokerStatus": Alias(_CHOOSE, "broker runtime @target"),
    "brokerConsumeStats": Alias(
        "b/brokerAddr= t/timeoutMillis= l/level= o/order=", translate.lag, "broker lag"
    ),
    "getBrokerConfig": Alias(_CHOOSE, "broker config @target"),
    "updateBrokerConfig": Alias(
        f"{_CHOOSE} k/key= v/value= a/updateAllBroker=",
        translate.change_broker, "broker config --set",
    ),
    "cleanExpiredCQ": Alias(_OF_CLUSTER, "broker clean queues @where --yes"),
    "deleteExpiredCommitLog": Alias(_OF_CLUSTER, "broker clean log @where --yes"),
    "cleanUnusedTopic": Alias(_OF_CLUSTER, "broker clean topics @where --yes"),
    "startMonitoring": Alias("", "cluster watch"),
    "haStatus": Alias(f"{_CHOOSE} i/interval=", translate.ha, "broker ha"),
    "getSyncStateSet": Alias(
        f"{_AT_CONTROLLER} c/clusterName= b/brokerName= i/interval=",
        "broker group @target --broker {a} !i",
    ),
    "electMaster": Alias(
        f"{_AT_CONTROLLER} b/brokerId= bn/brokerName= c/clusterName=",
        "broker switch {bn} --to {b} --broker {a} !c --yes",
    ),
    "resetMasterFlushOffset": Alias("b/brokerAddr= o/offset=", "broker flush-offset {b} {o} --yes"),
    # -- nameservers -------------------------------------------------------------------------------
    "updateKvConfig": Alias("s/namespace= k/key= v/value=", "namesrv kv put {s} {k} {v}"),
    "deleteKvConfig": Alias("s/namespace= k/key=", "namesrv kv delete {s} {k} --yes"),
    "wipeWritePerm": Alias("b/brokerName=", "namesrv write-permission {b} off --yes"),
    "addWritePerm": Alias("b/brokerName=", "namesrv write-permission {b} on --yes"),
    "getNamesrvConfig": Alias("", "namesrv config"),
    "updateNamesrvConfig": Alias("k/key= v/value=", "namesrv config --set {k}={v} --yes"),
    # -- access control ----------------------------------------------------------------------------
    "updateAclConfig": Alias(
        f"{_CHOOSE} a/accessKey= s/secretKey= w/whiteRemoteAddress= i/defaultTopicPerm= "
        "u/defaultGroupPerm= t/topicPerms= g/groupPerms= m/admin=",
        "acl put {a} --secret?s --white-address?w --default-topic?i --default-group?u "
        "--admin/--no-admin?m --topic*t --group*g @where --yes",
    ),
    "deleteAclConfig": Alias(f"{_CHOOSE} a/accessKey=", "acl delete {a} @where --yes"),
    "clusterAclConfigVersion": Alias(_CHOOSE, "acl versions @where"),
    "getAclConfig": Alias(_CHOOSE, "acl list @where"),
    "updateGlobalWhiteAddr": Alias(
        f"{_CHOOSE} g/globalWhiteRemoteAddresses= p/aclFileFullPath=",
        "acl white-list {g} --file?p @where --yes",
    ),
    # -- export, lists of 5.x ----------------------------------------------------------------------
    "exportMetadata": Alias(
        "c/clusterName= b/brokerAddr= f/filePath= t/topic g/subscriptionGroup s/specialTopic",
        translate.export_metadata, "cluster export metadata",
    ),
    "exportConfigs": Alias(
        "c/clusterName= f/filePath=", "cluster export configs --cluster {c} --folder?f",
        "cluster export configs",
    ),
    "exportMetrics": Alias(
        "c/clusterName= f/filePath=", "cluster export metrics --cluster {c} --folder?f",
        "cluster export metrics",
    ),
    "updateTopicList": Alias(f"{_CHOOSE} f/filename=", "topic apply {f} @where --yes"),
    "updateSubGroupList": Alias(f"{_CHOOSE} f/filename=", "group apply {f} @where --yes"),
} | {
    name: Alias(options, why=why)
    for why, refused in _UNSUPPORTED.items()
    for name, options in refused.items()
}  # fmt: skip

SECOND_NAMES = {
    "QueryMsgTraceById": "queryMsgTraceById",
    "deleteAccessConfig": "deleteAclConfig",
    "resetOffsetByTimeOld": "resetOffsetByTime",
    "consumer": "consumerStatus",
}
"""Alternative names in some releases."""
