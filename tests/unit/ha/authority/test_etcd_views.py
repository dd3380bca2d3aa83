"""What a read of all keys shows, and which id a broker gets."""

import msgspec
import pytest

from tianzhou.errors import AuthorityError, IdentityHeld
from tianzhou.ha.authority.encoding import encode
from tianzhou.ha.authority.etcd import choose_id, view_of
from tianzhou.ha.authority.etcd_answers import Header, KeyValue, RangeAnswer
from tianzhou.ha.authority.etcd_keys import group_keys
from tianzhou.ha.authority.values import (
    REPLICAS_MAX,
    Alive,
    GroupState,
    Known,
    Replica,
    View,
    Wish,
)

KEYS = group_keys("c", "b")
REPLICA = Replica(addr="h1:10911", ha="h1:10912", store_id="s1", boot_id="b1", empty=False)
ALIVE = Alive(incarnation=5, epoch=1, end=0, confirm=0)
STATE_VALUE = GroupState(group="g", epoch=1, master=1, in_sync=(1, 2), lost=(3,))


def answer(**kvs: bytes) -> RangeAnswer:
    found = tuple(
        KeyValue(key=KEYS.prefix + name.replace("_", "/").encode(), value=value, mod_revision=at)
        for at, (name, value) in enumerate(kvs.items(), 1)
    )
    return RangeAnswer(header=Header("77", "1", 40, 3), kvs=found)


def view(
    replicas: dict[int, Replica], alive: tuple[int, ...] = (), state: GroupState | None = None
) -> View:
    return View(
        cluster_id="77", read_revision=100, revision=1 if state else 0, state=state,
        replicas={each: Known(value, 10 + each) for each, value in replicas.items()},
        alive={each: Known(ALIVE, 50) for each in alive},
    )  # fmt: skip


def test_a_view_has_all_keys_with_their_revisions() -> None:
    seen = view_of(
        KEYS,
        answer(
            state=encode(STATE_VALUE), replicas_1=encode(REPLICA), alive_1=encode(ALIVE),
            wish=encode(Wish(epoch=1, switch_to=2)), other=b"x", replicas_x=b"{", alive_999=b"",
        ),
    )  # fmt: skip
    assert seen == View(
        cluster_id="77", read_revision=40, revision=1, state=STATE_VALUE,
        replicas={1: Known(REPLICA, 2)}, alive={1: Known(ALIVE, 3)},
        wish=Known(Wish(epoch=1, switch_to=2), 4),
    )  # fmt: skip


def test_an_empty_group_is_a_view() -> None:
    seen = view_of(KEYS, answer())
    assert (seen.revision, seen.state, seen.replicas) == (0, None, {})


@pytest.mark.parametrize("name", ["state", "replicas_2", "alive_3", "wish"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xff", b'{"epoch":"x"}'])
def test_wrong_content_is_an_error_with_the_key(name: str, content: bytes) -> None:
    with pytest.raises(AuthorityError) as error:
        view_of(KEYS, answer(**{name: content}))
    assert f"/tianzhou/c/b/{name.replace('_', '/')} in etcd" in str(error.value)


# -- ids -------------------------------------------------------------------------------------------


def other(number: int) -> Replica:
    return Replica(
        addr=f"o{number}:1", ha=f"o{number}:2", store_id=f"o{number}", boot_id="b", empty=False
    )


def test_the_first_free_id_is_taken() -> None:
    assert choose_id(view({}), REPLICA, None) == (1, 0)
    assert choose_id(view({1: other(1), 3: other(3)}), REPLICA, None) == (2, 0)


def test_an_id_that_the_state_names_is_not_free() -> None:
    """Its replica would be taken for one that has the messages."""
    assert choose_id(view({}, state=STATE_VALUE), REPLICA, None) == (4, 0)


def test_a_broker_keeps_its_id() -> None:
    known = view({1: other(1), 2: REPLICA}, alive=(1, 2))
    assert choose_id(known, REPLICA, 2) == (2, 12)
    # It lost its identity file, or never wrote it.
    assert choose_id(known, REPLICA, None) == (2, 12)
    assert choose_id(known, REPLICA, 1) == (2, 12)


def test_a_retired_broker_gets_its_id_again_if_it_is_free() -> None:
    assert choose_id(view({1: other(1)}), REPLICA, 2) == (2, 0)


def test_an_id_belongs_to_one_store() -> None:
    assert choose_id(view({1: other(1), 2: other(2)}), REPLICA, 2) == (3, 0)
    with pytest.raises(AuthorityError, match="o2:1, which has another store"):
        choose_id(view({1: other(1), 2: other(2)}, alive=(2,)), REPLICA, 2)


def test_a_copy_of_a_store_is_refused_while_the_other_is_alive() -> None:
    moved = msgspec.structs.replace(REPLICA, addr="h9:10911")
    known = view({1: REPLICA}, alive=(1,))
    for known_id in (None, 1):
        with pytest.raises(IdentityHeld, match="h1:10911 is alive as replica 1"):
            choose_id(known, moved, known_id)
    # A broker that moved, with its disk.
    assert choose_id(view({1: REPLICA}), moved, 1) == (1, 11)


def test_the_number_of_replicas_is_limited() -> None:
    full = {number: other(number) for number in range(1, REPLICAS_MAX + 1)}
    with pytest.raises(AuthorityError, match=f"{REPLICAS_MAX} replicas, which is the limit"):
        choose_id(view(full), REPLICA, None)
    last = dict(list(full.items())[:-1])
    assert choose_id(view(last), REPLICA, None) == (REPLICAS_MAX, 0)
    assert choose_id(view(last), REPLICA, 9999) == (REPLICAS_MAX, 0)
