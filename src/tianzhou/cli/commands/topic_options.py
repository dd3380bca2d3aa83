"""The settings of a topic as options of commands."""

from dataclasses import dataclass
from typing import Annotated

from tianzhou.admin.topics import QUEUE_COUNT
from tianzhou.cli.shared.bulk_change import Attributes, RemovedAttributes, attribute_changes
from tianzhou.cli.shared.command import OptionGroup
from tianzhou.cli.shared.common_options import parse_perm
from tianzhou.cli.shared.parameters import option
from tianzhou.protocol.bodies.topics import TopicConfig

_UNIT, _UNIT_SUB = 1, 2
"""System flags of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions(OptionGroup):
    """The settings of a topic; None leaves a setting unchanged."""

    queues: Annotated[
        int | None, option("--queues", "Read and write queues per broker.", min=1, max=4096)
    ] = None
    read_queues: Annotated[
        int | None, option("--read-queues", "Read queues per broker.", min=0, max=4096)
    ] = None
    write_queues: Annotated[
        int | None, option("--write-queues", "Write queues per broker.", min=0, max=4096)
    ] = None
    perm: Annotated[str | None, option("--perm rw|r|w|none", "Permission of clients.")] = None
    ordered: Annotated[
        bool | None, option("--ordered/--not-ordered", "Whether its messages are ordered.")
    ] = None
    unit: Annotated[bool | None, option("--unit/--no-unit", "Whether it belongs to a unit.")] = None
    unit_sub: Annotated[
        bool | None, option("--unit-sub/--no-unit-sub", "Whether units subscribe to it.")
    ] = None
    attribute: Attributes = None
    remove_attribute: RemovedAttributes = None

    def of(self, before: TopicConfig) -> TopicConfig:
        """`before` with the given settings changed. Raises ConfigError."""
        read_count = self.queues if self.read_queues is None else self.read_queues
        write_count = self.queues if self.write_queues is None else self.write_queues
        return TopicConfig(
            topic_name=before.topic_name,
            read_queue_count=before.read_queue_count if read_count is None else read_count,
            write_queue_count=before.write_queue_count if write_count is None else write_count,
            perm=before.perm if self.perm is None else parse_perm(self.perm),
            filter_type=before.filter_type,
            topic_sys_flag=self._flags(before.topic_sys_flag),
            order=before.order if self.ordered is None else self.ordered,
            attributes=attribute_changes(self.attribute, self.remove_attribute),
        )

    def _flags(self, before: int) -> int:
        for bit, wanted in ((_UNIT, self.unit), (_UNIT_SUB, self.unit_sub)):
            if wanted is not None:
                before = before | bit if wanted else before & ~bit
        return before


def plain_topic(name: str) -> TopicConfig:
    """A topic with default settings."""
    return TopicConfig(topic_name=name, read_queue_count=QUEUE_COUNT, write_queue_count=QUEUE_COUNT)
