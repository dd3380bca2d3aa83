"""Every subcommand of `mqadmin` 4.9 and 5.x: its options, and the command it is translated to.

An option is written "t/topic=": short name, long name (with _ for a blank), and = if it takes a
value, ? if it takes one in some releases only. `build` translates the options to our arguments.
"""

from dataclasses import dataclass

from tianzhou.cli.mqadmin import translate
from tianzhou.cli.mqadmin.translate import Build


@dataclass(frozen=True, slots=True)
class Alias:
    """One subcommand."""

    options: str
    ours: str = ""
    build: Build | None = None
    why: str = ""


_CONTROLLER = "there is no controller"
_ROCKSDB = "RocksDB is not used: tables are JSON files, queues are consume queue files"
_STATIC = "static topics are not supported"
_TIMER = "there is only one timer engine"
_LITE = "lite topics are not supported"
_COLD = "cold data control is not supported"
_AUTH = "users and policies of 5.3 are not supported; `tianzhou acl` manages 4.9 accounts"
_CONTAINER = "broker containers are not supported; use `tianzhou broker --workers`"

_CHOOSE = "b/brokerAddr= c/clusterName="
_CONTROLLER_AT = "a/controllerAddress="

ALIASES: dict[str, Alias] = {
    # -- topics ------------------------------------------------------------------------------------
    "updateTopic": Alias(
        f"{_CHOOSE} t/topic= r/readQueueNums= w/writeQueueNums= p/perm= o/order= u/unit= "
        "s/hasUnitSub= a/attributes=",
        "topic update --or-create --from-defaults", translate.update_topic,
    ),
    "deleteTopic": Alias(
        "t/topic= c/clusterName=", "topic delete",
        lambda o: ["topic", "delete", o["t"], *o.flag("c", "--cluster"), "--yes"],
    ),
    "updateTopicPerm": Alias(
        f"{_CHOOSE} t/topic= p/perm=", "topic update --perm",
        lambda o: ["topic", "update", o["t"], "--perm", o["p"], *o.where()],
    ),
    "topicRoute": Alias(
        # The output is always a list.
        "t/topic= l/list", "topic route", lambda o: ["topic", "route", o["t"], *o.ignore("l")],
    ),
    "topicStatus": Alias(
        "t/topic= c/cluster=", "topic show",
        lambda o: ["topic", "show", o["t"], *o.flag("c", "--through")],
    ),
    "topicClusterList": Alias("t/topic=", "topic route", lambda o: ["topic", "route", o["t"]]),
    "topicList": Alias("c/clusterModel", "topic list --all", translate.list_topics),
    "updateOrderConf": Alias("t/topic= v/orderConf= m/method=", "namesrv kv", translate.order),
    "statsAll": Alias("a/activeTopic t/topic=", "topic stats", translate.topic_stats),
    "allocateMQ": Alias(
        "t/topic= i/ipList=", "group allocate",
        lambda o: ["group", "allocate", o["t"], *o["i"].split(",")],
    ),
    # -- groups ------------------------------------------------------------------------------------
    "updateSubGroup": Alias(
        f"{_CHOOSE} g/groupName= s/consumeEnable= m/consumeFromMinEnable= "
        "d/consumeBroadcastEnable= q/retryQueueNums= r/retryMaxTimes= i/brokerId= "
        "w/whichBrokerWhenConsumeSlowly= a/notifyConsumerIdsChanged= o/consumeMessageOrderly= "
        "p/groupRetryPolicy= /attributes=",
        "group update --or-create --from-defaults", translate.update_group,
    ),
    "deleteSubGroup": Alias(
        f"{_CHOOSE} g/groupName= r/removeOffset=", "group delete", translate.delete_group
    ),
    "consumerConnection": Alias(
        "g/consumerGroup= b/brokerAddr=", "group show",
        lambda o: ["group", "show", o["g"], *o.flag("b", "--broker")],
    ),
    "consumerProgress": Alias(
        "g/groupName= s/showClientIP= t/topicName= c/cluster=", "group show, group list",
        translate.progress,
    ),
    "consumerStatus": Alias(
        "g/consumerGroup= i/clientId= b/brokerAddr= s/jstack", "group members", translate.members
    ),
    "getConsumerConfig": Alias(
        "g/groupName=", "group show", lambda o: ["group", "show", o["g"]]
    ),
    "producerConnection": Alias(
        "g/producerGroup= t/topic=", "group producers",
        lambda o: ["group", "producers", o["g"], "--topic", o["t"]],
    ),
    "producer": Alias(
        "b/broker=", "group producers", lambda o: ["group", "producers", *o.flag("b", "--broker")]
    ),
    "setConsumeMode": Alias(
        f"{_CHOOSE} t/topicName= g/groupName= m/mode= q/popShareQueueNum=", "group mode",
        lambda o: ["group", "mode", o["g"], o["t"], o["m"], *o.flag("q", "--share"), *o.where()],
    ),
    # -- offsets -----------------------------------------------------------------------------------
    "resetOffsetByTime": Alias(
        "g/group= t/topic= s/timestamp= f/force= c/cluster? /cplus b/broker= q/queue= o/offset=",
        "offset reset", translate.reset,
    ),
    "skipAccumulatedMessage": Alias(
        "g/group= t/topic= f/force= c/cluster=", "offset skip", translate.skip
    ),
    "cloneGroupOffset": Alias(
        "s/srcGroup= d/destGroup= t/topic= o/offline=", "offset clone",
        lambda o: ["offset", "clone", o["s"], o["d"], o["t"], "--yes",
                   *o.switch("o", "--online-too")],
    ),
    # -- messages ----------------------------------------------------------------------------------
    "queryMsgById": Alias(
        "i/msgId= g/consumerGroup= d/clientId= s/sendMessage= u/unitName= t/topic= f/bodyFormat= "
        "c/cluster=",
        "message show, message resend, message push", translate.by_id,
    ),
    "queryMsgByKey": Alias(
        "t/topic= k/msgKey= b/beginTimestamp= e/endTimestamp= m/maxNum= c/cluster= p/keyType= "
        "l/lastKey=",
        "message query --key", translate.by_key,
    ),
    "queryMsgByUniqueKey": Alias(
        "i/msgId= g/consumerGroup= d/clientId= t/topic= a/showAll c/cluster= s/startTime= "
        "e/endTime=",
        "message query --unique-key, message push", translate.by_unique_key,
    ),
    "queryMsgByOffset": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= f/bodyFormat= r/routeTopic=", "message at",
        translate.by_offset,
    ),
    "queryMsgTraceById": Alias(
        "i/msgId= t/traceTopic= b/beginTimestamp= e/endTimestamp= c/maxNum=", "message trace",
        translate.trace,
    ),
    "printMsg": Alias(
        "t/topic= c/charsetName= s/subExpression= b/beginTimestamp= e/endTimestamp= d/printBody= "
        "l/lmqParentTopic=",
        "message query --from", translate.print_topic,
    ),
    "printMsgByQueue": Alias(
        "t/topic= a/brokerName= i/queueId= c/charsetName= s/subExpression= b/beginTimestamp= "
        "e/endTimestamp= p/print_msg= d/printBody= f/calculate=",
        "message query --from", translate.print_queue,
    ),
    "sendMessage": Alias(
        "t/topic= p/body= k/key= c/tags= b/broker= i/qid= m/msgTraceEnable=", "message send",
        translate.send,
    ),
    "consumeMessage": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= g/consumerGroup= s/beginTimestamp= "
        "e/endTimestamp= c/MessageNumber=",
        "message query --from", translate.consume,
    ),
    "queryCq": Alias(
        "t/topic= q/queue= i/index= c/count= b/broker= g/consumer=", "message entries",
        translate.entries,
    ),
    "sendMsgStatus": Alias(
        "b/brokerName= s/messageSize= c/count=", "bench send", translate.bench("b", "c", "s")
    ),
    "checkMsgSendRT": Alias(
        "t/topic= a/amount= s/size=", "bench send", translate.bench("t", "a", "s")
    ),
    "clusterRT": Alias(
        "a/amount= s/size= c/cluster= p/print_log= m/machine_room= i/interval=", "cluster latency",
        translate.latency,
    ),
    # -- brokers and clusters ----------------------------------------------------------------------
    "clusterList": Alias(
        "m/moreStats i/interval= c/clusterName=", "cluster show, cluster top", translate.clusters
    ),
    "brokerStatus": Alias(
        _CHOOSE, "broker runtime", lambda o: ["broker", "runtime", o.broker_or_cluster()]
    ),
    "brokerConsumeStats": Alias(
        "b/brokerAddr= t/timeoutMillis= l/level= o/order=", "broker lag", translate.lag
    ),
    "getBrokerConfig": Alias(
        _CHOOSE, "broker config", lambda o: ["broker", "config", o.broker_or_cluster()]
    ),
    "updateBrokerConfig": Alias(
        f"{_CHOOSE} k/key= v/value= a/updateAllBroker=", "broker config --set",
        translate.change_broker,
    ),
    "cleanExpiredCQ": Alias(
        "b/brokerAddr= c/cluster=", "broker clean queues", translate.clean("queues")
    ),
    "deleteExpiredCommitLog": Alias(
        "b/brokerAddr= c/cluster=", "broker clean log", translate.clean("log")
    ),
    "cleanUnusedTopic": Alias(
        "b/brokerAddr= c/cluster=", "broker clean topics", translate.clean("topics")
    ),
    "startMonitoring": Alias("", "cluster watch", lambda _: ["cluster", "watch"]),
    "haStatus": Alias(f"{_CHOOSE} i/interval=", "broker ha", translate.ha),
    "resetMasterFlushOffset": Alias(
        "b/brokerAddr= o/offset=", "broker flush-offset",
        lambda o: ["broker", "flush-offset", o["b"], o["o"], "--yes"],
    ),
    # -- nameservers -------------------------------------------------------------------------------
    "updateKvConfig": Alias(
        "s/namespace= k/key= v/value=", "namesrv kv put",
        lambda o: ["namesrv", "kv", "put", o["s"], o["k"], o["v"]],
    ),
    "deleteKvConfig": Alias(
        "s/namespace= k/key=", "namesrv kv delete",
        lambda o: ["namesrv", "kv", "delete", o["s"], o["k"], "--yes"],
    ),
    "wipeWritePerm": Alias(
        "b/brokerName=", "namesrv write-permission off",
        lambda o: ["namesrv", "write-permission", o["b"], "off", "--yes"],
    ),
    "addWritePerm": Alias(
        "b/brokerName=", "namesrv write-permission on",
        lambda o: ["namesrv", "write-permission", o["b"], "on", "--yes"],
    ),
    "getNamesrvConfig": Alias("", "namesrv config", lambda _: ["namesrv", "config"]),
    "updateNamesrvConfig": Alias(
        "k/key= v/value=", "namesrv config --set",
        lambda o: ["namesrv", "config", "--set", f"{o['k']}={o['v']}", "--yes"],
    ),
    # -- access control ----------------------------------------------------------------------------
    "updateAclConfig": Alias(
        f"{_CHOOSE} a/accessKey= s/secretKey= w/whiteRemoteAddress= i/defaultTopicPerm= "
        "u/defaultGroupPerm= t/topicPerms= g/groupPerms= m/admin=",
        "acl put", translate.put_account,
    ),
    "deleteAclConfig": Alias(
        f"{_CHOOSE} a/accessKey=", "acl delete",
        lambda o: ["acl", "delete", o["a"], *o.where(), "--yes"],
    ),
    "clusterAclConfigVersion": Alias(
        _CHOOSE, "acl versions", lambda o: ["acl", "versions", *o.where()]
    ),
    "getAclConfig": Alias(_CHOOSE, "acl list", lambda o: ["acl", "list", *o.where()]),
    "updateGlobalWhiteAddr": Alias(
        f"{_CHOOSE} g/globalWhiteRemoteAddresses= p/aclFileFullPath=", "acl white-list",
        lambda o: ["acl", "white-list", o["g"], *o.flag("p", "--file"), *o.where(), "--yes"],
    ),
    # -- export, lists of 5.x ----------------------------------------------------------------------
    "exportMetadata": Alias(
        "c/clusterName= b/brokerAddr= f/filePath= t/topic g/subscriptionGroup s/specialTopic",
        "cluster export metadata", translate.export_metadata,
    ),
    "exportConfigs": Alias(
        "c/clusterName= f/filePath=", "cluster export configs", translate.export("configs")
    ),
    "exportMetrics": Alias(
        "c/clusterName= f/filePath=", "cluster export metrics", translate.export("metrics")
    ),
    "updateTopicList": Alias(
        f"{_CHOOSE} f/filename=", "topic apply", translate.apply_file("topic")
    ),
    "updateSubGroupList": Alias(
        f"{_CHOOSE} f/filename=", "group apply", translate.apply_file("group")
    ),
    # -- only in 5.x ------------------------------------------------------------------------------
    "addBroker": Alias("c/brokerContainerAddr= b/brokerConfigPath=", why=_CONTAINER),
    "removeBroker": Alias("c/brokerContainerAddr= b/brokerIdentity=", why=_CONTAINER),
    "updateStaticTopic": Alias(
        "c/clusters= b/brokers= t/topic= qn/totalQueueNum= mf/mapFile= fr/forceReplace=",
        why=_STATIC,
    ),
    "remappingStaticTopic": Alias(
        "c/clusters= b/brokers= t/topic= mf/mapFile= fr/forceReplace=", why=_STATIC
    ),
    "exportMetadataInRocksDB": Alias("p/path= t/configType= j/jsonEnable=", why=_ROCKSDB),
    "exportPopRecord": Alias(f"{_CHOOSE} d/dryRun=", why=_ROCKSDB),
    "rocksDBConfigToJson": Alias(
        "t/configType= p/configPath= e/exportFile= j/jsonEnable= c/cluster= b/brokerAddr=",
        why=_ROCKSDB,
    ),
    "checkRocksdbCqWriteProgress": Alias("c/cluster= t/topic= cf/checkFrom=", why=_ROCKSDB),
    "switchTimerEngine": Alias(f"{_CHOOSE} e/engineType=", why=_TIMER),
    "getBrokerLiteInfo": Alias("b/brokerAddr= c/cluster= d/showDetail", why=_LITE),
    "getParentTopicInfo": Alias("p/parentTopic=", why=_LITE),
    "getLiteTopicInfo": Alias("p/parentTopic= l/liteTopic= s/showClientId", why=_LITE),
    "getLiteClientInfo": Alias("p/parentTopic= g/group= c/clientId= s/showDetail", why=_LITE),
    "getLiteGroupInfo": Alias("p/parentTopic= g/group= l/liteTopic= k/topK=", why=_LITE),
    "triggerLiteDispatch": Alias("p/parentTopic= g/group= c/clientId= b/brokerName=", why=_LITE),
    "getSyncStateSet": Alias(
        f"{_CONTROLLER_AT} c/clusterName= b/brokerName= i/interval=", why=_CONTROLLER
    ),
    "getBrokerEpoch": Alias("c/clusterName= b/brokerName= i/interval=", why=_CONTROLLER),
    "getControllerMetaData": Alias(_CONTROLLER_AT, why=_CONTROLLER),
    "getControllerConfig": Alias(_CONTROLLER_AT, why=_CONTROLLER),
    "updateControllerConfig": Alias(f"{_CONTROLLER_AT} k/key= v/value=", why=_CONTROLLER),
    "electMaster": Alias(
        f"{_CONTROLLER_AT} b/brokerId= bn/brokerName= c/clusterName=", why=_CONTROLLER
    ),
    "cleanBrokerMetadata": Alias(
        f"{_CONTROLLER_AT} b/brokerControllerIdsToClean= bn/brokerName= c/clusterName= "
        "l/cleanLivingBroker",
        why=_CONTROLLER,
    ),
    "dumpCompactionLog": Alias("f/file=", why="compacted topics are not supported"),
    "getColdDataFlowCtrInfo": Alias(_CHOOSE, why=_COLD),
    "updateColdDataFlowCtrGroupConfig": Alias(
        f"{_CHOOSE} g/consumerGroup= v/threshold=", why=_COLD
    ),
    "removeColdDataFlowCtrGroupConfig": Alias(f"{_CHOOSE} g/consumerGroup=", why=_COLD),
    "setCommitLogReadAheadMode": Alias(f"{_CHOOSE} m/commitLogReadAheadMode=", why=_COLD),
    "createUser": Alias(f"{_CHOOSE} u/username= p/password= t/userType=", why=_AUTH),
    "updateUser": Alias(f"{_CHOOSE} u/username= p/password= t/userType= s/userStatus=", why=_AUTH),
    "deleteUser": Alias(f"{_CHOOSE} u/username=", why=_AUTH),
    "getUser": Alias(f"{_CHOOSE} u/username=", why=_AUTH),
    "listUser": Alias(f"{_CHOOSE} f/filter=", why=_AUTH),
    "copyUser": Alias("f/fromBroker= t/toBroker= u/usernames=", why=_AUTH),
    "createAcl": Alias(
        f"{_CHOOSE} s/subject= r/resources= a/actions= i/sourceIp= d/decision=", why=_AUTH
    ),
    "updateAcl": Alias(
        f"{_CHOOSE} s/subject= r/resources= a/actions= i/sourceIp= d/decision=", why=_AUTH
    ),
    "deleteAcl": Alias(f"{_CHOOSE} s/subject= r/resources=", why=_AUTH),
    "getAcl": Alias(f"{_CHOOSE} s/subject=", why=_AUTH),
    "listAcl": Alias(f"{_CHOOSE} s/subject= r/resource=", why=_AUTH),
    "copyAcl": Alias("f/fromBroker= t/toBroker= s/subjects=", why=_AUTH),
}  # fmt: skip

SECOND_NAMES = {
    "QueryMsgTraceById": "queryMsgTraceById",
    "deleteAccessConfig": "deleteAclConfig",
    "resetOffsetByTimeOld": "resetOffsetByTime",
    "consumer": "consumerStatus",
}
"""Alternative names in some releases."""
