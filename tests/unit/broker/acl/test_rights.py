"""Retry topics whose names can mean more than one group."""

import pytest
from tests.unit.broker.acl.attacks import request

from tianzhou.broker.acl.accounts import Account, make_account
from tianzhou.broker.acl.needs import SUB, Kind, MessageTopic, Need, needs_of, topic_need
from tianzhou.broker.acl.rights import Rights
from tianzhou.protocol.bodies.auth import PlainAccessConfig
from tianzhou.protocol.codes import RequestCode
from tianzhou.remoting.scheduler import at_once

TOPICS = {"bills", "svc_bills", "plain", "svc"}
GROUPS = {"order_svc", "order", "own", "order_svc_bills"}


def account(*, groups: list[str], topics: list[str]) -> Account:
    """An account with every permission except the denied ones."""
    return make_account(
        PlainAccessConfig(
            access_key="account",
            secret_key="long-enough",  # noqa: S106 - of a test
            default_topic_perm="PUB|SUB",
            default_group_perm="SUB",
            group_perms=groups,
            topic_perms=topics,
        )
    )


def has(of: Account, need: Need) -> bool:
    return Rights(TOPICS.__contains__, GROUPS.__contains__).has(of, need)


@pytest.mark.parametrize("name", ["order_svc_bills", "order_svc+bills"])
@pytest.mark.parametrize("denied", [(["order_svc=DENY"], []), ([], ["bills=DENY"])])
def test_permission_for_all_groups_excludes_the_pop_retries_of_a_denied_group(
    name: str, denied: tuple[list[str], list[str]]
) -> None:
    groups, topics = denied
    need = topic_need(f"%RETRY%{name}", SUB)
    assert not has(account(groups=groups, topics=topics), need)
    assert has(account(groups=[], topics=[]), need)


def test_listed_group_has_its_retries_although_the_name_is_ambiguous() -> None:
    of = account(groups=["order_svc_bills=SUB", "order_svc=DENY"], topics=[])
    assert has(of, topic_need("%RETRY%order_svc_bills", SUB))
    assert not has(of, topic_need("%RETRY%order_svc", SUB))


def test_nothing_is_sent_back_into_the_pop_retries_of_a_denied_group() -> None:
    back = request(RequestCode.CONSUMER_SEND_MSG_BACK, group="order_svc_bills", offset=7)
    needs = at_once(needs_of(back, lambda _: MessageTopic("plain", "plain")))
    assert needs is not None
    of = account(groups=["order_svc=DENY"], topics=[])
    assert [has(of, need) for need in needs] == [False, True]
    assert all(has(account(groups=[], topics=[]), need) for need in needs)


def test_pop_returns_no_retries_of_a_denied_group() -> None:
    def pop(of: Account, group: str, topic: str) -> bool:
        return has(of, Need(Kind.POP_RETRIES, f"{group}/{topic}", SUB))

    # %RETRY%order_svc is that of the group order_svc as well.
    denied = account(groups=["order_svc=DENY"], topics=[])
    assert not pop(denied, "order", "svc")
    # %RETRY%order_svc_bills has retries of order_svc for bills, and of order for svc_bills.
    assert not pop(denied, "order", "svc_bills")
    assert pop(denied, "own", "plain")
    listed = account(groups=["order_svc=DENY", "order=SUB"], topics=["svc_bills=SUB"])
    assert pop(listed, "order", "svc_bills")
