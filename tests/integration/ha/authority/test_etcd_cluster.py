"""Three members of etcd: killed, stopped, cut to a minority, started again."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import pytest
from tests.support.brokers import eventually
from tests.support.etcd import EtcdCluster
from tests.support.etcd_groups import (
    LEASE_S,
    a_replica,
    a_state,
    an_alive,
    authority_on,
    new_group,
)

from tianzhou.errors import AuthorityError
from tianzhou.ha.authority.etcd import READ_BUDGET_S, EtcdAuthority
from tianzhou.ha.authority.etcd_keys import GroupKeys
from tianzhou.ha.authority.values import Outcome, Proposal, Result, View

PATIENCE_S = 20.0


@pytest.fixture(autouse=True)
def whole(etcd3: EtcdCluster) -> Iterator[None]:
    """Every test begins with three healthy members."""
    yield
    for member in etcd3.members:
        if member.is_stopped:
            member.resume()
    etcd3.start()


@pytest.fixture
def keys() -> GroupKeys:
    return new_group()


@pytest.fixture
async def authority(etcd3: EtcdCluster, keys: GroupKeys) -> AsyncIterator[EtcdAuthority]:
    async with authority_on(etcd3, keys) as authority:
        yield authority


async def proposed(authority: EtcdAuthority, epoch: int) -> Outcome:
    """A change of the state that certainly took effect, as the state machine repeats it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        try:
            view = await authority.read()
        except AuthorityError:
            continue
        if view.state == a_state(1, epoch):
            return Outcome(Result.OK, view.revision)
        await authority.propose(Proposal(state=a_state(1, epoch), revision=view.revision))
    raise AssertionError(f"no change took effect within {PATIENCE_S} s")


async def shown(seen: list[View], outcome: Outcome) -> None:
    """A follower sees a change, although its watch may have ended meanwhile."""
    await eventually(
        lambda: seen[-1].revision >= outcome.revision, "the change is watched", PATIENCE_S
    )


async def following(authority: EtcdAuthority, seen: list[View]) -> None:
    """As a broker follows the state: read, watch, and again when the watch ends."""
    while True:
        try:
            view = await authority.read()
            seen.append(view)
            async with aclosing(authority.watch(view.read_revision)) as views:
                async for changed in views:
                    seen.append(changed)  # noqa: PERF401 - others see them as they come
        except AuthorityError:
            await asyncio.sleep(0.05)


@pytest.fixture
async def seen(authority: EtcdAuthority) -> AsyncIterator[list[View]]:
    """The views of a follower."""
    seen: list[View] = []
    task = asyncio.create_task(following(authority, seen))
    await eventually(lambda: seen, "the first view", PATIENCE_S)
    yield seen
    task.cancel()
    await asyncio.wait((task,))
    revisions = [view.read_revision for view in seen]
    assert revisions == sorted(revisions)


async def test_the_death_of_the_leader_is_survived(
    etcd3: EtcdCluster, authority: EtcdAuthority, seen: list[View]
) -> None:
    joined = await authority.join(a_replica(1), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    for epoch in range(1, 3):
        etcd3.leader().kill()
        outcome = await proposed(authority, epoch)
        await shown(seen, outcome)
        await authority.keep_alive(an_alive(joined.incarnation))
        await asyncio.to_thread(etcd3.start)
    assert seen[-1].state == a_state(1, 2)


async def test_a_stopped_member_costs_less_than_the_lease(
    etcd3: EtcdCluster, authority: EtcdAuthority, seen: list[View]
) -> None:
    """It accepts connections and never answers. The watch on it ends by itself."""
    joined = await authority.join(a_replica(1), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    # The client has used the first member so far; the leader is another one.
    leader = etcd3.leader()
    first = etcd3.members[0] if leader is not etcd3.members[0] else None
    (first or leader).stop()
    began_s = time.monotonic()
    while True:
        try:
            await authority.keep_alive(an_alive(joined.incarnation))
            break
        except AuthorityError:
            # Only while a new leader is elected.
            assert first is None
            assert time.monotonic() - began_s < PATIENCE_S
    if first is not None:
        assert time.monotonic() - began_s < LEASE_S / 3
    outcome = await proposed(authority, 1)
    await shown(seen, outcome)


async def test_a_minority_answers_nothing_and_says_why(
    etcd3: EtcdCluster, keys: GroupKeys, authority: EtcdAuthority, seen: list[View]
) -> None:
    before = await authority.propose(Proposal(state=a_state(), revision=0))
    last = etcd3.leader()
    for member in etcd3.members:
        if member is not last:
            member.kill()
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(AuthorityError) as error:
        await authority.read()
    assert loop.time() - began_s < READ_BUDGET_S + 1
    assert "connection refused" in str(error.value)
    proposal = Proposal(state=a_state(2, 2), revision=before.revision)
    assert (await authority.propose(proposal)).result is Result.UNKNOWN
    # Once the last member has noticed, it says so at once.
    async with authority_on(last.endpoint, keys) as alone:

        async def reason() -> bool:
            try:
                await alone.read()
            except AuthorityError as error:
                return "no leader: fewer than a majority" in str(error)
            return False

        await eventually(reason, "no leader", PATIENCE_S)
    await asyncio.to_thread(etcd3.start)
    outcome = await proposed(authority, 3)
    await shown(seen, outcome)


async def test_all_members_are_killed_and_come_back(
    etcd3: EtcdCluster, authority: EtcdAuthority, seen: list[View]
) -> None:
    joined = await authority.join(a_replica(1), None)
    await authority.keep_alive(an_alive(joined.incarnation))
    before = await authority.propose(Proposal(state=a_state(), revision=0))
    for member in etcd3.members:
        member.kill()
    with pytest.raises(AuthorityError, match="connection refused"):
        await authority.keep_alive(an_alive(joined.incarnation))
    await asyncio.to_thread(etcd3.start)
    view = await authority.read()
    assert (view.revision, view.state) == (before.revision, a_state())
    await authority.keep_alive(an_alive(joined.incarnation))
    assert set((await authority.read()).alive) == {1}
    outcome = await proposed(authority, 2)
    await shown(seen, outcome)


async def test_an_etcd_that_was_set_up_anew_is_refused_while_this_process_runs(
    etcd3: EtcdCluster, keys: GroupKeys, authority: EtcdAuthority
) -> None:
    """The same peers have the same cluster id, so only revisions and terms show it."""
    for epoch in range(1, 6):
        await proposed(authority, epoch)
    old = await authority.read()
    await asyncio.to_thread(etcd3.set_up_anew)
    with pytest.raises(AuthorityError, match="restored from a backup"):
        await authority.read()
    async with authority_on(etcd3, keys) as restarted:
        view = await restarted.read()
    assert (view.cluster_id, view.revision, view.state) == (old.cluster_id, 0, None)
