"""Codes that are not served are explained."""

import pytest

from tianzhou.broker.handlers.heartbeat import parse_bindings
from tianzhou.broker.requests.table import explain
from tianzhou.protocol.codes import RequestCode


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (99_999, "no RocketMQ version has it"),
        (RequestCode.POP_LITE_MESSAGE, "because there are no lite topics here"),
        (RequestCode.REGISTER_BROKER, "because a nameserver serves it"),
    ],
)
def test_a_code_that_is_not_served_says_why(code: int, text: str) -> None:
    assert text in explain(code)
    assert str(int(code)) in explain(code)


def test_bindings_are_read_from_one_line() -> None:
    assert parse_bindings("") == {}
    assert parse_bindings("g = a , b; h=c ;; g=d; =x") == {
        "g": frozenset(("a", "b", "d")), "h": frozenset(("c",)),
    }  # fmt: skip
