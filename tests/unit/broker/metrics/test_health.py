"""Health pages for load balancers: 200 only for what is certain at this moment."""

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tianzhou.broker.config import BrokerRole
from tianzhou.broker.handlers.deps import Deps
from tianzhou.broker.metrics.health import (
    BadQuery,
    health_pages,
    in_sync_verdict,
    lag_of,
    liveness_verdict,
    master_verdict,
    readiness_verdict,
    slave_verdict,
)
from tianzhou.broker.replication.status import FOLLOWING, MasterRow
from tianzhou.broker.storing.serving import Refusal
from tianzhou.ha.authority.values import GroupState
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Mode

STATE = GroupState(group="g", epoch=4, master=1, in_sync=(1, 2))


def a_master_row(state: str = FOLLOWING, behind: int | None = 100) -> MasterRow:
    return MasterRow(
        address="h:1", ha_address="h:2", state=state, is_ours=True, bytes_per_second=0,
        master_end=None, behind_bytes=behind, last_read_ms=0,
    )  # fmt: skip


def deps_of(*, is_slave: bool = False, row: MasterRow | None = None, **failover: Any) -> Deps:  # noqa: ANN401
    """A broker of a group; `is_fixed` makes it one with a fixed role."""
    is_fixed = failover.pop("is_fixed", False)
    refusal = failover.pop("store_refusal", None)
    role = SimpleNamespace(
        state=STATE, untrusted=None, stopped=None, followed_session=4,
        id=2 if is_slave else 1, mode=Mode.SLAVE if is_slave else Mode.MASTER,
    )  # fmt: skip
    vars(role).update(failover.pop("role", {}))
    serving = SimpleNamespace(writes=None, reads=None)
    vars(serving).update(failover.pop("serving", {}))
    values = {
        "role": role, "serving": serving, "can_promise": True, "is_master": not is_slave,
        "link": SimpleNamespace(problem=failover.pop("problem", None)), "is_healthy": lambda: True,
    } | failover  # fmt: skip
    config = SimpleNamespace(
        is_slave=is_slave, broker_name="b", broker_id=0, broker_role=BrokerRole.SYNC_MASTER
    )
    return cast(
        "Deps",
        SimpleNamespace(
            settings=SimpleNamespace(config=config), store=SimpleNamespace(refusal=refusal),
            failover=None if is_fixed else SimpleNamespace(**values),
            replication_status=lambda: SimpleNamespace(master=row),
        ),
    )  # fmt: skip


def test_a_master_answers_only_while_it_certainly_is_one() -> None:
    assert master_verdict(deps_of()).is_ok
    assert not master_verdict(deps_of(can_promise=False)).is_ok
    refusal = Refusal(14, "suspended")
    assert master_verdict(deps_of(serving={"writes": refusal})) == (False, "suspended")
    assert "disk full" in master_verdict(deps_of(store_refusal="disk full")).reason
    assert not master_verdict(deps_of(is_slave=True)).is_ok


def test_a_slave_answers_while_it_follows_and_is_near() -> None:
    assert slave_verdict(deps_of(is_slave=True, row=a_master_row())).is_ok
    assert slave_verdict(deps_of(is_slave=True, row=a_master_row()), 100).is_ok
    assert slave_verdict(deps_of(is_slave=True, row=a_master_row()), 99) == (
        False, "100 bytes behind its master"
    )  # fmt: skip
    assert not slave_verdict(deps_of(is_slave=True, row=a_master_row(behind=None)), 99).is_ok
    assert "connecting" in slave_verdict(deps_of(is_slave=True, row=a_master_row("connecting")))[1]
    assert not slave_verdict(deps_of(is_slave=True)).is_ok
    assert not slave_verdict(deps_of(row=a_master_row())).is_ok
    refused = deps_of(is_slave=True, row=a_master_row(), serving={"reads": Refusal(14, "no role")})
    assert slave_verdict(refused) == (False, "no role")
    stopped = {"stopped": Reason(Code.BELOW_CONFIRMED, "cut")}
    assert not slave_verdict(deps_of(is_slave=True, row=a_master_row(), role=stopped)).is_ok


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"problem": "etcd is down"}, "not known now: etcd is down"),
        ({"role": {"state": None}}, "not known"),
        ({"role": {"untrusted": Reason(Code.EPOCH_WENT_BACK, "old")}}, "not known"),
        ({"role": {"id": 3}}, "in sync: 1, 2"),
        ({"role": {"followed_session": 3}}, "follows another epoch than 4"),
        ({"is_fixed": True}, "without automatic failover"),
    ],
)
def test_a_member_answers_only_by_the_present_state(values: dict[str, Any], why: str) -> None:
    assert in_sync_verdict(deps_of(is_slave=True, row=a_master_row())).is_ok
    verdict = in_sync_verdict(deps_of(is_slave=True, row=a_master_row(), **values))
    assert not verdict.is_ok
    assert why in verdict.reason


def test_a_master_is_in_sync_while_it_certainly_is_the_master() -> None:
    assert in_sync_verdict(deps_of()).is_ok
    assert not in_sync_verdict(deps_of(can_promise=False)).is_ok
    assert not in_sync_verdict(deps_of(is_slave=True, row=a_master_row("refused"))).is_ok


def test_readiness_and_liveness() -> None:
    assert readiness_verdict(deps_of()).is_ok
    assert readiness_verdict(deps_of(is_slave=True, row=a_master_row())).is_ok
    assert not readiness_verdict(deps_of(is_slave=True)).is_ok
    assert liveness_verdict(deps_of(is_slave=True, can_promise=False)).is_ok
    assert not liveness_verdict(deps_of(is_healthy=lambda: False)).is_ok


def test_fixed_roles_have_the_pages_as_well() -> None:
    assert master_verdict(deps_of(is_fixed=True)).is_ok
    assert slave_verdict(deps_of(is_fixed=True, is_slave=True, row=a_master_row())).is_ok
    assert liveness_verdict(deps_of(is_fixed=True)).is_ok


@pytest.mark.parametrize(
    "query", ["lag=", "lag=x", "lag=-1", "lag=1&lag=2", "x=1", "lag=" + "9" * 19]
)
def test_queries_that_cannot_be_read_are_refused(query: str) -> None:
    with pytest.raises(BadQuery):
        lag_of(query)


def test_pages_are_json_with_the_reason() -> None:
    assert (lag_of(""), lag_of("lag=0"), lag_of("lag=5")) == (None, 0, 5)
    pages = health_pages(deps_of(can_promise=False))
    page = pages["/master"]("")
    content = json.loads(page.body)
    assert (page.status, page.content_type) == (503, "application/json")
    assert (content["status"], content["role"], content["epoch"]) == ("unavailable", "master", 4)
    assert "lease" in content["reason"]
    assert pages["/slave"]("lag=x").status == 400
