"""haEtcdEndpoints."""

import pytest

from tianzhou.errors import ConfigError
from tianzhou.ha.authority.etcd_endpoints import Endpoint, EtcdAccess, parse_endpoints


def test_endpoints_are_separated_by_semicolons_or_commas() -> None:
    assert parse_endpoints(" http://a:2379;http://[::1]:1/ ,http://a ; ") == (
        Endpoint("a", 2379, is_tls=False),
        Endpoint("::1", 1, is_tls=False),
    )
    (endpoint,) = parse_endpoints("https://10.0.0.1:23790")
    assert endpoint == Endpoint("10.0.0.1", 23790, is_tls=True)
    assert str(endpoint) == "https://10.0.0.1:23790"
    assert str(parse_endpoints("http://[::1]:1")[0]) == "http://[::1]:1"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "is empty"),
        (" ; ", "is empty"),
        ("a:2379", "write http://host:2379"),
        ("ftp://a:2379", "write http://host:2379"),
        ("http://", "write http://host:2379"),
        ("http://a:99999", "write http://host:2379"),
        ("http://a:x", "write http://host:2379"),
        ("http://a:2379/v3", "has a path"),
        ("http://a:2379?x=1", "has a path"),
        ("http://a b:2379", "no host name"),
        ("http://[::1:2379", "write http://host:2379"),
        ("http://a;https://b", "mixes"),
        (";".join(f"http://h{number}" for number in range(17)), "17 endpoints, at most 16"),
    ],
)
def test_wrong_endpoints_are_refused(text: str, part: str) -> None:
    with pytest.raises(ConfigError, match="haEtcdEndpoints") as error:
        parse_endpoints(text)
    assert part in str(error.value)


def test_passwords_are_not_shown() -> None:
    with pytest.raises(ConfigError) as error:
        parse_endpoints("http://root:secret@a:2379")
    assert "secret" not in str(error.value)
    assert "haEtcdUser" in str(error.value)
    endpoints = parse_endpoints("http://a")
    access = EtcdAccess(endpoints=endpoints, user="u", password="secret")  # noqa: S106 - not one
    assert "secret" not in repr(access)
