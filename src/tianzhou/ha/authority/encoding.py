"""The JSON of the keys of a group.

    state        {"group":"9f3c","epoch":7,"master":2,"masterIncarnation":91,"inSync":[2,3],...}
    replicas/2   {"addr":"h2:10911","ha":"h2:10912","storeId":"ab12","bootId":"77","empty":false}
    alive/2      {"incarnation":91,"epoch":7,"end":5000,"confirm":4800}
    wish         {"switchTo":3,"epoch":7,"by":"..."} or {"force":3,"epoch":7,"acceptLoss":true}

Unknown fields are ignored, so that a group can be upgraded member by member. What cannot be valid
(a negative epoch, a member twice) is refused: a state that was edited by hand must not elect.
"""

from typing import TypeVar

import msgspec

from tianzhou.errors import AuthorityError
from tianzhou.ha.authority.values import (
    HISTORY_MAX,
    REPLICAS_MAX,
    Alive,
    GroupState,
    Replica,
    Wish,
)
from tianzhou.limits import ETCD_VALUE_BYTES_MAX

_INT32_MAX = 2**31 - 1

T = TypeVar("T")


def encode(value: GroupState | Replica | Alive | Wish) -> bytes:
    """The content of the key of a value.

    Raises AuthorityError for a state that no replica could read any more.
    """
    problem = _problem_with(value) if isinstance(value, GroupState) else None
    if problem is not None:
        raise AuthorityError(f"the new state of the group would not be valid: {problem}")
    return msgspec.json.encode(value)


def decode_state(content: bytes) -> GroupState:
    """Raises AuthorityError."""
    state = _decode(content, GroupState, "state")
    problem = _problem_with(state)
    if problem is not None:
        raise AuthorityError(f"the state of the group is not valid: {problem}")
    return state


def decode_replica(content: bytes) -> Replica:
    """Raises AuthorityError."""
    return _decode(content, Replica, "replicas/ID")


def decode_alive(content: bytes) -> Alive:
    """Raises AuthorityError."""
    return _decode(content, Alive, "alive/ID")


def decode_wish(content: bytes) -> Wish:
    """Raises AuthorityError."""
    return _decode(content, Wish, "wish")


def _decode(content: bytes, kind: type[T], key: str) -> T:
    if len(content) > ETCD_VALUE_BYTES_MAX:
        raise AuthorityError(
            f"the key {key} has {len(content)} bytes, at most {ETCD_VALUE_BYTES_MAX}"
        )
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise AuthorityError(f"the key {key} cannot be read: {error}: {content[:200]!r}") from error


def _problem_with(state: GroupState) -> str | None:
    if not state.group:
        return "it has no group id"
    if not 0 <= state.epoch <= _INT32_MAX:
        return f"epoch {state.epoch}"
    if state.min_in_sync < 1:
        return f"minInSync {state.min_in_sync}"
    if len(state.history) > HISTORY_MAX:
        return f"{len(state.history)} switches in its history, at most {HISTORY_MAX}"
    for name, ids in (("inSync", state.in_sync), ("lost", state.lost)):
        if len(set(ids)) != len(ids) or not all(1 <= each <= REPLICAS_MAX for each in ids):
            return f"{name} {list(ids)}"
    if state.master is not None and state.master not in state.in_sync:
        return f"master {state.master} is not in inSync {list(state.in_sync)}"
    return None
