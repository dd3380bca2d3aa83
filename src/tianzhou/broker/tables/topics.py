"""The topics of a broker: their queues, permissions and flags."""

import logging
from collections.abc import Callable, Iterable

import msgspec

from tianzhou.broker.config import BrokerConfig
from tianzhou.broker.tables.saver import convert_table, unknown_keys
from tianzhou.broker.tables.supported_attributes import topic_problems
from tianzhou.broker.tables.versioned import VersionedTable
from tianzhou.broker.validation import check_derived_topic
from tianzhou.clock import Clock
from tianzhou.errors import RequestError
from tianzhou.limits import TOPIC_QUEUES_MAX
from tianzhou.names import (
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    DLQ_TOPIC_PREFIX,
    HALF_OP_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_TOPIC,
    PERM_INHERIT,
    PERM_READ,
    PERM_WRITE,
    RETRY_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    TIMER_TOPIC,
    reply_topic,
)
from tianzhou.protocol.bodies.topics import TopicConfig, TopicConfigTable
from tianzhou.protocol.codes import ResponseCode
from tianzhou.protocol.derived import is_topic_name
from tianzhou.remoting.scheduler import Steps

log = logging.getLogger(__name__)

READ_WRITE = PERM_READ | PERM_WRITE
SCHEDULE_QUEUE_COUNT = 18
BENCHMARK_QUEUE_COUNT = 1024
_LOG_END = "logEndOffset"
"""A key of our own; RocketMQ drops it when it writes the file."""


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker has; the saved table does not change them."""
    cluster_perm = PERM_INHERIT | (READ_WRITE if config.cluster_topic_enable else 0)
    broker_perm = PERM_INHERIT | (READ_WRITE if config.broker_topic_enable else 0)
    topics = [
        _topic(SELF_TEST_TOPIC, 1),
        _topic(BENCHMARK_TOPIC, BENCHMARK_QUEUE_COUNT),
        _topic(config.broker_cluster_name, 16, cluster_perm),
        _topic(config.broker_name, 1, broker_perm),
        _topic(OFFSET_MOVED_TOPIC, 1),
        _topic(SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT),
        _topic(reply_topic(config.broker_cluster_name), 1),
        _topic(HALF_TOPIC, 1),
        _topic(HALF_OP_TOPIC, 1),
    ]
    if config.auto_create_topic_enable:
        queue_count = config.default_topic_queue_nums
        topics.append(_topic(AUTO_CREATE_TOPIC, queue_count, READ_WRITE | PERM_INHERIT))
    if config.timer_wheel_enable:
        topics.append(_topic(TIMER_TOPIC, 1))
    if config.trace_topic_enable:
        topics.append(_topic(config.msg_trace_topic_name, 1))
    return topics


def _topic(name: str, queue_count: int, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_count=queue_count, write_queue_count=queue_count, perm=perm
    )


class TopicTable(VersionedTable[TopicConfig]):
    """All topics by name."""

    def __init__(
        self,
        system: Iterable[TopicConfig],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        check_capacity: Callable[[int, str], None] = lambda count, what: None,
    ) -> None:
        """`check_capacity` raises RequestError if a table of so many topics is full."""
        self.topics: dict[str, TopicConfig] = {
            topic.topic_name: topic for topic in system if topic.topic_name is not None
        }
        self.system_names = frozenset(self.topics)
        super().__init__("topic", self.topics, clock, on_change, check_capacity)
        self.log_end = 0
        """The table has the topics of all messages before this log offset, or they were deleted."""

    # -- changes -----------------------------------------------------------------------------------

    def put(self, topic: TopicConfig) -> bool:
        """Create a topic or replace it; False if it did not change."""
        return self._put(topic.topic_name, topic)

    def create_from_template(
        self,
        name: str,
        template_name: str,
        queue_count: int,
        *,
        auto_create: bool,
        sys_flag: int = 0,
    ) -> TopicConfig | None:
        """Create the topic of a send to an unknown one; None if no template allows it.

        `queue_count` is the producer's; the template's count is the maximum.
        Raises RequestError if the table is full.
        """
        template = self.topics.get(template_name)
        if template is None or (template_name == AUTO_CREATE_TOPIC and not auto_create):
            return None
        if not template.perm & PERM_INHERIT:
            return None
        if not name.startswith(RETRY_TOPIC_PREFIX):  # these are limited by the number of groups
            self.check_capacity((name,))
        granted = max(min(queue_count, template.write_queue_count), 0)
        topic = TopicConfig(
            topic_name=name,
            read_queue_count=granted,
            write_queue_count=granted,
            perm=template.perm & ~PERM_INHERIT,
            filter_type=template.filter_type,
            topic_sys_flag=sys_flag,
        )
        self.put(topic)
        return topic

    def create_for_group(self, name: str, queue_count: int, perm: int = READ_WRITE) -> TopicConfig:
        """The retry or dead-letter topic of a group, created if missing. Raises RequestError."""
        topic = self.topics.get(name)
        if topic is None:
            check_derived_topic(name)
            topic = _topic(name, queue_count, perm)
            self.put(topic)
        return topic

    def restore(
        self, name: str, queue_id: int, config: BrokerConfig, *, is_known: bool = False
    ) -> bool:
        """Create the missing topic of a stored message; returns whether it was created.

        A crash may have come before the topic of a message was saved. Where topics are not created
        by sends, a missing topic was deleted on purpose, unless it is known that it was not.
        """
        if name in self.topics or not is_topic_name(name):
            return False
        of_group = name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX))
        if not (of_group or is_known or config.auto_create_topic_enable):
            return False
        queue_count = 1 if of_group else config.default_topic_queue_nums
        self.put(_topic(name, max(queue_count, queue_id + 1)))
        return True

    def mark_ordered(self, names: Iterable[str]) -> None:
        """Set the order flag of topics that a nameserver lists as ordered."""
        unmarked = [
            topic
            for topic in (self.topics.get(name) for name in names)
            if topic is not None and not topic.order
        ]
        for topic in unmarked:
            assert topic.topic_name is not None, "a topic in the table has a name"
            self.topics[topic.topic_name] = msgspec.structs.replace(topic, order=True)
        if unmarked:
            self.touch(*(topic.topic_name for topic in unmarked if topic.topic_name is not None))

    def begin_epoch(self, epoch: int) -> None:
        """Mark the table as that of the master of an epoch.

        Nameservers refuse the registration of a former master, whose epoch is smaller.
        """
        version = msgspec.structs.replace(self.data_version, state_version=epoch)
        self.data_version = version
        self.touch()

    def replace(self, table: TopicConfigTable) -> Steps[bool]:
        """Become equal to another broker's table, with its version; False if it was equal.

        System topics stay: they depend on the settings of this broker. Topics are compared even if
        the versions are equal, as the versions of two brokers may be by chance.
        """
        system, is_changed = self.system_names, False
        for name in list(self.topics):
            if name not in table.topics and name not in system:
                self.topics.pop(name, None)
                is_changed = True
            yield
        for name, topic in table.topics.items():
            if name not in system and self.topics.get(name) != topic:
                self.topics[name] = msgspec.structs.replace(topic, topic_name=name)
                is_changed = True
            yield
        return self.replaced(table.data_version, is_changed=is_changed)

    # -- on the wire and on disk -------------------------------------------------------------------

    def as_body(self) -> TopicConfigTable:
        return TopicConfigTable(topics=self.topics, data_version=self.data_version)

    def as_file(self) -> dict[str, object]:
        """The content of `topics.json`."""
        end = {_LOG_END: self.log_end} if self.log_end else {}
        return self._as_file("topicConfigTable", **end)

    def load(self, content: dict[str, object]) -> None:
        """Load the content of a file. Raises BodyError; then nothing has changed."""
        table = convert_table(content, TopicConfigTable, "topics")
        log_end = convert_table(content.get(_LOG_END) or 0, int, "topics")
        # System topics depend on the current settings, not on those of the last run.
        named = {
            name: msgspec.structs.replace(topic, topic_name=name)
            for name, topic in table.topics.items()
            if name not in self.system_names
        }
        for name, topic in named.items():
            for problem in topic_problems(topic, topic.attributes or {}):
                log.warning("topic %s: %s; the value is loaded unchanged", name, problem)
        self.topics.update(named)
        self.data_version = table.data_version
        self.log_end = log_end
        self._others = unknown_keys(content, "dataVersion", "topicConfigTable", _LOG_END)


def check_queue_counts(read_count: int, write_count: int) -> None:
    """Raises RequestError for invalid counts."""
    for name, count in (("readQueueNums", read_count), ("writeQueueNums", write_count)):
        if not 1 <= count <= TOPIC_QUEUES_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{name} is {count}, it must be 1 to {TOPIC_QUEUES_MAX}"
            )
