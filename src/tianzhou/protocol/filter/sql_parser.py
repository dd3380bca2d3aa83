"""SQL92 expressions: text to tree, with the language that RocketMQ's selector parser accepts.

Its peculiarities are kept, because programs live with them: NOT binds tighter than a comparison,
`0.0` is no literal, IN takes strings only and wants a property before it, and what follows a
complete expression is ignored. The last one hides mistakes, so the rest is handed out for the
caller to warn of.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

from lark import Lark, Token, Transformer
from lark import v_args as lark_v_args  # pyright: ignore[reportUnknownVariableType] - loosely typed
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tianzhou.errors import FilterError
from tianzhou.limits import SQL_CHARACTERS_MAX, SQL_DEPTH_MAX, SQL_TOKENS_MAX
from tianzhou.protocol.filter.java_numbers import Long
from tianzhou.protocol.filter.sql_nodes import (
    Literal,
    Node,
    Property,
    cast_to_condition,
    compare_numbers,
    equality,
    is_condition,
    logic,
    membership,
    negated,
    negation,
    ordering,
    search,
)

GRAMMAR = r"""
?start: either
?either: both (OR both)*
?both: equality (AND equality)*
?equality: comparison
    | equality EQUAL comparison                     -> equal
    | equality NOT_EQUAL comparison                 -> not_equal
    | equality IS [NOT] NULL                        -> is_null
?comparison: unary
    | comparison (LESS | LESS_EQUAL | GREATER | GREATER_EQUAL) unary          -> order
    | comparison [NOT] (CONTAINS | STARTSWITH | ENDSWITH) STRING              -> search
    | comparison [NOT] BETWEEN unary AND unary                                -> between
    | comparison [NOT] IN "(" STRING ("," STRING)* ")"                        -> member
?unary: primary
    | "+" unary
    | MINUS unary                                   -> negation
    | NOT unary                                     -> negated
?primary: "(" either ")"
    | NAME                                          -> property
    | STRING                                        -> string
    | FLOAT                                         -> double
    | INTEGER                                       -> integer
    | TRUE                                          -> true
    | FALSE                                         -> false
    | NULL                                          -> null

EQUAL: "="
NOT_EQUAL: "<>"
LESS: "<"
LESS_EQUAL: "<="
GREATER: ">"
GREATER_EQUAL: ">="
MINUS: "-"
FLOAT.2: /[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+/
INTEGER.1: /0|[1-9][0-9]*[lL]?/
STRING: /'(?:''|[^'])*'/
NAME: /[a-zA-Z_$][a-zA-Z0-9_$]*/
LINE_COMMENT.3: /--[^\n\r]*(?:\r\n|\n|\r)/
BLOCK_COMMENT.3: /\/\*[^*]*\*+(?:[^*\/][^*]*\*+)*\//
BLANK: /[ \t\n\r\f]+/
%declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH
%ignore BLANK
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""

KEYWORDS = frozenset((
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS",
    "CONTAINS", "STARTSWITH", "ENDSWITH",
))  # fmt: skip

_LONG_MAX = 2**63 - 1
_INT_MAX = 2**31 - 1
_DOUBLE_MIN = 5e-324
_EXCERPT_LENGTH = 200
_WHAT_IS_EXPECTED = {
    "NAME": "a value",
    "STRING": "a string in single quotes",
    "RPAR": "a closing bracket",
    "LPAR": "a bracket",
    "AND": "AND",
    "NULL": "NULL",
    "IN": "IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH",
}


class _Lexer(Protocol):
    def lex(self, parser_state: object) -> Iterator[Token]: ...


class _Steps(Protocol):
    """The little that is used of lark's parser, which takes its tokens one by one."""

    lexer_thread: _Lexer
    parser_state: object

    def feed_token(self, token: Token) -> object: ...
    def feed_eof(self) -> object: ...
    def accepts(self) -> set[str]: ...


class ParsedSql(NamedTuple):
    """The tree of an expression, and the text after it that does not belong to it."""

    tree: Node
    ignored: str


def parse_sql(expression: str) -> ParsedSql:
    """Read an expression. Raises FilterError, which names the position and what is wrong there."""
    if len(expression) > SQL_CHARACTERS_MAX:
        raise FilterError(
            f"the SQL filter has {len(expression)} characters, "
            f"at most {SQL_CHARACTERS_MAX} are read"
        )
    steps = _parser()(expression)
    try:
        ignored_from = _feed(steps, expression)
        tree = _as_condition(cast("Node", steps.feed_eof()), None)
    except UnexpectedCharacters as e:
        position = cast("int", e.pos_in_stream)
        mistake = f"character {position + 1}: {_explain(expression, position)}"
    except UnexpectedToken as e:
        token = cast("Token", e.token)
        mistake = f"the expression ends where {_expected(steps)} is expected"
        if token.type != "$END":
            mistake = f"{_place(token)}found {str(token)!r}, expected {_expected(steps)}"
    except FilterError as e:
        mistake = str(e)
    else:
        if tree.depth <= SQL_DEPTH_MAX:
            return ParsedSql(tree, expression[ignored_from:])
        mistake = f"conditions nest deeper than {SQL_DEPTH_MAX} levels"
    raise FilterError(f"bad SQL filter, {mistake}; the filter is: {_excerpt(expression)}")


def _feed(steps: _Steps, expression: str) -> int:
    """Give the tokens to the parser; returns where the expression ends."""
    for count, token in enumerate(steps.lexer_thread.lex(steps.parser_state), 1):
        if count > SQL_TOKENS_MAX:
            raise FilterError(
                f"it has more than {SQL_TOKENS_MAX} names, values and symbols, which are read"
            )
        try:
            steps.feed_token(token)
        except UnexpectedToken:
            if "$END" not in steps.accepts():
                raise
            return token.start_pos or 0
    return len(expression)


@cache
def _parser() -> Callable[[str], _Steps]:
    parser: Any = Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        transformer=_TreeBuilder(),
        lexer_callbacks={"NAME": _name_or_keyword},
    )
    return cast("Callable[[str], _Steps]", parser.parse_interactive)


def _name_or_keyword(token: Token) -> Token:
    word = token.upper()
    if word in KEYWORDS:
        token.type = word
    return token


# -- building the tree -------------------------------------------------------------------------


@lark_v_args(inline=True)
class _TreeBuilder(Transformer[Token, Node]):
    """One method per alias of the grammar; lark calls them from the leaves up."""

    def either(self, *parts: Node | Token) -> Node:
        return _logic(parts, is_and=False)

    def both(self, *parts: Node | Token) -> Node:
        return _logic(parts, is_and=True)

    def equal(self, left: Node, symbol: Token, right: Node) -> Node:
        return _equal(left, symbol, right)

    def not_equal(self, left: Node, symbol: Token, right: Node) -> Node:
        return negated(_equal(left, symbol, right))

    def is_null(self, left: Node, _is: Token, is_not: Token | None, _null: Token) -> Node:
        is_null = equality(left, Literal(None))
        return negated(is_null) if is_not else is_null

    def order(self, left: Node, symbol: Token, right: Node) -> Node:
        return _order(left, symbol, str(symbol), right)

    def between(
        self, value: Node, is_not: Token | None, word: Token, low: Node, _: Token, high: Node
    ) -> Node:
        if is_not:
            outside = (_order(value, word, "<", low), _order(value, word, ">", high))
            return logic(outside, is_and=False)
        _check_bounds(word, low, high)
        within = (_order(value, word, ">=", low), _order(value, word, "<=", high))
        return logic(within, is_and=True)

    def search(self, operand: Node, is_not: Token | None, verb: Token, text: Token) -> Node:
        return search(verb.type, operand, _unquote(text), inverted=bool(is_not))

    def member(self, left: Node, is_not: Token | None, word: Token, *values: Token) -> Node:
        if not isinstance(left, Property):
            raise _mistake(word, f"IN wants a property before it, not {_show(left)}")
        names = frozenset(map(_unquote, values))
        return membership(left.name, names, inverted=bool(is_not))

    def negation(self, _: Token, operand: Node) -> Node:
        return negation(operand)

    def negated(self, word: Token, operand: Node) -> Node:
        return negated(_as_condition(operand, word))

    def property(self, name: Token) -> Node:
        return Property(str(name))

    def string(self, text: Token) -> Node:
        return Literal(_unquote(text))

    def double(self, text: Token) -> Node:
        number = float(text)
        if number == float("inf") or number < _DOUBLE_MIN:
            raise _mistake(text, f"{text} is not a positive double; write zero as 0")
        return Literal(number)

    def integer(self, text: Token) -> Node:
        digits = text.rstrip("lL")
        if len(digits) > len(str(_LONG_MAX)) or int(digits) > _LONG_MAX:
            raise _mistake(text, f"{text[:40]} does not fit 64 bits")
        number = int(digits)
        return Literal(number if number <= _INT_MAX else Long(number))

    def true(self, _: Token) -> Node:
        return Literal(value=True)

    def false(self, _: Token) -> Node:
        return Literal(value=False)

    def null(self, _: Token) -> Node:
        return Literal(None)


def _logic(parts: tuple[Node | Token, ...], *, is_and: bool) -> Node:
    word = cast("Token", parts[1])
    operands = cast("tuple[Node, ...]", parts[::2])
    return logic(tuple(_as_condition(operand, word) for operand in operands), is_and=is_and)


def _as_condition(node: Node, near: Token | None) -> Node:
    if isinstance(node, Property):
        return cast_to_condition(node)
    if not is_condition(node):
        raise _mistake(near, f"{_show(node)} is a value where a condition is expected")
    return node


def _equal(left: Node, symbol: Token, right: Node) -> Node:
    for side in (left, right):
        if isinstance(side, Literal) and side.value is None:
            raise _mistake(symbol, f"write IS NULL or IS NOT NULL, nothing is {symbol} NULL")
    both_literal = isinstance(left, Literal) and isinstance(right, Literal)
    if both_literal and is_condition(left) and not is_condition(right):
        raise _mistake(symbol, f"{_show(left)} cannot be compared with {_show(right)}")
    return equality(left, right)


def _order(left: Node, near: Token, symbol: str, right: Node) -> Node:
    for side in (left, right):
        is_text = isinstance(side, Literal) and isinstance(side.value, str)
        if is_text or is_condition(side):
            raise _mistake(near, f"{near} compares numbers and properties, not {_show(side)}")
    return ordering(symbol, left, right)


def _check_bounds(word: Token, low: Node, high: Node) -> None:
    if not (isinstance(low, Literal) and isinstance(high, Literal)):
        return
    # Bounds that are no numbers are refused by the comparisons that BETWEEN stands for.
    numbers = (value for value in (low.value, high.value) if isinstance(value, int | float))
    first, second = next(numbers, None), next(numbers, None)
    if first is not None and second is not None and compare_numbers(first, second) > 0:
        raise _mistake(word, f"nothing is between {first} and {second}")


def _unquote(text: Token) -> str:
    return text[1:-1].replace("''", "'")


# -- explaining --------------------------------------------------------------------------------


def _mistake(near: Token | None, what: str) -> FilterError:
    return FilterError(f"{_place(near)}{what}")


def _place(token: Token | None) -> str:
    return "" if token is None or token.start_pos is None else f"character {token.start_pos + 1}: "


def _explain(expression: str, position: int) -> str:
    character = expression[position]
    if character == "'":
        return "this string has no closing quote"
    if character == '"':
        return "strings stand in single quotes"
    return f"{character!r} does not belong into an expression"


def _expected(steps: _Steps) -> str:
    accepted = steps.accepts()
    for terminal, what in _WHAT_IS_EXPECTED.items():
        if terminal in accepted:
            return what
    return "an operator"


def _show(node: Node) -> str:
    if isinstance(node, Literal):
        value = node.value
        return repr(value) if isinstance(value, str | int | float) else "NULL"
    return "a condition" if is_condition(node) else "this"


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[:_EXCERPT_LENGTH]}..."
