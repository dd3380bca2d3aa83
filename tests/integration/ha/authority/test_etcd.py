"""The authority on a real etcd of one member: ids, leases, transactions, views."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing

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

from tianzhou.clock import steady_ms
from tianzhou.errors import AuthorityError, IdentityHeld
from tianzhou.ha.authority.etcd import ALIVE_PUT_MS, EtcdAuthority
from tianzhou.ha.authority.etcd_keys import STATE, GroupKeys, Name, group_keys
from tianzhou.ha.authority.values import Outcome, Proposal, Result, Unchanged, View, Wish
from tianzhou.limits import ETCD_KEYS_MAX

PATIENCE_S = 15.0


def key_of(keys: GroupKeys, name: Name) -> str:
    return keys.key(name).decode()


async def views(authority: EtcdAuthority, from_revision: int, seen: list[View]) -> None:
    async with aclosing(authority.watch(from_revision)) as changes:
        async for view in changes:
            seen.append(view)  # noqa: PERF401 - others see them as they come


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def watched(
    stack: AsyncExitStack, authority: EtcdAuthority, from_revision: int
) -> list[View]:
    """The views of a watch that goes on until the end of the test."""
    seen: list[View] = []
    task = asyncio.create_task(views(authority, from_revision, seen))

    async def end() -> None:
        task.cancel()
        await asyncio.wait((task,))

    stack.push_async_callback(end)
    return seen


# -- ids -------------------------------------------------------------------------------------------


async def test_three_brokers_that_join_at_the_same_time_get_different_ids(
    etcd: EtcdCluster, stack: AsyncExitStack
) -> None:
    for _ in range(5):
        keys = new_group()
        brokers = [await stack.enter_async_context(authority_on(etcd, keys)) for _ in range(3)]
        joined = await asyncio.gather(
            *(each.join(a_replica(number), None) for number, each in enumerate(brokers))
        )
        assert sorted(each.id for each in joined) == [1, 2, 3]
        view = await brokers[0].read()
        assert {each.id: each.incarnation for each in joined} == {
            replica_id: known.revision for replica_id, known in view.replicas.items()
        }


async def test_a_broker_keeps_its_id_and_gets_a_new_incarnation(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        first = await authority.join(a_replica(1), None)
        other = await authority.join(a_replica(2), None)
        again = await authority.join(a_replica(1), first.id)
        lost_its_file = await authority.join(a_replica(1), None)
    assert (first.id, other.id, again.id, lost_its_file.id) == (1, 2, 1, 1)
    assert first.incarnation < again.incarnation < lost_its_file.incarnation


async def test_an_emptied_disk_gets_another_id(etcd: EtcdCluster) -> None:
    """Otherwise a member of the in-sync set would have none of its messages."""
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        first = await authority.join(a_replica(1), None)
        emptied = await authority.join(a_replica(1, store="new"), None)
        kept_its_file = await authority.join(a_replica(1, store="newer"), first.id)
    assert (first.id, emptied.id, kept_its_file.id) == (1, 2, 3)


async def test_a_retired_id_is_used_again_but_not_while_the_state_names_it(
    etcd: EtcdCluster,
) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        for number in (1, 2, 3):
            await authority.join(a_replica(number), None)
        state = a_state(1, 1, 1, 2)
        outcome = await authority.propose(
            Proposal(state=state, revision=0, deletes=(("replicas", 3),))
        )
        assert outcome.result is Result.OK
        etcd.delete(key_of(keys, ("replicas", 2)))
        assert (await authority.join(a_replica(4), None)).id == 3
        assert (await authority.join(a_replica(5), None)).id == 4


# -- lease -----------------------------------------------------------------------------------------


async def test_a_replica_is_alive_while_its_lease_is_renewed(
    etcd: EtcdCluster, stack: AsyncExitStack
) -> None:
    keys = new_group()
    authority = await stack.enter_async_context(authority_on(etcd, keys))
    reader = await stack.enter_async_context(authority_on(etcd, keys))
    joined = await authority.join(a_replica(1), None)
    seen = await watched(stack, reader, joined.incarnation)
    sent_ms = began_ms = steady_ms()
    while steady_ms() - began_ms < LEASE_S * 1000 + 1500:
        before_ms = steady_ms()
        sent_ms = await authority.keep_alive(an_alive(joined.incarnation))
        assert before_ms <= sent_ms <= steady_ms()
        await asyncio.sleep(0.3)
    assert [set(view.alive) for view in seen] == [{1}]
    # Nothing renews it any more.
    await eventually(lambda: len(seen) > 1, "the lease expires", PATIENCE_S)
    assert seen[-1].alive == {}
    assert steady_ms() - sent_ms >= LEASE_S * 1000
    # It is put again as soon as it renews.
    await authority.keep_alive(an_alive(joined.incarnation))
    assert set((await reader.read()).alive) == {1}


async def test_the_end_of_the_log_is_put_rarely_and_the_epoch_at_once(etcd: EtcdCluster) -> None:
    now_ms = 0
    keys = new_group()
    async with authority_on(etcd, keys, clock=lambda: now_ms) as authority:
        joined = await authority.join(a_replica(1), None)

        async def put_end(end: int, epoch: int = 1) -> int:
            await authority.keep_alive(an_alive(joined.incarnation, end, epoch))
            return (await authority.read()).alive[1].value.end

        assert await put_end(5) == 5
        now_ms += ALIVE_PUT_MS - 1
        assert await put_end(6) == 5
        now_ms += 1
        assert await put_end(7) == 7
        assert await put_end(8, epoch=2) == 8


async def test_a_replica_is_gone_as_soon_as_it_closes(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys, lease_s=30) as reader:
        async with authority_on(etcd, keys, lease_s=30) as authority:
            joined = await authority.join(a_replica(1), None)
            await authority.keep_alive(an_alive(joined.incarnation))
            assert set((await reader.read()).alive) == {1}
        assert (await reader.read()).alive == {}


async def test_an_identity_is_alive_once(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as second:
        async with authority_on(etcd, keys) as first:
            joined = await first.join(a_replica(1), None)
            await first.keep_alive(an_alive(joined.incarnation))
            restarted = await second.join(a_replica(1), 1)
            with pytest.raises(IdentityHeld, match="alive/1 is held by another process"):
                await second.keep_alive(an_alive(restarted.incarnation))
            with pytest.raises(IdentityHeld, match="is alive as replica 1 with the same store"):
                await second.join(a_replica(1, addr="elsewhere:10911"), 1)
            assert (await second.read()).alive[1].value.incarnation == joined.incarnation
        await second.keep_alive(an_alive(restarted.incarnation))
        assert (await second.read()).alive[1].value.incarnation == restarted.incarnation


async def test_a_lease_or_a_key_that_is_lost_is_made_again(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        joined = await authority.join(a_replica(1), None)
        alive = an_alive(joined.incarnation)
        await authority.keep_alive(alive)
        (lease,) = etcd.members[0].post("lease/leases", {})["leases"]
        etcd.members[0].post("lease/revoke", {"ID": lease["ID"]})
        assert (await authority.read()).alive == {}
        await authority.keep_alive(alive)
        assert set((await authority.read()).alive) == {1}
        etcd.delete(key_of(keys, ("alive", 1)))
        with pytest.raises(AuthorityError, match="it is put again"):
            await authority.keep_alive(an_alive(joined.incarnation, epoch=2))
        await authority.keep_alive(an_alive(joined.incarnation, epoch=2))
        assert (await authority.read()).alive[1].value.epoch == 2


# -- transactions ----------------------------------------------------------------------------------


async def test_of_two_proposals_on_one_revision_one_takes_effect(
    etcd: EtcdCluster, stack: AsyncExitStack
) -> None:
    keys = new_group()
    brokers = [await stack.enter_async_context(authority_on(etcd, keys)) for _ in range(3)]
    revision = 0
    for epoch in range(1, 6):
        outcomes = await asyncio.gather(
            *(
                each.propose(Proposal(state=a_state(number, epoch), revision=revision))
                for number, each in enumerate(brokers, 1)
            )
        )
        results = [each.result for each in outcomes]
        assert sorted(results) == [Result.CHANGED, Result.CHANGED, Result.OK]
        winner = results.index(Result.OK)
        revision = outcomes[winner].revision
        view = await brokers[0].read()
        assert (view.revision, view.state) == (revision, a_state(winner + 1, epoch))


async def test_a_proposal_compares_further_keys_and_deletes(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        joined = await authority.join(a_replica(1), None)
        await authority.keep_alive(an_alive(joined.incarnation))
        await authority.wish(Wish(epoch=1, switch_to=1, by="test"))
        view = await authority.read()
        assert view.wish is not None
        alive, wish = view.alive[1].revision, view.wish.revision

        async def propose(*unchanged: Unchanged) -> Outcome:
            proposal = Proposal(
                state=a_state(), revision=0, unchanged=unchanged, deletes=(("wish", None),)
            )
            return await authority.propose(proposal)

        refused = (
            Unchanged(("alive", 1), 0),
            Unchanged(("alive", 2), 1),
            Unchanged(("replicas", 1), joined.incarnation + 1),
            Unchanged(("wish", None), wish + 1),
        )
        for each in refused:
            assert await propose(each) == Outcome(Result.CHANGED, view.read_revision)
        assert await authority.read() == view
        outcome = await propose(
            Unchanged(("alive", 1), alive), Unchanged(("alive", 2), 0),
            Unchanged(("replicas", 1), joined.incarnation), Unchanged(("wish", None), wish),
        )  # fmt: skip
        after = await authority.read()
        assert outcome == Outcome(Result.OK, after.revision)
        assert (after.state, after.wish) == (a_state(), None)


async def test_one_wish_is_pending_at_a_time(etcd: EtcdCluster) -> None:
    keys = new_group()
    async with authority_on(etcd, keys) as authority:
        wish = Wish(epoch=1, force=2, accept_loss=True)
        await authority.wish(wish)
        with pytest.raises(AuthorityError, match="pending"):
            await authority.wish(Wish(epoch=1, switch_to=3))
        pending = (await authority.read()).wish
        assert pending is not None
        assert pending.value == wish


async def test_a_state_that_is_too_large_is_refused_here(etcd: EtcdCluster) -> None:
    async with authority_on(etcd, new_group()) as authority:
        large = a_state()
        large = type(large)(group="g" * 70_000, epoch=1, master=1, in_sync=(1,))
        with pytest.raises(AuthorityError, match="at most 65536"):
            await authority.propose(Proposal(state=large, revision=0))


# -- views -----------------------------------------------------------------------------------------


async def test_a_watch_shows_every_change_behind_its_revision(
    etcd: EtcdCluster, stack: AsyncExitStack
) -> None:
    keys = new_group()
    authority = await stack.enter_async_context(authority_on(etcd, keys))
    first = await authority.propose(Proposal(state=a_state(), revision=0))
    # Not missed, although it happened before the watch began.
    second = await authority.propose(Proposal(state=a_state(2, 2), revision=first.revision))
    seen = await watched(stack, authority, first.revision)
    await eventually(lambda: seen, "the change before the watch", PATIENCE_S)
    assert (seen[-1].state, seen[-1].revision) == (a_state(2, 2), second.revision)
    third = await authority.propose(Proposal(state=a_state(3, 3), revision=second.revision))
    await eventually(
        lambda: seen[-1].revision == third.revision, "the change during the watch", PATIENCE_S
    )
    assert [view.read_revision for view in seen] == sorted({v.read_revision for v in seen})


async def test_a_watch_from_a_compacted_revision_reads_again(
    etcd: EtcdCluster, stack: AsyncExitStack
) -> None:
    keys = new_group()
    authority = await stack.enter_async_context(authority_on(etcd, keys))
    first = await authority.propose(Proposal(state=a_state(), revision=0))
    second = await authority.propose(Proposal(state=a_state(2, 2), revision=first.revision))
    etcd.compact()
    seen = await watched(stack, authority, first.revision - 1)
    await eventually(lambda: seen, "a view after the compaction", PATIENCE_S)
    assert seen[-1].revision == second.revision
    third = await authority.propose(Proposal(state=a_state(3, 3), revision=second.revision))
    await eventually(lambda: seen[-1].revision == third.revision, "the watch goes on", PATIENCE_S)


async def test_groups_with_any_names_are_separate(etcd: EtcdCluster) -> None:
    names = [("c", "b/state"), ("c/b", "state"), ("c%2Fb", "state"), ("c", "b"), ("ü \n", "\udce4")]
    for number, (cluster, name) in enumerate(names, 1):
        async with authority_on(etcd, group_keys(cluster, name)) as authority:
            assert await authority.read() == await authority.read()
            assert (await authority.read()).state is None
            assert (await authority.join(a_replica(number), None)).id == 1
            state = a_state(number, number)
            outcome = await authority.propose(Proposal(state=state, revision=0))
            assert outcome.result is Result.OK
    for number, (cluster, name) in enumerate(names, 1):
        async with authority_on(etcd, group_keys(cluster, name)) as authority:
            assert (await authority.read()).state == a_state(number, number)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"x" * 70_000])
async def test_wrong_content_is_an_error_that_names_the_key(
    etcd: EtcdCluster, content: bytes
) -> None:
    names: tuple[Name, ...] = (STATE, ("replicas", 2), ("alive", 3), ("wish", None))
    for name in names:
        keys = new_group()
        etcd.put(key_of(keys, name), content)
        async with authority_on(etcd, keys) as authority:
            with pytest.raises(AuthorityError) as error:
                await authority.read()
            assert key_of(keys, name) in str(error.value)
            assert "\n" not in str(error.value)
            etcd.delete(key_of(keys, name))
            assert (await authority.read()).state is None


async def test_foreign_keys_are_ignored_up_to_a_limit(etcd: EtcdCluster) -> None:
    keys = new_group()
    prefix = keys.prefix.decode()
    for number in range(ETCD_KEYS_MAX):
        etcd.put(f"{prefix}foreign/{number}", b"x")
    async with authority_on(etcd, keys) as authority:
        assert (await authority.read()).replicas == {}
        etcd.put(f"{prefix}one-more", b"x")
        with pytest.raises(AuthorityError, match=f"more than {ETCD_KEYS_MAX} keys below {prefix}"):
            await authority.read()


async def test_values_that_are_too_large_are_not_read(etcd: EtcdCluster) -> None:
    keys = new_group()
    for number in range(8):
        etcd.put(f"{keys.prefix.decode()}large/{number}", b"x" * 1_000_000)
    async with authority_on(etcd, keys) as authority:
        with pytest.raises(AuthorityError, match="a body of at least"):
            await authority.read()
    for number in range(8):
        etcd.delete(f"{keys.prefix.decode()}large/{number}")
