"""Tokens: used once, for a short time, and few."""

from tests.support.ha import HELLO, hello

from tianzhou.ha.tokens import Tokens


def test_a_token_is_valid_once() -> None:
    tokens = Tokens(4, 1000)
    token = tokens.issue(HELLO, 0)
    assert len(token) == 16
    assert tokens.redeem(token, 0) is HELLO
    assert tokens.redeem(token, 0) is None


def test_an_unknown_token_is_nothing() -> None:
    tokens = Tokens(4, 1000)
    tokens.issue(HELLO, 0)
    assert tokens.redeem(bytes(16), 0) is None
    assert tokens.redeem(b"", 0) is None
    assert len(tokens) == 1


def test_a_token_expires() -> None:
    tokens = Tokens(4, 1000)
    early, late = tokens.issue(HELLO, 0), tokens.issue(HELLO, 500)
    assert tokens.redeem(early, 1000) is None
    assert tokens.redeem(late, 1499) is HELLO
    assert len(tokens) == 0


def test_of_too_many_tokens_the_oldest_becomes_invalid() -> None:
    tokens = Tokens(4, 1000)
    issued = [tokens.issue(hello(number), number) for number in range(6)]
    assert len(tokens) == 4
    found = [tokens.redeem(token, 6) for token in issued]
    assert [each and each.broker_id for each in found] == [None, None, 2, 3, 4, 5]


def test_cleared_tokens_are_invalid() -> None:
    tokens = Tokens(4, 1000)
    token = tokens.issue(HELLO, 0)
    tokens.clear()
    assert tokens.redeem(token, 0) is None
