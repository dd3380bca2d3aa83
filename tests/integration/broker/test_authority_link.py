"""The driver's connection to a real etcd: when the lease is renewed, and when it is not."""

import itertools
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.brokers import eventually
from tests.support.etcd import EtcdCluster, etcd_cluster

from tianzhou.broker.replication.authority_link import AuthorityLink
from tianzhou.clock import boot_ms
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.etcd_client import EtcdClient
from tianzhou.ha.authority.etcd_endpoints import EtcdAccess, parse_endpoints
from tianzhou.ha.authority.etcd_keys import group_keys
from tianzhou.ha.authority.values import Alive, Replica, View
from tianzhou.ha.roles.events import Event, IdentityInUse, Joined, LeaseRenewed, Viewed

_names = (f"link-{number}" for number in itertools.count())
LEASE_S = 2


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


class Member:
    """A process of a group that only renews its lease."""

    def __init__(self, etcd: EtcdCluster, name: str, store_id: str) -> None:
        self.events: list[Event] = []
        self.may_renew = True
        access = EtcdAccess(endpoints=parse_endpoints(etcd.endpoints))
        self.authority = EtcdAuthority(
            EtcdClient(access, boot_ms), group_keys("c", name), LEASE_S, boot_ms
        )
        replica = Replica(addr="a:1", ha="a:2", store_id=store_id, boot_id="b", empty=True)
        self.link = AuthorityLink(
            self.authority, self.events.append, replica=lambda: replica, alive=self.alive,
            may_renew=lambda: self.may_renew, lease_ms=LEASE_S * 1000, clock=boot_ms,
        )  # fmt: skip

    def alive(self) -> Alive | None:
        joined = self.last(Joined)
        if joined is None:
            return None
        return Alive(incarnation=joined.incarnation, epoch=1, end=0, confirm=0)

    def last(self, kind: type[Joined]) -> Joined | None:
        return next((each for each in reversed(self.events) if isinstance(each, kind)), None)

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(each, kind) for each in self.events)

    def view(self) -> View | None:
        views = [each.view for each in self.events if isinstance(each, Viewed)]
        return views[-1] if views else None


@asynccontextmanager
async def member(
    etcd: EtcdCluster, name: str, known_id: int | None = None, store_id: str = "s"
) -> AsyncGenerator[Member]:
    made = Member(etcd, name, store_id)
    made.link.start(known_id)
    try:
        yield made
    finally:
        await made.link.stop()


async def test_a_member_joins_reads_and_renews_its_lease(etcd: EtcdCluster) -> None:
    async with member(etcd, next(_names)) as one:
        await eventually(lambda: one.count(LeaseRenewed) >= 3, "renewals")
        view = one.view()
        assert view is not None
        assert 1 in view.replicas
        await eventually(lambda: (v := one.view()) and 1 in v.alive, "the own key by the watch")


async def test_a_process_that_hangs_loses_its_lease(etcd: EtcdCluster) -> None:
    """R13: nothing else shows others that it cannot store."""
    name = next(_names)
    async with member(etcd, name) as one, member(etcd, name, store_id="t") as other:
        await eventually(lambda: one.last(Joined), "its id")
        joined = one.last(Joined)
        assert joined is not None

        def is_alive() -> bool | None:
            view = other.view()
            return None if view is None else joined.id in view.alive

        await eventually(is_alive, "the lease")
        one.may_renew = False
        await eventually(lambda: is_alive() is False, "the end of the lease")
        one.may_renew = True
        await eventually(is_alive, "another lease")


async def test_a_stop_ends_the_lease_at_once(etcd: EtcdCluster) -> None:
    name = next(_names)
    async with member(etcd, name, store_id="t") as other:
        async with member(etcd, name) as one:
            await eventually(lambda: one.count(LeaseRenewed), "a lease")
            key = one.last(Joined)
            assert key is not None
            await eventually(lambda: (v := other.view()) and key.id in v.alive, "the key")
        await eventually(lambda: (v := other.view()) and key.id not in v.alive, "no key")


async def test_an_etcd_that_comes_back_is_used_again(etcd: EtcdCluster) -> None:
    async with member(etcd, next(_names)) as one:
        await eventually(lambda: one.count(LeaseRenewed), "a lease")
        etcd.members[0].stop()
        try:
            await eventually(lambda: one.link.problem, "a problem")
        finally:
            etcd.members[0].resume()
        seen = one.count(LeaseRenewed)
        await eventually(lambda: one.count(LeaseRenewed) > seen, "renewals")
        await eventually(lambda: one.link.problem is None, "no problem")


@pytest.mark.parametrize(
    "content",
    [b"<html>", b'{"x":' + b"[" * 60_000, b'{"group":"\xff"}'],
    ids=["html", "deep", "utf8"],
)
async def test_a_state_that_cannot_be_read_is_a_problem_until_it_is_corrected(
    etcd: EtcdCluster, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    """The lease is renewed meanwhile, which neither hides the problem nor fills the log."""
    caplog.set_level(logging.INFO, "tianzhou.broker.replication.authority_link")
    name = next(_names)
    key = f"{group_keys('c', name).prefix.decode()}state"
    async with member(etcd, name) as one:
        await eventually(lambda: one.count(LeaseRenewed), "a lease")
        etcd.put(key, content)
        await eventually(lambda: one.link.problem, "a problem")
        caplog.clear()
        seen = one.count(LeaseRenewed)
        shown = set[str | None]()

        def is_renewed() -> bool:
            shown.add(one.link.problem)
            return one.count(LeaseRenewed) > seen + 2

        await eventually(is_renewed, "renewals")
        assert all(each and key in each for each in shown), shown
        assert not caplog.records
        etcd.delete(key)
        views = one.count(Viewed)
        await eventually(lambda: one.count(Viewed) > views, "views")
        await eventually(lambda: one.link.problem is None, "no problem")


async def test_a_process_that_outlives_the_lease_of_an_earlier_one_is_another(
    etcd: EtcdCluster,
) -> None:
    """A copied store, not a restart."""
    name = next(_names)
    async with member(etcd, name) as one:
        await eventually(lambda: one.count(LeaseRenewed), "a lease")
        # A restart at the same address: the key is still that of the former process.
        async with member(etcd, name, 1) as copy:
            await eventually(lambda: copy.count(IdentityInUse), "the other process")
            assert copy.count(LeaseRenewed) == 0
