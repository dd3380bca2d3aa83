"""Subjects of broker settings: which of RocketMQ's keys belong together on a page."""

from tianzhou.console.text import Text

_SUBJECTS: tuple[tuple[Text, str], ...] = (
    (Text("Identity"),
     "brokername brokerclustername brokerid brokerrole brokerip rocketmqhome regionid"),
    (Text("Replication and failover"),
     "slave insync replica election etcd controller dleger epoch failover haallowed haflow "
     "hahousekeeping halisten hamaster hasend hatransfer syncmaster maxha"),
    (Text("Access control"), "acl auth credential password secret whiteip tls"),
    (Text("Delayed and timed messages"), "timer delay recall"),
    (Text("Transactions"), "transaction"),
    (Text("Popping"), "pop revive retrytopicv"),
    (Text("Disk and log"),
     "commitlog disk flush mapped delete reserved retention consumequeue index warm pagecache "
     "storepath store rocks tiered compaction cleanfile"),
    (Text("Pulling and filters"), "pull polling filter bitmap accessmessagein maxtransfer"),
    (Text("Consumer groups and offsets"),
     "consumer subscription offset rebalance group queuelock"),
    (Text("Nameservers and network"),
     "namesrv nameserver register listen socket channel port bind netty server client heartbeat"),
    (Text("Sending and topics"),
     "send topic message autocreate reject failure quota permission batch wait"),
    (Text("Threads"), "thread pool"),
    (Text("Metrics and logs"), "metric stat log trace prom slow"),
)  # fmt: skip
"""Pieces of names; the first subject with one that a name contains is its subject."""
_SPLIT = tuple((text, names.split()) for text, names in _SUBJECTS)
_OTHER = Text("Other")


def subject_of(key: str) -> tuple[int, Text]:
    """The subject of a setting, with its rank on the page."""
    name = key.lower()
    for rank, (text, pieces) in enumerate(_SPLIT):
        if any(each in name for each in pieces):
            return rank, text
    return len(_SPLIT), _OTHER
