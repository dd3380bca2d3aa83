"""Subscriptions: topic and filter of a consumer, as sent to brokers and as checked locally.

Brokers compare hashes of tags, so messages with another tag of the same hash are delivered, too;
`passes` compares the text. SQL92 conditions are evaluated by brokers only.
"""

from dataclasses import dataclass, replace

from tianzhou.errors import ConfigError
from tianzhou.message import StoredMessage
from tianzhou.protocol.bodies.subscription import SubscriptionData
from tianzhou.protocol.filter.tags import SQL_TYPE, SUBSCRIBE_ALL, TAG_TYPE, parse_tags
from tianzhou.protocol.properties import TAGS


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic, under its name on the wire, and a filter."""

    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = TAG_TYPE
    tags: frozenset[str] = frozenset()
    """Those that pass; empty if the text of tags does not matter."""
    version: int = 0
    """Time of the last change, by which brokers know the newer of two."""

    def passes(self, message: StoredMessage) -> bool:
        """Whether the message matches; checks tags only."""
        return not self.tags or message.properties.get(TAGS) in self.tags

    def to_wire(self) -> SubscriptionData:
        parsed = parse_tags(self.expression) if self.expression_type == TAG_TYPE else None
        return SubscriptionData(
            topic=self.topic,
            expression=parsed.text if parsed else self.expression,
            tags=list(parsed.tags) if parsed else [],
            tag_codes=sorted(parsed.codes) if parsed else [],
            version=self.version,
            expression_type=self.expression_type,
        )

    def renewed(self, now_ms: int) -> "Subscription":
        """The same with a higher version."""
        return replace(self, version=max(now_ms, self.version + 1))


def by_tags(topic: str, expression: str, now_ms: int) -> Subscription:
    """A subscription by tags: `*`, or tags joined by `||`. Raises ConfigError if none is named."""
    if not isinstance(expression, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are checked
        raise ConfigError(f"topic {topic}: tags is {expression!r}; it must be a string, 'a || b'")
    parsed = parse_tags(expression)
    if not parsed.selects_all and not parsed.tags:
        raise ConfigError(f"topic {topic}: {expression!r} names no tag; * means all of them")
    return Subscription(topic, parsed.text, TAG_TYPE, frozenset(parsed.tags), now_ms)


def subscription_of(topic: str, tags: str, sql: str | None, now_ms: int) -> Subscription:
    """A subscription by tags, or by an SQL92 condition over properties. Raises ConfigError."""
    if sql is None:
        return by_tags(topic, tags, now_ms)
    if tags != SUBSCRIBE_ALL:
        raise ConfigError(f"topic {topic}: give tags or sql, not both")
    if not sql.strip():
        raise ConfigError(f"topic {topic}: the SQL condition is empty")
    return Subscription(topic, sql, SQL_TYPE, frozenset(), now_ms)
