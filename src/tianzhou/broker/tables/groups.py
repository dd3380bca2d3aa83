"""The consumer groups of a broker and their settings.

A group is created by an administrator or, where that is allowed, by its first consumer.
"""

import logging
from collections.abc import Callable

import msgspec

from tianzhou.broker.tables.saver import convert_table, unknown_keys
from tianzhou.broker.tables.supported_attributes import group_problems
from tianzhou.broker.tables.versioned import VersionedTable
from tianzhou.broker.validation import check_new_group
from tianzhou.clock import Clock
from tianzhou.names import SYSTEM_GROUP_PREFIX
from tianzhou.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupTable
from tianzhou.remoting.scheduler import Steps

log = logging.getLogger(__name__)

_TOOLS = ("TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP")
_BROADCAST = ("CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONSAPI_PULL", "CID_ONS-HTTP-PROXY")
FORBIDDEN_READ = 1 << 2
"""The bit of 5.x that forbids a group to read a topic."""
SYSTEM_GROUPS = frozenset((*_TOOLS, *_BROADCAST, "CID_RMQ_SYS_TRANS"))


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


class GroupTable(VersionedTable[SubscriptionGroupConfig]):
    """All consumer groups by name."""

    def __init__(
        self,
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        check_capacity: Callable[[int, str], None] = lambda count, what: None,
        check_rules: Callable[[int, str], None] = lambda count, what: None,
    ) -> None:
        """`check_capacity` raises RequestError if a table of so many groups is full, `check_rules`
        if so many topics are forbidden that no more can be.
        """
        self.groups: dict[str, SubscriptionGroupConfig] = {
            name: SubscriptionGroupConfig(group_name=name) for name in sorted(SYSTEM_GROUPS)
        }
        self.forbidden: dict[str, dict[str, int]] = {}
        """Bits of forbidden operations by group, then by topic (5.x)."""
        self._saves_forbidden = False
        self._check_rules = check_rules
        super().__init__("consumer group", self.groups, clock, on_change, check_capacity)

    def find(self, name: str, *, auto_create: bool) -> SubscriptionGroupConfig | None:
        """The group, created with default settings if it is missing and may be; else None.

        Raises RequestError for an invalid name, and if the table is full.
        """
        group = self.groups.get(name)
        if group is None:
            group = self.find_uncreated(name, auto_create=auto_create)
            if group is not None:
                self.check_capacity((name,))
                self.put(group)
        return group

    def find_uncreated(self, name: str, *, auto_create: bool) -> SubscriptionGroupConfig | None:
        """As `find`, but a missing group is not created. For slaves, which copy their groups.

        Raises RequestError for an invalid name.
        """
        group = self.groups.get(name)
        if group is None and (auto_create or is_system_group(name)):
            check_new_group(name)
            group = SubscriptionGroupConfig(group_name=name)
        return group

    def put(self, group: SubscriptionGroupConfig) -> bool:
        """Create a group or replace it; False if it did not change."""
        return self._put(group.group_name, group)

    def forbid(self, group: str, topic: str, *, forbidden: bool) -> bool:
        """Forbid a group to read a topic, or allow it again; False if nothing changed.

        Raises RequestError if too many topics are forbidden.
        """
        if self.is_forbidden(group, topic) == forbidden:
            return False
        if forbidden:
            count = sum(map(len, self.forbidden.values()))
            self._check_rules(count, f"topic {topic} cannot be forbidden to group {group}")
        bits = self.forbidden.get(group, {}).get(topic, 0) ^ FORBIDDEN_READ
        topics = {
            name: each for name, each in self.forbidden.get(group, {}).items() if name != topic
        }
        if bits:
            topics[topic] = bits
        self.forbidden.pop(group, None)
        if topics:
            self.forbidden[group] = topics
        self._saves_forbidden = True
        self.touch()
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group must not read the topic."""
        return bool(self.forbidden) and bool(
            self.forbidden.get(group, {}).get(topic, 0) & FORBIDDEN_READ
        )

    def replace(self, table: SubscriptionGroupTable) -> Steps[bool]:
        """Become equal to another broker's table, with its version; False if it was equal.

        System groups that the other broker lacks stay. Groups are compared even if the versions
        are equal, as the versions of two brokers may be by chance.
        """
        forbidden = dict(table.forbidden or {})
        is_changed = forbidden != self.forbidden
        for name in list(self.groups):
            if name not in table.groups and name not in SYSTEM_GROUPS:
                self.groups.pop(name, None)
                is_changed = True
            yield
        for name, group in table.groups.items():
            if self.groups.get(name) != group:
                self.groups[name] = msgspec.structs.replace(group, group_name=name)
                is_changed = True
            yield
        self.forbidden = forbidden
        self._saves_forbidden = self._saves_forbidden or bool(forbidden)
        return self.replaced(table.data_version, is_changed=is_changed)

    # -- on the wire and on disk -------------------------------------------------------------------

    def as_body(self) -> SubscriptionGroupTable:
        return SubscriptionGroupTable(
            groups=self.groups,
            forbidden=self.forbidden or None,
            data_version=self.data_version,
        )

    def as_file(self) -> dict[str, object]:
        """The content of `subscriptionGroup.json`."""
        forbidden = {"forbiddenTable": self.forbidden} if self._saves_forbidden else {}
        return self._as_file("subscriptionGroupTable", **forbidden)

    def load(self, content: dict[str, object]) -> None:
        """Load the content of a file. Raises BodyError; then nothing has changed."""
        table = convert_table(content, SubscriptionGroupTable, "consumer groups")
        for name, group in table.groups.items():
            for problem in group_problems(group, group.attributes or {}):
                log.warning("consumer group %s: %s; the value is loaded unchanged", name, problem)
            self.groups[name] = msgspec.structs.replace(group, group_name=name)
        self.forbidden = table.forbidden or {}
        self._saves_forbidden = table.forbidden is not None
        self.data_version = table.data_version
        self._others = unknown_keys(
            content, "dataVersion", "forbiddenTable", "subscriptionGroupTable"
        )
