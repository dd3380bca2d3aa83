"""The advertised address: how it is chosen, and warnings if it cannot be right."""

import pytest

from tianzhou.broker import advertised_address
from tianzhou.errors import ConfigError

EVERYWHERE = "0.0.0.0"  # noqa: S104 - compared, not bound
NOT_OURS = "192.0.2.77"


def test_configured_address_is_used_or_one_is_detected() -> None:
    assert advertised_address.choose_address("10.1.2.3", EVERYWHERE, []) == "10.1.2.3"
    assert advertised_address.choose_address(None, "127.0.0.1", []) == "127.0.0.1"
    address = advertised_address.choose_address(None, EVERYWHERE, ["127.0.0.1"])
    assert address == "127.0.0.1", "a nameserver on this host is reached by loopback"
    assert advertised_address.is_own_address(advertised_address.find_own_address([]))


def test_loopback_address_on_one_host_is_accepted() -> None:
    assert (
        advertised_address.problems("127.0.0.1", 10911, "127.0.0.1", ["127.0.0.1", "localhost"])
        == []
    )


def test_loopback_address_with_remote_nameservers_causes_a_warning() -> None:
    (text,) = advertised_address.problems("127.0.0.1", 10911, EVERYWHERE, [])
    assert "127.0.0.1:10911" in text
    assert "set brokerIP1" in text
    (text,) = advertised_address.problems("127.0.0.1", 10911, "127.0.0.1", ["10.9.9.9"])
    assert "nameserver at 10.9.9.9" in text


def test_address_of_another_host_causes_a_warning() -> None:
    (text,) = advertised_address.problems(NOT_OURS, 10911, EVERYWHERE, [])
    assert f"{NOT_OURS} is no address of this host" in text
    assert "set brokerIP1" in text


def test_address_without_a_listener_causes_a_warning() -> None:
    texts = advertised_address.problems(NOT_OURS, 10911, "127.0.0.1", [])
    assert any("listens on 127.0.0.1 only" in text for text in texts)


def test_names_are_resolved_for_the_records() -> None:
    assert advertised_address.resolve("127.0.0.1") == "127.0.0.1"
    assert advertised_address.resolve("localhost") in ("127.0.0.1", "::1")
    with pytest.raises(ConfigError, match=r"brokerIP1=no\.such\.host"):
        advertised_address.resolve("no.such.host.invalid")
