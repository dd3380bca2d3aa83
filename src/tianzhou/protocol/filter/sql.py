"""SQL92 filters: an expression compiled once into a function of a message's properties.

Three-valued logic, and RocketMQ's rules for what meets what:

    property missing           comparisons give null, which selects nothing; two missing are equal
    property and number        the property is read as the literal is: `5` as a 32-bit integer,
                               `5000000000` as a 64-bit one, `5.0` as a double
    property and property      < and its kin read both as doubles, = compares the texts
    property and TRUE, FALSE   the property is read as a boolean: "true" in any case, or else false
    text, but no such number   an error: the message is not selected, whatever the rest says
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from tianzhou.protocol import properties
from tianzhou.protocol.filter.java_numbers import (
    Long,
    compare_doubles,
    parse_double,
    parse_int,
    parse_long,
)
from tianzhou.protocol.filter.raw import Finder, property_finder, record_properties
from tianzhou.protocol.filter.sql_nodes import (
    Cast,
    Equal,
    Literal,
    Logic,
    Membership,
    Negation,
    Node,
    Not,
    Order,
    Property,
    Search,
    Value,
    compare_numbers,
)

Compiled = Callable[[Finder], Value]

_TESTS: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SEARCHES: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


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
    """Load the parser, which takes too long to do when the first filter comes."""
    compile_sql("a = 1")


@lru_cache(maxsize=1024)
def compile_sql(expression: str) -> SqlFilter:
    """The filter of an expression. Raises FilterError, which shows where it goes wrong."""
    # Loaded with the first SQL subscription: most brokers never see one, and starting stays quick.
    from tianzhou.protocol.filter.sql_parser import parse_sql

    parsed = parse_sql(expression)
    return SqlFilter(expression, parsed.ignored, _compile(parsed.tree))


def _compile(node: Node) -> Compiled:
    if isinstance(node, Property):
        return operator.methodcaller("__call__", node.name)
    if isinstance(node, Literal):
        value = node.value
        return lambda _: value
    if isinstance(node, Negation):
        return _compile_negation(node)
    if isinstance(node, Cast):
        return _compile_cast(node.operand.name)
    if isinstance(node, Not):
        return _compile_not(node)
    if isinstance(node, Logic):
        return _compile_logic(node)
    if isinstance(node, Equal):
        return _compile_equal(node)
    if isinstance(node, Order):
        return _compile_order(node)
    if isinstance(node, Search):
        return _compile_search(node)
    return _compile_membership(node)


# -- conditions --------------------------------------------------------------------------------


def _compile_logic(node: Logic) -> Compiled:
    operands = tuple(map(_compile, node.operands))
    decisive = not node.is_and

    def logic(find: Finder) -> Value:
        unknown = False
        for operand in operands:
            value = operand(find)
            if value is decisive:
                return decisive
            unknown = unknown or value is None
        return None if unknown else not decisive

    return logic


def _compile_not(node: Not) -> Compiled:
    operand = _compile(node.operand)

    def negated(find: Finder) -> Value:
        value = operand(find)
        return None if value is None else not value

    return negated


def _compile_cast(name: str) -> Compiled:
    return lambda find: None if find(name) is None else False


def _compile_membership(node: Membership) -> Compiled:
    name, values, negated = node.name, node.values, node.negated

    def member(find: Finder) -> Value:
        text = find(name)
        return None if text is None else (text in values) is not negated

    return member


def _compile_search(node: Search) -> Compiled:
    if not node.text:
        return lambda _: False
    operand, search, text = _compile(node.operand), _SEARCHES[node.verb], node.text
    wanted = not node.negated

    def searched(find: Finder) -> Value:
        value = operand(find)
        return isinstance(value, str) and search(value, text) is wanted

    return searched


# -- comparisons -------------------------------------------------------------------------------


def _compile_negation(node: Negation) -> Compiled:
    operand = _compile(node.operand)

    def negation(find: Finder) -> Value:
        value = operand(find)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return negation


def _compile_equal(node: Equal) -> Compiled:
    if isinstance(node.left, Property) and isinstance(node.right, Literal):
        name, literal = node.left.name, node.right.value
        if literal is None:
            return lambda find: find(name) is None
        if isinstance(literal, str):
            return _compile_text_equal(name, literal)
    left, right = _compile(node.left), _compile(node.right)
    return lambda find: equals(left(find), right(find))


def _compile_text_equal(name: str, literal: str) -> Compiled:
    def equal(find: Finder) -> Value:
        text = find(name)
        return None if text is None else text == literal

    return equal


def _compile_order(node: Order) -> Compiled:
    left, right, test = _compile(node.left), _compile(node.right), _TESTS[node.symbol]

    def ordered(find: Finder) -> Value:
        left_value = left(find)
        if left_value is None:
            return None
        right_value = right(find)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return test(compare_doubles(parse_double(left_value), parse_double(right_value)), 0)
        return test(compare(left_value, right_value), 0)

    return ordered


def equals(left: Value, right: Value) -> Value:
    """`=`: null on the left is unknown, null on the right differs, two nulls are equal."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return compare(left, right) == 0


def compare(left: bool | str | int | float, right: bool | str | int | float) -> int:
    """Below, at or above zero, as RocketMQ compares what is not null.

    A boolean and a number are never equal. Raises ValueError where a text is no number of the kind
    it meets, TypeError where a boolean meets a text on its right.
    """
    if isinstance(left, str):
        return _compare_text(left, right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise TypeError("a boolean cannot be compared with a text on its right")
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, str):
        return compare_numbers(left, _read_like(left, right))
    return -1 if isinstance(right, bool) else compare_numbers(left, right)


def _compare_text(left: str, right: bool | str | int | float) -> int:
    if isinstance(right, str):
        return 0 if left == right else -1
    if isinstance(right, bool):
        return (left.lower() == "true") - right
    return compare_numbers(_read_like(right, left), right)


def _read_like(number: int | float, text: str) -> int | float:
    if isinstance(number, float):
        return parse_double(text)
    return parse_long(text) if isinstance(number, Long) else parse_int(text)
