"""The tree of an SQL92 expression, and the rules that RocketMQ checks while it builds one.

A value at run time is None (SQL's null), a bool, a str, or a number; properties are always strings.
Numbers come from literals only: `int` for Java's Integer, `Long`, `float` for Double.
"""

from dataclasses import dataclass

from tianzhou.protocol.filter.java_numbers import Long, compare_doubles

Value = None | bool | str | int | Long | float


@dataclass(frozen=True, slots=True)
class Property:
    """The value of a property, a string or null."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value


@dataclass(frozen=True, slots=True)
class Negation:
    """The number below zero; null for everything that is no number."""

    operand: "Node"


@dataclass(frozen=True, slots=True)
class Cast:
    """A property where a condition stands: null if it is missing, else false, for no string is
    true."""

    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Node"


@dataclass(frozen=True, slots=True)
class Logic:
    """AND or OR of two and more conditions, from left to right."""

    is_and: bool
    operands: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """Equality; IS NULL is equality with null, which null alone has."""

    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Order:
    """`symbol` is one of < <= > >=."""

    symbol: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True, slots=True)
class Search:
    """`verb` is CONTAINS, STARTSWITH or ENDSWITH; false for null and for what is no string."""

    verb: str
    operand: "Node"
    text: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Membership:
    name: str
    values: frozenset[str]
    negated: bool


Node = Property | Literal | Negation | Cast | Not | Logic | Equal | Order | Search | Membership


def is_condition(node: Node) -> bool:
    """Whether the node can stand where a condition is wanted."""
    if isinstance(node, Literal):
        return node.value is None or isinstance(node.value, bool)
    return not isinstance(node, Property | Negation)


def children_of(node: Node) -> tuple[Node, ...]:
    """The nodes directly below."""
    if isinstance(node, Equal | Order):
        return node.left, node.right
    if isinstance(node, Logic):
        return node.operands
    if isinstance(node, Property | Literal | Membership):
        return ()
    return (node.operand,)


def compare_numbers(left: int | float, right: int | float) -> int:
    """As Java compares its boxed numbers after widening the narrower one."""
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))
    return (left > right) - (left < right)
