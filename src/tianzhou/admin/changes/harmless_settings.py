"""The settings of brokers and nameservers that a program may offer to people for a change.

A setting is on the list if a wrong value can be put right by another change: no paths, addresses,
names, accounts, commands, log settings, and nothing that makes a server run another program or
write another file (CVE-2023-33246, CVE-2023-37582). What is not on the list is refused, whatever
the server would say. Command lines and files are not limited by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tianzhou.errors import TargetError

BOOLEAN, NUMBER, CHOICE, HOURS = "boolean", "number", "choice", "hours"
"""Values of `HarmlessSetting.kind`."""


@dataclass(frozen=True, slots=True)
class HarmlessSetting:
    """A setting by RocketMQ's key."""

    key: str
    subject: str
    """The heading under which it is shown."""
    meaning: str
    kind: str = BOOLEAN
    low: int = 0
    high: int = 0
    options: tuple[str, ...] = ()
    loses: str = ""
    """What may get lost with another value; empty: nothing."""

    def problem_of(self, value: str) -> str:
        """Why a value is refused; empty if it is accepted."""
        if self.kind == BOOLEAN:
            return "" if value in ("true", "false") else f"{self.key} is true or false"
        if self.kind == CHOICE:
            is_option = value in self.options
            return "" if is_option else f"{self.key} is one of {', '.join(self.options)}"
        if self.kind == HOURS:
            hours = value.split(";")
            is_list = all(_is_number(each) and int(each) < 24 for each in hours)
            return "" if is_list else f"{self.key} is an hour from 00 to 23, or several with ;"
        if not _is_number(value) or not self.low <= int(value) <= self.high:
            return f"{self.key} is a number from {self.low:,} to {self.high:,}"
        return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


_TOPICS, _SENDING, _READING = "Topics and groups", "Sending", "Reading"
_DISK, _WAITING, _ROUTES = "Disk", "Delays and transactions", "Routes"
_DELETES = "older messages are deleted"

BROKER_SETTINGS = (
    HarmlessSetting(
        "autoCreateTopicEnable", _TOPICS, "create unknown topics when a message is sent to them"
    ),
    HarmlessSetting(
        "autoCreateSubscriptionGroup", _TOPICS, "create unknown consumer groups when they connect"
    ),
    HarmlessSetting(
        "brokerPermission",
        _TOPICS,
        "permission of the whole broker: 6 both, 4 read, 2 write",
        CHOICE,
        options=("6", "4", "2"),
    ),
    HarmlessSetting(
        "notifyConsumerIdsChangedEnable",
        _TOPICS,
        "notify the consumers of a group when one joins or leaves",
    ),
    HarmlessSetting(
        "maxMessageSize", _SENDING, "bytes of a body at most", NUMBER, 1024, 64 * 1024 * 1024
    ),
    HarmlessSetting("brokerFastFailureEnable", _SENDING, "refuse sends that waited too long"),
    HarmlessSetting(
        "waitTimeMillsInSendQueue",
        _SENDING,
        "ms after which waiting sends are refused",
        NUMBER,
        10,
        60_000,
    ),
    HarmlessSetting(
        "osPageCacheBusyTimeOutMills",
        _SENDING,
        "an append of so many ms means that the disk is overloaded",
        NUMBER,
        10,
        60_000,
    ),
    HarmlessSetting(
        "sendThreadPoolQueueCapacity",
        _SENDING,
        "sends that may wait at a time",
        NUMBER,
        100,
        1_000_000,
    ),
    HarmlessSetting("traceOn", _SENDING, "ask producers for message traces"),
    HarmlessSetting(
        "longPollingEnable", _READING, "park a pull without messages until one arrives"
    ),
    HarmlessSetting(
        "shortPollingTimeMills",
        _READING,
        "ms that it is parked without long polling",
        NUMBER,
        10,
        60_000,
    ),
    HarmlessSetting("enablePropertyFilter", _READING, "allow subscriptions by SQL92 expressions"),
    HarmlessSetting("slaveReadEnable", _READING, "send consumers of old messages to a slave"),
    HarmlessSetting(
        "maxTransferCountOnMessageInMemory",
        _READING,
        "messages that one read returns from memory",
        NUMBER,
        1,
        10_000,
    ),
    HarmlessSetting(
        "maxTransferCountOnMessageInDisk",
        _READING,
        "messages that one read returns from disk",
        NUMBER,
        1,
        10_000,
    ),
    HarmlessSetting(
        "maxTransferBytesOnMessageInMemory",
        _READING,
        "bytes that one read returns from memory",
        NUMBER,
        1024,
        64 * 1024 * 1024,
    ),
    HarmlessSetting(
        "maxTransferBytesOnMessageInDisk",
        _READING,
        "bytes that one read returns from disk",
        NUMBER,
        1024,
        64 * 1024 * 1024,
    ),
    HarmlessSetting(
        "maxMsgsNumBatch",
        _READING,
        "messages that a query by key returns at most",
        NUMBER,
        1,
        10_000,
    ),
    HarmlessSetting(
        "fileReservedTime",
        _DISK,
        "hours until a log file expires",
        NUMBER,
        1,
        24 * 3650,
        loses=_DELETES,
    ),
    HarmlessSetting(
        "deleteWhen", _DISK, "hours of the day at which expired files are deleted", HOURS
    ),
    HarmlessSetting(
        "diskMaxUsedSpaceRatio",
        _DISK,
        "percent of the disk from which old files are deleted at any hour",
        NUMBER,
        10,
        95,
        loses=_DELETES,
    ),
    HarmlessSetting("rejectTransactionMessage", _WAITING, "refuse transactional messages"),
    HarmlessSetting(
        "transactionTimeOut",
        _WAITING,
        "ms before the first check of an open transaction",
        NUMBER,
        1000,
        86_400_000,
    ),
    HarmlessSetting(
        "transactionCheckMax",
        _WAITING,
        "checks of a transaction before it is given up",
        NUMBER,
        1,
        1000,
    ),
    HarmlessSetting(
        "transactionCheckInterval",
        _WAITING,
        "ms between two rounds of checks",
        NUMBER,
        1000,
        86_400_000,
    ),
    HarmlessSetting(
        "timerMaxDelaySec",
        _WAITING,
        "longest delay of a timed message in seconds",
        NUMBER,
        60,
        2_000_000_000,
    ),
)

NAMESERVER_SETTINGS = (
    HarmlessSetting(
        "orderMessageEnable", _ROUTES, "add the order configuration of a topic to its route"
    ),
    HarmlessSetting(
        "supportActingMaster",
        _ROUTES,
        "show the first slave of a group without master as its master",
    ),
    HarmlessSetting(
        "notifyMinBrokerIdChanged",
        _ROUTES,
        "notify the brokers of a group when the lowest broker id changes",
    ),
    HarmlessSetting(
        "deleteTopicWithBrokerRegistration",
        _ROUTES,
        "delete topics that a registration no longer lists",
    ),
    HarmlessSetting(
        "returnOrderTopicConfigToBroker",
        _ROUTES,
        "answer a registration with the order configuration of all topics",
    ),
    HarmlessSetting("enableAllTopicList", _ROUTES, "answer requests for all topics"),
    HarmlessSetting("enableTopicList", _ROUTES, "answer requests for topics by cluster"),
)


def check_settings(
    changes: Mapping[str, str], allowed: tuple[HarmlessSetting, ...]
) -> dict[str, HarmlessSetting]:
    """The settings of some changes by key. Raises TargetError for those that are refused."""
    by_key = {each.key: each for each in allowed}
    for key, value in changes.items():
        setting = by_key.get(key)
        if setting is None:
            raise TargetError(
                f"setting {key[:80]} cannot be changed here: it is not on the list of harmless "
                "settings; change it in the configuration file of the server"
            )
        problem = setting.problem_of(value)
        if problem:
            raise TargetError(f"{problem}, not {value[:80]!r}")
    return {key: by_key[key] for key in changes}
