"""Patterns of addresses."""

import pytest

from tianzhou.errors import ConfigError
from tianzhou.remoting.quota.addresses import parse_host, parse_pattern


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("*", ["10.1.2.3", "::1"], []),
        ("*.*.*.*", ["10.1.2.3"], []),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.30", "110.1.2.3", "::1"]),
        ("10.1.2.3,10.1.2.4", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
        ("10.1.2.{3, 4}", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "10.1.20.1"]),
        ("10.1.*.*", ["10.1.0.0", "10.1.255.255"], ["10.2.0.0"]),
        ("10.1.2.5-9", ["10.1.2.5", "10.1.2.9"], ["10.1.2.4", "10.1.2.10", "10.1.2.50"]),
        ("10.1.5-9.*", ["10.1.5.1", "10.1.9.255"], ["10.1.4.255", "10.1.10.0"]),
        ("10.1.0.0/16", ["10.1.255.1"], ["10.2.0.1", "::1"]),
        ("fd00::/8", ["fd12::1"], ["fe80::1", "10.1.1.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1"]),
        ("2001:db8::1-ff", ["2001:db8::1", "2001:db8::ff"], ["2001:db8::100", "2001:db9::1"]),
        ("2001:db8:0:0:0:0:0:*", ["2001:db8::ffff"], ["2001:db8::1:0"]),
        ("", [], ["10.1.2.3", "::1"]),
        (None, [], ["10.1.2.3"]),
    ],
)
def test_patterns_match_their_addresses_only(
    pattern: str | None, inside: list[str], outside: list[str]
) -> None:
    matches = parse_pattern(pattern)
    for host in inside + outside:
        address = parse_host(host)
        assert address is not None
        assert matches(address) is (host in inside), host


@pytest.mark.parametrize(
    "pattern",
    ["10.1.2", "10.1.2.256", "10.1.2.9-5", "10.1.2.-5", "10.1.2.{3,x}", "host", "10.1.0.0/33",
     "10.1.2.3,", "1:2:*", "10.*"],
)  # fmt: skip
def test_an_invalid_pattern_is_refused_with_examples(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"is no address: write 10\.1\.2\.3"):
        parse_pattern(pattern)


def test_an_ipv4_mapped_address_is_ipv4() -> None:
    assert parse_host("[::ffff:10.1.2.3]") == parse_host("10.1.2.3")
    assert parse_host("fe80::1%eth0") == parse_host("fe80::1")
    assert parse_host("somewhere") is None
