"""Tag expressions: `*`, or tags joined by `||`.

The broker compares hash codes only, so it may let a foreign tag through that has the same hash; the
consumer compares the texts. The sets are those that RocketMQ's clients put into their heartbeats.
"""

from dataclasses import dataclass

from tianzhou.protocol.properties import java_hash

SUBSCRIBE_ALL = "*"
TAG_TYPE = "TAG"
SQL_TYPE = "SQL92"

# Java's String.trim removes everything up to and including the space.
_JAVA_BLANKS = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True)
class TagFilter:
    """What a tag expression selects; an expression without tags selects everything or nothing.

    `text` is `*` for everything. An expression of separators and blanks alone, such as `" || "`,
    names no tag at all for RocketMQ, and nothing matches it.
    """

    text: str
    tags: tuple[str, ...] = ()
    codes: frozenset[int] = frozenset()

    @property
    def selects_all(self) -> bool:
        return self.text == SUBSCRIBE_ALL

    def matches(self, tags_code: int) -> bool:
        """Whether a queue entry with this tag hash may be of interest."""
        return self.text == SUBSCRIBE_ALL or tags_code in self.codes


def is_tag_type(expression_type: str | None) -> bool:
    """Whether a subscription of this type is one by tags, which is also the default."""
    return not expression_type or expression_type == TAG_TYPE


def parse_tags(expression: str | None) -> TagFilter:
    """The filter of a tag expression; None and the empty one mean everything. Never raises."""
    if not expression or expression == SUBSCRIBE_ALL:
        return TagFilter(SUBSCRIBE_ALL)
    parts = (part.strip(_JAVA_BLANKS) for part in expression.split("||"))
    tags = tuple(dict.fromkeys(part for part in parts if part))
    return TagFilter(expression, tags, frozenset(map(java_hash, tags)))
