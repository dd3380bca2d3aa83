"""Addresses: valid and invalid texts, and round trips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianzhou.errors import AddressError, ConnectError
from tianzhou.remoting.address import (
    address_of,
    format_address,
    is_numeric,
    parse_address,
    parse_addresses,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9876", "localhost", 9876),
        ("10.0.0.1:0", "10.0.0.1", 0),
        (" mq-1.example.org:65535 ", "mq-1.example.org", 65535),
        ("[::1]:9876", "::1", 9876),
        ("::1:9876", "::1", 9876),
        ("0:0:0:0:0:0:0:1:10911", "0:0:0:0:0:0:0:1", 10911),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("::ffff:10.0.0.7:9876", "::ffff:10.0.0.7", 9876),
    ],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        "", "localhost", ":9876", "localhost:", "localhost:x", "localhost:-1", "localhost:65536",
        "localhost:99999999999999999999", "localhost:٣", "localhost:+1", "localhost:1_0",
        "::1", "fe80::1", "1:2:3:4:5:6:7:8", "[::1]", "[::1", "[localhost]:1", "a:b:1",
        "http://localhost:80", "two words:1", "a;b:1", "a,b:1", "[]:1",
    ],
)  # fmt: skip
def test_an_invalid_address_is_refused_and_named(text: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_address(text)
    assert repr(text) in str(refused.value)
    assert isinstance(refused.value, ConnectError)


@given(st.ip_addresses(), st.integers(0, 65535))
def test_parsing_reverses_formatting(ip: object, port: int) -> None:
    host, read_port = parse_address(format_address(str(ip), port))
    assert read_port == port
    assert host == str(ip).removeprefix("::ffff:" if "." in str(ip) else "")


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        host, port = parse_address(text)
    except AddressError:
        return
    assert host
    assert 0 <= port <= 65535


def test_lists_keep_their_order_and_drop_repetitions() -> None:
    assert parse_addresses("b:2; a:1;;b:2;") == [("b", 2), ("a", 1)]
    assert parse_addresses("") == []
    with pytest.raises(AddressError, match="'a'"):
        parse_addresses("b:2;a")


def test_ipv6_is_written_with_brackets_and_mapped_ipv4_without() -> None:
    assert format_address("::1", 1) == "[::1]:1"
    assert format_address("::ffff:1.2.3.4", 1) == "1.2.3.4:1"
    assert format_address("::ffff:102:304", 1) == "[::ffff:102:304]:1"
    assert format_address("example.org", 1) == "example.org:1"


def test_numeric_hosts_need_no_resolver() -> None:
    assert is_numeric("1.2.3.4")
    assert is_numeric("::1")
    assert not is_numeric("localhost")


def test_socket_addresses_as_text() -> None:
    assert address_of(("10.0.0.1", 9876)) == "10.0.0.1:9876"
    assert address_of(("::1", 9876)) == "[::1]:9876"
    assert address_of(None) == "?"
