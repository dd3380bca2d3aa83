"""The quota file: its format, and which of its rules applies to a name or an address.

    connections: {perBroker: 20000, perAddress: 500}
    inFlight: {unreadBytes: 268435456, unsentBytes: 1073741824, handledBytes: 536870912}
    burstSeconds: 1
    clients:
      - {address: 10.1.2.*, requestsPerSecond: 5000}
    topics:
      - {topic: orders, messagesPerSecond: 1000, bytesPerSecond: 1048576}
      - {topic: "*", messagesPerSecond: 20000}
    groups:
      - {group: "report-*", pullsPerSecond: 50}

Of each list the first matching rule applies. Names may contain * and ?; addresses have the patterns
of white lists. A rule without a limit allows any rate. The parts about clients are common to the
files of all servers (`remoting/quota/files`).
"""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tianzhou.errors import ConfigError
from tianzhou.remoting.quota import files
from tianzhou.remoting.quota.buckets import Rate
from tianzhou.remoting.quota.files import (
    First,
    QuotaSection,
    ServerQuotaFile,
    ServerRules,
    check_all_numbers,
    make_server_rules,
    read_quota,
)


class TopicRule(QuotaSection, frozen=True, kw_only=True):
    """The limits of each matching topic."""

    topic: str
    messages_per_second: float | None = None
    bytes_per_second: float | None = None


class GroupRule(QuotaSection, frozen=True, kw_only=True):
    """The limit of each matching group."""

    group: str
    pulls_per_second: float


class QuotaFile(ServerQuotaFile, frozen=True, kw_only=True):
    """The whole file; an empty one limits nothing."""

    topics: list[TopicRule] = []  # noqa: RUF012 - msgspec copies it
    groups: list[GroupRule] = []  # noqa: RUF012 - msgspec copies it


_SECTIONS: Mapping[str, type[QuotaSection]] = {
    **files.SECTIONS,
    "topics": TopicRule,
    "groups": GroupRule,
}


@dataclass(frozen=True, slots=True)
class TopicRates:
    """The rates of one rule for topics."""

    messages: Rate | None
    size_bytes: Rate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules(ServerRules):
    """A file that has been checked, ready for use."""

    topic: First[TopicRates]
    group: First[Rate]

    @property
    def lists(self) -> tuple[First[Any], ...]:
        """All that are lists of rules."""
        return self.client, self.topic, self.group


def make_rules(quota_file: QuotaFile) -> Rules:
    """Raises ConfigError for an invalid number or pattern."""
    of_server, burst_s = make_server_rules(quota_file), quota_file.burst_seconds
    check_all_numbers(quota_file.topics, "topics")
    check_all_numbers(quota_file.groups, "groups")
    topics = (
        (
            _is_name(rule.topic),
            TopicRates(
                _rate(rule.messages_per_second, burst_s), _rate(rule.bytes_per_second, burst_s)
            ),
        )
        for rule in quota_file.topics
    )
    groups = (
        (_is_name(rule.group), Rate(rule.pulls_per_second, burst_s)) for rule in quota_file.groups
    )
    return Rules(
        connections=of_server.connections,
        in_flight=of_server.in_flight,
        client=of_server.client,
        topic=First(topics),
        group=First(groups),
    )


def _rate(per_second: float | None, burst_s: float) -> Rate | None:
    return None if per_second is None else Rate(per_second, burst_s)


def _is_name(pattern: str) -> Callable[[str], bool]:
    if not pattern:
        raise ConfigError("a rule has an empty name")
    matches = re.compile(fnmatch.translate(pattern)).match
    return lambda name: matches(name) is not None


def read_rules(path: Path) -> Rules:
    """Raises ConfigError that names the file and, where known, the line."""
    return read_quota(path, lambda text: make_rules(parse_quota(text)))


def parse_quota(text: str) -> QuotaFile:
    """Raises ConfigError."""
    return files.parse_quota(text, QuotaFile, _SECTIONS)
