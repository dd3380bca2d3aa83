"""Keys of a group: any names, no overlap."""

from itertools import permutations

import pytest

from tianzhou.errors import ConfigError
from tianzhou.ha.authority.etcd_keys import STATE, Name, group_keys

NAMES: tuple[Name, ...] = (
    STATE, ("wish", None), ("replicas", 1), ("replicas", 64), ("alive", 7),
)  # fmt: skip


def test_keys_are_below_the_group() -> None:
    keys = group_keys("DefaultCluster", "broker-a")
    assert keys.key(STATE) == b"/tianzhou/DefaultCluster/broker-a/state"
    assert keys.key(("replicas", 3)) == b"/tianzhou/DefaultCluster/broker-a/replicas/3"
    assert keys.end == b"/tianzhou/DefaultCluster/broker-a0"
    assert group_keys("c", "b", "tz/x/").key(STATE) == b"/tz/x/c/b/state"


def test_every_key_is_read_back() -> None:
    keys = group_keys("c", "b")
    for name in NAMES:
        assert keys.name(keys.key(name)) == name
        assert keys.prefix < keys.key(name) < keys.end


@pytest.mark.parametrize(
    "rest",
    [b"", b"state/1", b"wish/1", b"replicas", b"replicas/", b"replicas/0", b"replicas/01",
     b"replicas/65", b"replicas/x", b"replicas/1/2", b"alive/-1", b"other", b"\xff",
     "alive/\u0661".encode()],
)  # fmt: skip
def test_unknown_keys_have_no_name(rest: bytes) -> None:
    keys = group_keys("c", "b")
    assert keys.name(keys.prefix + rest) is None


def test_groups_do_not_overlap() -> None:
    names = ["a", "a/b", "b", "a%2Fb", "..", " ", "ä", "\udce4", "a\nb", "state", "a0"]
    keys = [group_keys(cluster, broker) for cluster in names for broker in names]
    assert len({each.prefix for each in keys}) == len(keys)
    for one, other in permutations(keys, 2):
        assert not one.prefix <= other.key(STATE) < one.end


@pytest.mark.parametrize(
    ("cluster", "broker", "prefix"),
    [("", "b", "/t"), ("c", "", "/t"), ("c", "b", "/"), ("c", "b", "a\nb"), ("c" * 2000, "b", "t")],
)
def test_impossible_prefixes_are_refused(cluster: str, broker: str, prefix: str) -> None:
    with pytest.raises(ConfigError):
        group_keys(cluster, broker, prefix)
