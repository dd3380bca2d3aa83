"""The JSON of a group's keys, and what is refused."""

import json

import pytest
from msgspec.structs import replace

from tianzhou.errors import AuthorityError
from tianzhou.ha.authority.encoding import (
    decode_alive,
    decode_replica,
    decode_state,
    decode_wish,
    encode,
)
from tianzhou.ha.authority.values import HISTORY_MAX, Alive, GroupState, Replica, Switch, Wish

STATE = GroupState(
    group="9f3c", epoch=7, master=2, master_incarnation=91, in_sync=(2, 3), lost=(1,),
    min_in_sync=2, paused=True, cause="lease expired", time_ms=5,
    history=(Switch(epoch=7, master=2, cause="lease expired", time_ms=5, duration_ms=3400),),
)  # fmt: skip


def test_a_state_is_encoded_with_the_documented_names() -> None:
    assert json.loads(encode(STATE)) == {
        "group": "9f3c", "epoch": 7, "master": 2, "masterIncarnation": 91, "inSync": [2, 3],
        "lost": [1], "minInSync": 2, "paused": True, "cause": "lease expired", "time": 5,
        "history": [
            {"epoch": 7, "master": 2, "cause": "lease expired", "time": 5, "durationMs": 3400}
        ],
    }  # fmt: skip
    assert decode_state(encode(STATE)) == STATE


def test_replica_alive_and_wish_are_read_as_they_were_written() -> None:
    replica = Replica(
        addr="h:1", ha="h:2", store_id="ab", boot_id="cd", empty=True, priority=0, version="1"
    )
    assert decode_replica(encode(replica)) == replica
    alive = Alive(incarnation=9, epoch=7, end=500, confirm=400)
    assert decode_alive(encode(alive)) == alive
    wish = Wish(epoch=7, force=3, accept_loss=True, by="ops")
    assert json.loads(encode(wish)) == {"epoch": 7, "force": 3, "acceptLoss": True, "by": "ops"}
    assert decode_wish(encode(wish)) == wish


def test_unknown_fields_are_ignored_so_that_versions_can_be_mixed() -> None:
    content = json.dumps({**json.loads(encode(STATE)), "later": {"a": 1}}).encode()
    assert decode_state(content) == STATE


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"group": ""}, "no group id"),
        ({"epoch": -1}, "epoch -1"),
        ({"epoch": 2**31}, "epoch 2147483648"),
        ({"minInSync": 0}, "minInSync 0"),
        ({"inSync": [2, 2]}, r"inSync \[2, 2\]"),
        ({"lost": [0]}, r"lost \[0\]"),
        ({"master": 1}, r"master 1 is not in inSync \[2, 3\]"),
        ({"epoch": "seven"}, "state cannot be read"),
        ({"history": [{"epoch": 1, "master": 1, "cause": "", "time": 1}] * (HISTORY_MAX + 1)},
         "51 switches"),
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_valid_is_refused(changed: dict[str, object], why: str) -> None:
    content = json.dumps({**json.loads(encode(STATE)), **changed}).encode()
    with pytest.raises(AuthorityError, match=why):
        decode_state(content)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"\xff\xfe", b"null", b"<html>", b'{"group":"\xff","addr":"\xff"}',
        b'{"x":' + b"[" * 60_000, b'{"x":' + b'{"x":' * 12_000,
        b'{"epoch":1%s}' % (b"0" * 5000),
    ],
    ids=lambda content: f"{content[:12]!r}",
)  # fmt: skip
def test_what_is_no_json_object_is_refused(content: bytes) -> None:
    for decode in (decode_state, decode_replica, decode_alive, decode_wish):
        with pytest.raises(AuthorityError, match="cannot be read"):
            decode(content)


def test_a_value_of_excessive_size_is_refused() -> None:
    with pytest.raises(AuthorityError, match="at most 65536"):
        decode_wish(b" " * 70_000 + b"{}")


def test_a_state_that_could_not_be_read_again_is_not_written() -> None:
    """After the last epoch of all the group would have no state that any replica accepts."""
    with pytest.raises(AuthorityError, match="would not be valid: epoch 2147483648"):
        encode(replace(STATE, epoch=2**31))
    assert decode_state(encode(replace(STATE, epoch=2**31 - 1))).epoch == 2**31 - 1
