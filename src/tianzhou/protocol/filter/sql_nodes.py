"""The parts of an SQL92 expression, each compiled into a function of a message's properties.

A value at run time is None (SQL's null), a bool, a str, or a number; properties are always strings.
Numbers come from literals only: `int` for Java's Integer, `Long`, `float` for Double. Three-valued
logic, and RocketMQ's rules for what meets what:

    property missing           comparisons give null, which selects nothing; two missing are equal
    property and number        the property is read as the literal is: `5` as a 32-bit integer,
                               `5000000000` as a 64-bit one, `5.0` as a double
    property and property      < and its kin read both as doubles, = compares the texts
    property and TRUE, FALSE   the property is read as a boolean: "true" in any case, or else false
    text, but no such number   an error: the message is not selected, whatever the rest says
"""

import operator
from collections.abc import Callable

from tianzhou.protocol.filter.java_numbers import (
    Long,
    compare_doubles,
    parse_double,
    parse_int,
    parse_long,
)
from tianzhou.protocol.filter.raw import Finder

Value = None | bool | str | int | Long | float
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


class Node:
    """A part of an expression; a value unless it is a Condition."""

    __slots__ = ("depth", "evaluate")

    def __init__(self, evaluate: Compiled, *inner: "Node") -> None:
        self.evaluate = evaluate
        self.depth: int = 1 + max((node.depth for node in inner), default=0)
        """Levels of nodes, this one included."""


class Condition(Node):
    __slots__ = ()


class Property(Node):
    """The value of a property, a string or null."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__(operator.methodcaller("__call__", name))
        self.name = name


class Literal(Node):
    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        super().__init__(lambda _: value)
        self.value = value


def is_condition(node: Node) -> bool:
    """Whether the node can stand where a condition is wanted."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return isinstance(node, Condition)


def negation(operand: Node) -> Node:
    """The number below zero; null for everything that is no number."""
    evaluate = operand.evaluate

    def negated(find: Finder) -> Value:
        value = evaluate(find)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return Long(-value) if isinstance(value, Long) else -value

    return Node(negated, operand)


# -- conditions --------------------------------------------------------------------------------


def cast_to_condition(operand: Property) -> Node:
    """A property where a condition stands: null if missing, else false, for no string is true."""
    name = operand.name
    return Condition(lambda find: None if find(name) is None else False, operand)


def negated(operand: Node) -> Node:
    return Condition(_not(operand.evaluate), operand)


def _not(evaluate: Compiled) -> Compiled:
    def inverted(find: Finder) -> Value:
        value = evaluate(find)
        return None if value is None else not value

    return inverted


def logic(operands: tuple[Node, ...], *, is_and: bool) -> Node:
    """AND or OR of two and more conditions, from left to right."""
    compiled = tuple(operand.evaluate for operand in operands)
    decisive = not is_and

    def decide(find: Finder) -> Value:
        unknown = False
        for evaluate in compiled:
            value = evaluate(find)
            if value is decisive:
                return decisive
            unknown = unknown or value is None
        return None if unknown else not decisive

    return Condition(decide, *operands)


def membership(name: str, values: frozenset[str], *, inverted: bool) -> Node:
    def member(find: Finder) -> Value:
        text = find(name)
        return None if text is None else text in values

    return Condition(_not(member) if inverted else member)


def search(verb: str, operand: Node, text: str, *, inverted: bool) -> Node:
    """`verb` is CONTAINS, STARTSWITH or ENDSWITH; false for null and for what is no string."""
    evaluate, found_by, wanted = operand.evaluate, _SEARCHES[verb], not inverted

    def searched(find: Finder) -> Value:
        value = evaluate(find)
        return isinstance(value, str) and found_by(value, text) is wanted

    return Condition(searched if text else lambda _: False, operand)


# -- comparisons -------------------------------------------------------------------------------


def equality(left: Node, right: Node) -> Node:
    """Equality; IS NULL is equality with null, which null alone has."""
    first, second = left.evaluate, right.evaluate
    if isinstance(left, Property) and isinstance(right, Literal):
        name, literal = left.name, right.value
        if literal is None:
            return Condition(lambda find: find(name) is None, left, right)
        if isinstance(literal, str):

            def equal(find: Finder) -> Value:
                text = find(name)
                return None if text is None else text == literal

            return Condition(equal, left, right)
    return Condition(lambda find: _equals(first(find), second(find)), left, right)


def ordering(symbol: str, left: Node, right: Node) -> Node:
    """`symbol` is one of < <= > >=."""
    first, second, test = left.evaluate, right.evaluate, _TESTS[symbol]

    def ordered(find: Finder) -> Value:
        left_value = first(find)
        if left_value is None:
            return None
        right_value = second(find)
        if right_value is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return test(compare_doubles(parse_double(left_value), parse_double(right_value)), 0)
        return test(_compare(left_value, right_value), 0)

    return Condition(ordered, left, right)


def _equals(left: Value, right: Value) -> Value:
    """`=`: null on the left is unknown, null on the right differs, two nulls are equal."""
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    return _compare(left, right) == 0


def _compare(left: bool | str | int | float, right: bool | str | int | float) -> int:
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


def compare_numbers(left: int | float, right: int | float) -> int:
    """As Java compares its boxed numbers after widening the narrower one."""
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)
