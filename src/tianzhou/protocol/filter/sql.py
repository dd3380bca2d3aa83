"""SQL92 filters: an expression compiled once into a function of a message's properties."""

from dataclasses import dataclass, field
from functools import lru_cache

from tianzhou.protocol import properties
from tianzhou.protocol.filter.raw import Finder, property_finder, record_properties
from tianzhou.protocol.filter.sql_nodes import Compiled


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A compiled expression. `ignored` is the text after it that RocketMQ's parser passes over."""

    expression: str
    ignored: str
    evaluate: Compiled = field(repr=False, compare=False)

    def matches(self, find: Finder) -> bool:
        """Whether a message is selected; `find` gives its properties by name."""
        try:
            return self.evaluate(find) is True
        except (ValueError, TypeError):
            # The properties do not fit the expression: RocketMQ does not deliver such a message.
            return False

    def accepts(self, record: memoryview) -> bool:
        """Whether a whole, sound record is selected."""
        raw = record_properties(record)
        if len(raw) > _SEARCHED_BYTES_MAX or len(self.expression) > _SEARCHED_BYTES_MAX:
            return self.matches(properties.decode(raw.decode("utf-8", "replace")).get)
        return self.matches(property_finder(raw))


_SEARCHED_BYTES_MAX = 512
"""Above it, of properties or expression, decoding all properties is cheaper than searching each."""


def prepare() -> None:
    """Load the parser, which takes too long to do with the first filter."""
    compile_sql("a = 1")


@lru_cache(maxsize=1024)
def compile_sql(expression: str) -> SqlFilter:
    """The filter of an expression. Raises FilterError, which shows where it goes wrong."""
    # Loaded with the first SQL subscription: most brokers never see one, and starting stays quick.
    from tianzhou.protocol.filter.sql_parser import parse_sql

    parsed = parse_sql(expression)
    return SqlFilter(expression, parsed.ignored, parsed.tree.evaluate)
