"""Every sub command of `mqadmin` 4.9 and 5.x: its options, and the words of ours that do the same.

An option is written "t/topic=": short name, long name, and = where it takes a value. `build` makes
our words of the options; it takes what it needs from `Given`, which remembers what was taken, so
that an option nobody took can be refused.
"""

from collections.abc import Callable
from dataclasses import dataclass

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_MANY = "1000000"


class Given:
    """The options of one call; what was looked at counts as met."""

    def __init__(self, values: dict[str, str]) -> None:
        self._values = values
        self.used: set[str] = set()

    def __getitem__(self, short: str) -> str:
        """Raises KeyError if the option is missing."""
        self.used.add(short)
        return self._values[short]

    def get(self, short: str, default: str | None = None) -> str | None:
        self.used.add(short)
        return self._values.get(short, default)

    def met(self, short: str, value: str = "true") -> list[str]:
        """No words: what this value asks for is done in any case."""
        if self._values.get(short, "").lower() == value:
            self.used.add(short)
        return []

    def flag(self, short: str, words: str) -> list[str]:
        """Our option with the value of theirs, if that is given."""
        value = self.get(short)
        return [] if value is None else [words, value]

    def switch(self, short: str, on: str, off: str | None = None) -> list[str]:
        """Our switch for "true" or "false", if that is given."""
        value = self.get(short)
        if value is None:
            return []
        word = on if value.lower() == "true" else off
        return [word] if word else []

    def where(self, broker: str = "b", cluster: str = "c") -> list[str]:
        """--broker and --cluster."""
        return [*self.flag(broker, "--broker"), *self.flag(cluster, "--cluster")]

    def broker_or_cluster(self) -> str:
        """The word that means both for us. Raises KeyError if neither is given."""
        return self.get("b") or self["c"]


Build = Callable[[Given], list[str]]


@dataclass(frozen=True, slots=True)
class Alias:
    """One sub command."""

    options: str
    ours: str = ""
    build: Build | None = None
    why: str = ""


def _update_topic(o: Given) -> list[str]:
    words = ["topic", "update", o["t"], "--or-create", *o.where()]
    words += o.flag("r", "--read-queues") + o.flag("w", "--write-queues") + o.flag("p", "--perm")
    words += o.switch("o", "--ordered", "--not-ordered")
    for pair in (o.get("a") or "").split(","):
        words += ["--attribute", pair.strip().lstrip("+")] if pair.strip() else []
    return words


def _update_group(o: Given) -> list[str]:
    words = ["group", "update", o["g"], "--or-create", *o.where()]
    words += o.switch("s", "--consume", "--no-consume")
    words += o.switch("m", "--from-min", "--not-from-min")
    words += o.switch("d", "--broadcast", "--no-broadcast")
    words += o.switch("o", "--orderly", "--not-orderly")
    words += o.switch("a", "--notify", "--no-notify")
    words += o.flag("q", "--retry-queues") + o.flag("r", "--retries")
    return words + o.flag("i", "--broker-id") + o.flag("w", "--broker-id-when-slow")


def _delete_group(o: Given) -> list[str]:
    keep = [] if (o.get("r") or "").lower() == "true" else ["--keep-offsets"]
    return ["group", "delete", o["g"], *o.where(), *keep, "--yes"]


def _print_messages(o: Given) -> list[str]:
    words = ["message", "query", o["t"], "--from", o.get("b") or "earliest", "--limit", _MANY]
    return words + o.flag("e", "--to") + o.flag("s", "--tag") + o.met("d")


def _print_queue(o: Given) -> list[str]:
    return [*_print_messages(o), "--broker", o["a"], "--queue", o["i"]]


def _by_key(o: Given) -> list[str]:
    words = ["message", "query", o["t"], "--key", o["k"]]
    return words + o.flag("b", "--from") + o.flag("e", "--to") + o.flag("m", "--limit")


def _reset(o: Given) -> list[str]:
    words = ["offset", "reset", o["g"], o["t"], "--yes", *o.flag("b", "--broker")]
    words += o.flag("q", "--queue")
    goal = o.get("o")
    when = o.get("s")
    if goal is not None:
        words += ["--to-offset", goal]
    else:
        words += ["--to", {"-1": "latest", "-2": "earliest"}.get(when or "", when or o["s"])]
    return words + (["--only-back"] if (o.get("f") or "true").lower() == "false" else [])


def _order(o: Given) -> list[str]:
    method = o["m"]
    if method == "get":
        return ["namesrv", "kv", "get", ORDER_NAMESPACE, o["t"]]
    if method == "delete":
        return ["namesrv", "kv", "delete", ORDER_NAMESPACE, o["t"], "--yes"]
    return ["namesrv", "kv", "put", ORDER_NAMESPACE, o["t"], o["v"]]


def _clusters(o: Given) -> list[str]:
    words = ["cluster", "top", "--once"] if o.get("m") else ["cluster", "show"]
    words += o.flag("c", "--cluster")
    every = o.get("i")
    if every is None:
        return words
    words = [word for word in words if word != "--once"]
    return [*words, "--every", every, *([] if words[1] == "top" else ["--watch"])]


def _ha(o: Given) -> list[str]:
    every = o.get("i")
    watch = [] if every is None else ["--every", every, "--watch"]
    return ["broker", "ha", o.broker_or_cluster(), *watch]


def _progress(o: Given) -> list[str]:
    group = o.get("g")
    o.met("s")
    if group is None:
        return ["group", "list", *o.flag("c", "--cluster")]
    return ["group", "show", group, *o.flag("t", "--topic")]


def _consume(o: Given) -> list[str]:
    place = o.get("o")
    count = o.flag("c", "--count")
    if place is not None:
        where = ["--broker", o["b"], "--queue", o["i"], "--offset", place]
        return ["message", "at", o["t"], *where, *(count or ["--count", "1000"])]
    words = ["message", "query", o["t"], "--from", o.get("s") or "earliest", *o.flag("e", "--to")]
    words += o.flag("b", "--broker") + o.flag("i", "--queue")
    return [*words, "--limit", count[1] if count else "128"]


def _send(o: Given) -> list[str]:
    words = ["message", "send", o["t"], o["p"], *o.flag("k", "--key"), *o.flag("c", "--tag")]
    return words + o.flag("b", "--broker") + o.flag("i", "--queue") + o.met("m", "false")


def _entries(o: Given) -> list[str]:
    words = ["message", "entries", o["t"], "--broker", o["b"], "--queue", o["q"]]
    return [*words, "--offset", o["i"], *o.flag("c", "--count"), *o.flag("g", "--group")]


def _put_account(o: Given) -> list[str]:
    words = ["acl", "put", o["a"], *o.flag("s", "--secret"), *o.flag("w", "--white-address")]
    words += o.flag("i", "--default-topic") + o.flag("u", "--default-group")
    words += o.switch("m", "--admin", "--no-admin")
    for short, ours in (("t", "--topic"), ("g", "--group")):
        for pair in (o.get(short) or "").split(","):
            words += [ours, pair.strip()] if pair.strip() else []
    return [*words, *o.where(), "--yes"]


def _members(o: Given) -> list[str]:
    words = ["group", "members", o["g"], *o.flag("i", "--client")]
    return words + (["--stacks"] if o.get("s") else [])


def _clean(what: str) -> Build:
    return lambda o: ["broker", "clean", what, *o.where(), "--yes"]


def _export_metadata(o: Given) -> list[str]:
    words = ["cluster", "export", "metadata"]
    # As with the original, a broker counts before a cluster, and topics before groups.
    words += o.flag("b", "--broker") or ["--cluster", o["c"]]
    words += o.flag("f", "--folder") + o.switch("s", "--special")
    topics, groups = o.get("t"), o.get("g")
    only = "topics" if topics else "groups" if groups else None
    return [*words, "--only", only] if only else words


def _export(what: str) -> Build:
    return lambda o: ["cluster", "export", what, "--cluster", o["c"], *o.flag("f", "--folder")]


def _bench(topic: str, count: str, size: str) -> Build:
    return lambda o: [
        "bench", "send", o[topic], *o.flag(count, "--count"), *o.flag(size, "--size"),
        "--concurrency", "1",
    ]  # fmt: skip


_CONTROLLER = "there is no controller here"
_ROCKSDB = "there is no RocksDB here: tables are JSON files, queues are files of their own"
_STATIC = "static topics are not supported"
_COLD = "cold data control is not supported"
_AUTH = "users and policies of 5.3 are not supported; `tianzhou acl` has accounts as in 4.9"
_CONTAINER = "there are no broker containers here; `tianzhou broker --workers` starts several"

_CHOOSE = "b/brokerAddr= c/clusterName="
_CONTROLLER_AT = "a/controllerAddress="

ALIASES: dict[str, Alias] = {
    # -- topics ------------------------------------------------------------------------------------
    "updateTopic": Alias(
        f"{_CHOOSE} t/topic= r/readQueueNums= w/writeQueueNums= p/perm= o/order= u/unit= "
        "s/hasUnitSub= a/attributes=",
        "topic update --or-create", _update_topic,
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
        "t/topic= l/list", "topic route",
        lambda o: ["topic", "route", o["t"], *o.met("l")],
    ),
    "topicStatus": Alias(
        "t/topic= c/cluster=", "topic show", lambda o: ["topic", "show", o["t"]]
    ),
    "topicClusterList": Alias("t/topic=", "topic route", lambda o: ["topic", "route", o["t"]]),
    "topicList": Alias(
        "c/clusterModel", "topic list --all",
        lambda _: ["topic", "list", "--all"],
    ),
    "updateOrderConf": Alias("t/topic= v/orderConf= m/method=", "namesrv kv", _order),
    "statsAll": Alias(
        "a/activeTopic t/topic=", "topic stats",
        lambda o: ["topic", "stats", *([o["t"]] if o.get("t") else [])],
    ),
    "allocateMQ": Alias(
        "t/topic= i/ipList=", "group allocate",
        lambda o: ["group", "allocate", o["t"], *o["i"].split(",")],
    ),
    # -- groups ------------------------------------------------------------------------------------
    "updateSubGroup": Alias(
        f"{_CHOOSE} g/groupName= s/consumeEnable= m/consumeFromMinEnable= "
        "d/consumeBroadcastEnable= q/retryQueueNums= r/retryMaxTimes= i/brokerId= "
        "w/whichBrokerWhenConsumeSlowly= a/notifyConsumerIdsChanged= o/consumeMessageOrderly= "
        "p/groupRetryPolicy=",
        "group update --or-create", _update_group,
    ),
    "deleteSubGroup": Alias(
        f"{_CHOOSE} g/groupName= r/removeOffset=", "group delete", _delete_group
    ),
    "consumerConnection": Alias(
        "g/consumerGroup= b/brokerAddr=", "group show", lambda o: ["group", "show", o["g"]]
    ),
    "consumerProgress": Alias(
        "g/groupName= s/showClientIP= t/topicName= c/cluster=", "group show, group list", _progress
    ),
    "consumerStatus": Alias(
        "g/consumerGroup= i/clientId= b/brokerAddr= s/jstack", "group members", _members
    ),
    "getConsumerConfig": Alias(
        "g/groupName=", "group show", lambda o: ["group", "show", o["g"]]
    ),
    "producerConnection": Alias(
        "g/producerGroup= t/topic=", "group producers", lambda o: ["group", "producers", o["g"]]
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
        "g/group= t/topic= s/timestamp= f/force= c/cplus b/broker= q/queue= o/offset=",
        "offset reset", _reset,
    ),
    "skipAccumulatedMessage": Alias(
        "g/group= t/topic= f/force= c/cluster=", "offset skip",
        lambda o: ["offset", "skip", o["g"], o["t"], "--yes", *o.met("f")],
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
        "message show", lambda o: ["message", "show", o["i"], *o.flag("t", "--topic")],
    ),
    "queryMsgByKey": Alias(
        "t/topic= k/msgKey= b/beginTimestamp= e/endTimestamp= m/maxNum= c/cluster=",
        "message query --key", _by_key,
    ),
    "queryMsgByUniqueKey": Alias(
        "i/msgId= g/consumerGroup= d/clientId= t/topic= a/showAll c/cluster=",
        "message query --unique-key",
        lambda o: ["message", "query", o["t"], "--unique-key", o["i"], *o.met("a")],
    ),
    "queryMsgByOffset": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= f/bodyFormat=", "message at",
        lambda o: ["message", "at", o["t"], "--broker", o["b"], "--queue", o["i"],
                   "--offset", o["o"]],
    ),
    "queryMsgTraceById": Alias(
        "i/msgId= t/traceTopic= b/beginTimestamp= e/endTimestamp= c/maxNum=", "message trace",
        lambda o: ["message", "trace", o["i"], *o.flag("t", "--trace-topic")],
    ),
    "printMsg": Alias(
        "t/topic= c/charsetName= s/subExpression= b/beginTimestamp= e/endTimestamp= d/printBody= "
        "l/lmqParentTopic=",
        "message query --from", _print_messages,
    ),
    "printMsgByQueue": Alias(
        "t/topic= a/brokerName= i/queueId= c/charsetName= s/subExpression= b/beginTimestamp= "
        "e/endTimestamp= d/printBody= f/calculate=",
        "message query --from", _print_queue,
    ),
    "sendMessage": Alias(
        "t/topic= p/body= k/key= c/tags= b/broker= i/qid= m/msgTraceEnable=", "message send", _send
    ),
    "consumeMessage": Alias(
        "t/topic= b/brokerName= i/queueId= o/offset= g/consumerGroup= s/beginTimestamp= "
        "e/endTimestamp= c/MessageNumber=",
        "message query, message at", _consume,
    ),
    "queryCq": Alias(
        "t/topic= q/queue= i/index= c/count= b/broker= g/consumer=", "message entries", _entries
    ),
    "sendMsgStatus": Alias(
        "b/brokerName= s/messageSize= c/count=", "bench send", _bench("b", "c", "s")
    ),
    "checkMsgSendRT": Alias("t/topic= a/amount= s/size=", "bench send", _bench("t", "a", "s")),
    "clusterRT": Alias(
        "a/amount= s/size= c/cluster= p/printLog= m/machineRoom= i/interval=", "cluster latency",
        lambda o: ["cluster", "latency", *o.flag("a", "--count"), *o.flag("s", "--size"),
                   *o.flag("c", "--cluster"), "--every", o.get("i") or "10", *o.met("p", "false")],
    ),
    # -- brokers and clusters ----------------------------------------------------------------------
    "clusterList": Alias(
        "m/moreStats i/interval= c/clusterName=", "cluster show, cluster top", _clusters
    ),
    "brokerStatus": Alias(
        _CHOOSE, "broker runtime", lambda o: ["broker", "runtime", o.broker_or_cluster()]
    ),
    "brokerConsumeStats": Alias(
        "b/brokerAddr= t/timeoutMillis= l/level= o/order=", "broker lag",
        lambda o: ["broker", "lag", o["b"], *o.flag("l", "--min-lag"),
                   *o.switch("o", "--orderly")],
    ),
    "getBrokerConfig": Alias(
        _CHOOSE, "broker config", lambda o: ["broker", "config", o.broker_or_cluster()]
    ),
    "updateBrokerConfig": Alias(
        f"{_CHOOSE} k/key= v/value= a/updateAllBroker=", "broker config --set",
        lambda o: ["broker", "config", o.broker_or_cluster(), "--set", f"{o['k']}={o['v']}",
                   "--yes"],
    ),
    "cleanExpiredCQ": Alias("b/brokerAddr= c/cluster=", "broker clean queues", _clean("queues")),
    "deleteExpiredCommitLog": Alias(
        "b/brokerAddr= c/cluster=", "broker clean log", _clean("log")
    ),
    "cleanUnusedTopic": Alias("b/brokerAddr= c/cluster=", "broker clean topics", _clean("topics")),
    "startMonitoring": Alias("", "cluster watch", lambda _: ["cluster", "watch"]),
    "haStatus": Alias(f"{_CHOOSE} i/interval=", "broker ha", _ha),
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
        "acl put", _put_account,
    ),
    "deleteAclConfig": Alias(
        f"{_CHOOSE} a/accessKey=", "acl delete",
        lambda o: ["acl", "delete", o["a"], *o.where(), "--yes"],
    ),
    "clusterAclConfigVersion": Alias(
        _CHOOSE, "acl versions", lambda o: ["acl", "versions", *o.where()]
    ),
    "updateGlobalWhiteAddr": Alias(
        f"{_CHOOSE} g/globalWhiteRemoteAddresses= p/aclFileFullPath=", "acl white-list",
        lambda o: ["acl", "white-list", o["g"], *o.flag("p", "--file"), *o.where(), "--yes"],
    ),
    # -- export, lists of 5.x ----------------------------------------------------------------------
    "exportMetadata": Alias(
        "c/clusterName= b/brokerAddr= f/filePath= t/topic g/subscriptionGroup s/specialTopic",
        "cluster export metadata", _export_metadata,
    ),
    "exportConfigs": Alias(
        "c/clusterName= f/filePath=", "cluster export configs", _export("configs")
    ),
    "exportMetrics": Alias(
        "c/clusterName= f/filePath=", "cluster export metrics", _export("metrics")
    ),
    "updateTopicList": Alias(f"{_CHOOSE} f/filename=", why="not built; see `tianzhou topic copy`"),
    "updateSubGroupList": Alias(
        f"{_CHOOSE} f/filename=", why="not built; see `tianzhou group copy`"
    ),
    # -- what is 5.x's alone -----------------------------------------------------------------------
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
    "dumpCompactionLog": Alias("f/file=", why="there are no compacted topics here"),
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
"""Other names that some releases accept."""
