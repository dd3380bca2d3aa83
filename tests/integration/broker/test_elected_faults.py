"""Faults of an elected broker's own: files that cannot be saved, internal errors, false hellos.

The state machine and what is running must not differ afterwards, and nothing may be served that the
machine has refused.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.brokers import eventually, peer_of
from tests.support.elected_brokers import failover, group_of, send_until
from tests.support.etcd import EtcdCluster, etcd_cluster

from tianzhou.broker.elected import ElectedBroker
from tianzhou.broker.server import Broker
from tianzhou.broker.storing.serving import Refusal
from tianzhou.errors import AuthorityError, StoreBroken, StoreError
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.values import Outcome, Proposal
from tianzhou.ha.replica_facts import FactsFile, ReplicaFacts
from tianzhou.ha.roles import actions as do
from tianzhou.ha.roles import events, machine
from tianzhou.ha.roles.reasons import Code, Reason
from tianzhou.ha.roles.role import Role
from tianzhou.protocol import headers
from tianzhou.protocol.codes import RequestCode, ResponseCode
from tianzhou.protocol.headers.ha import HelloRequest, HelloResponse


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


def is_of(file: FactsFile, broker: Broker) -> bool:
    return file.path.parent == broker.settings.config.root_directory


def facts_on_disk(broker: Broker) -> ReplicaFacts:
    config = broker.settings.config
    return FactsFile(config.root_directory, config.broker_cluster_name, config.broker_name).facts


def refusal_of(broker: Broker) -> str:
    """Why writes are refused; empty if they are not."""
    writes = broker.serving.writes
    return writes.text if writes else ""


class SlowSaves:
    """Each save of facts waits for `go_on`; `begun` is set by the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        save = FactsFile.save

        def slow(file: FactsFile, facts: ReplicaFacts) -> None:
            self.begun.set()
            assert self.go_on.wait(10)
            save(file, facts)

        monkeypatch.setattr(FactsFile, "save", slow)


# -- what cannot be saved --------------------------------------------------------------------------


async def test_a_master_that_cannot_save_a_higher_epoch_becomes_a_slave_nevertheless(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would follow the new master with everything running that only a master runs."""
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        save, is_full = FactsFile.save, True

        def failing(file: FactsFile, facts: ReplicaFacts) -> None:
            if is_full and is_of(file, first) and facts.highest_epoch > 1:
                raise StoreError("no space left on the device (made up)")
            save(file, facts)

        monkeypatch.setattr(FactsFile, "save", failing)
        await failover(first).ask(events.Switch(), "a test")
        await group.master(other_than=first)
        await eventually(lambda: first.settings.config.is_slave, "the role of a slave")
        is_full = False
        await eventually(lambda: failover(first).follower.is_connected, "the connection of a slave")


async def test_the_end_of_a_session_that_failed_is_repeated_before_a_master_is_followed(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        become_slave = ElectedBroker.become_slave
        failures = iter((True,))

        async def failing(elected: ElectedBroker) -> None:
            if next(failures, False):
                raise StoreError("a table could not be read (made up)")
            await become_slave(elected)

        monkeypatch.setattr(ElectedBroker, "become_slave", failing)
        await failover(first).ask(events.Switch(), "a test")
        await group.master(other_than=first)
        await eventually(lambda: failover(first).follower.is_connected, "the connection of a slave")
        assert first.settings.config.is_slave


async def test_writers_resume_after_a_switch_although_facts_cannot_be_saved(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        execution = failover(master).execution
        execution.add([do.StopWriters()])
        await execution.done()
        assert master.serving.writes is not None

        def failing(file: FactsFile, facts: ReplicaFacts) -> None:
            raise StoreError("no space left on the device (made up)")

        monkeypatch.setattr(FactsFile, "save", failing)
        execution.add([do.Save(ReplicaFacts()), do.ResumeWriters()])
        await eventually(lambda: master.serving.writes is None, "open writers")


async def test_a_failed_fsync_is_remembered_although_other_facts_are_being_saved(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R10: after a restart it must leave the in-sync set."""
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        older = msgspec.structs.replace(driver.role.facts, confirm=driver.role.facts.confirm + 1)
        slow = SlowSaves(monkeypatch)
        driver.execution.add([do.Save(older)])
        await asyncio.to_thread(slow.begun.wait, 10)
        failure = StoreBroken("the log could not be put on the disk (made up)")
        monkeypatch.setattr(type(master.store), "disk_failure", property(lambda store: failure))
        await eventually(lambda: driver.role.stopped, "the end of its part")
        slow.go_on.set()
        await driver.execution.done()
        assert "an fsync failed" in facts_on_disk(master).unclean


async def test_a_broker_whose_facts_hang_on_their_way_to_the_disk_is_not_healthy(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: its lease ends, and it sends no heartbeats."""
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        driver = failover(await group.master())
        slow = SlowSaves(monkeypatch)
        driver.execution.add([do.Save(driver.role.facts)])
        await asyncio.to_thread(slow.begun.wait, 10)
        assert driver.is_healthy()
        monkeypatch.setattr(
            driver.execution, "_disk_since_s", asyncio.get_running_loop().time() - 6
        )
        assert not driver.is_healthy()
        slow.go_on.set()
        await driver.execution.done()
        assert driver.is_healthy()


# -- what is refused -------------------------------------------------------------------------------


async def test_an_older_permission_to_write_opens_nothing_that_was_closed_since(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        assert not refusal_of(master)
        slow = SlowSaves(monkeypatch)
        open_ = do.Serve(is_master=True, epoch=1, is_registered=True, refusal=None)
        driver.execution.add([do.Save(driver.role.facts), open_])
        await asyncio.to_thread(slow.begun.wait, 10)
        closed = do.Serve(
            is_master=True, epoch=1, is_registered=True, refusal=Reason(Code.SUSPENDED, "no lease")
        )
        driver.execution.add([closed])
        assert refusal_of(master), "refused at once, behind a slow save"
        seen: list[str] = []
        refuse = master.serving.refuse

        def noted(*, writes: Refusal | None, reads: Refusal | None) -> None:
            refuse(writes=writes, reads=reads)
            seen.append(refusal_of(master))

        monkeypatch.setattr(master.serving, "refuse", noted)
        slow.go_on.set()
        await driver.execution.done()
        assert seen == ["no lease", "no lease"]
        driver.execution.add([open_])
        await driver.execution.done()
        assert not refusal_of(master)


async def test_after_a_freeze_writes_are_refused_until_the_lease_was_renewed(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """R13: another master may have been elected meanwhile."""
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        await eventually(lambda: not refusal_of(master), "open writers")
        await driver.loop_stood_still(2000)
        assert "the lease of this master is not renewed" in refusal_of(master)
        await eventually(lambda: not refusal_of(master), "a renewal of the lease")


async def test_the_end_of_a_session_stops_writes_and_answers_what_waits_at_once(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any action is executed: nothing of the old epoch is promised in the next one."""
    async with group_of(tmp_path, etcd, 2) as group:
        master = await group.master()
        driver = failover(master)
        await group.in_sync(master, 2)
        await eventually(lambda: not refusal_of(master), "open writers")
        waiting = master.durability.wait_for(master.store.end_log_offset + 1)
        slow = SlowSaves(monkeypatch)
        driver.execution.add([do.Save(driver.role.facts)])
        await asyncio.to_thread(slow.begun.wait, 10)
        driver.put(events.IdentityInUse("made up"))
        assert refusal_of(master)
        assert waiting.result() == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert not master.settings.config.is_slave, "its features still are those of a master"
        slow.go_on.set()
        await eventually(lambda: master.settings.config.is_slave, "the role of a slave")


# -- internal errors -------------------------------------------------------------------------------


async def test_after_an_internal_error_nothing_is_decided_or_served_any_more(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        step, count = machine.step, 0

        def failing(role: Role, event: events.Event, now_ms: int) -> list[do.Action]:
            nonlocal count
            count += 1
            if count > 1:
                return step(role, event, now_ms)
            role.serve = None  # as if it had been in the middle of a change
            raise AssertionError("made up")

        monkeypatch.setattr(machine, "step", failing)
        await eventually(lambda: master.settings.config.is_slave, "the end of its session")
        assert count == 1, "the state after an error is not to be relied on"
        await eventually(lambda: not driver.is_master, "the end of its leadership")
        await eventually(lambda: not driver.is_healthy(), "the reported error")
        await eventually(lambda: not master.registered_with, "the end of its registration")
        async with peer_of(master.address) as peer:

            async def why() -> bool:
                return "internal error" in await send_until(
                    peer, ResponseCode.SERVICE_NOT_AVAILABLE
                )

            await eventually(why, "the reason in responses")
        is_done, reason = await driver.ask(events.Switch(), "a test")
        assert (is_done, reason.code) == (False, Code.FAILED)


async def test_a_proposal_is_answered_after_an_internal_error_too(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be proposed any more: no slave would join the in-sync set or leave it."""
    async with group_of(tmp_path, etcd, 1) as group:
        master = await group.master()
        propose, failures = EtcdAuthority.propose, iter((True,))

        async def failing(authority: EtcdAuthority, proposal: Proposal) -> Outcome:
            if next(failures, False):
                raise AssertionError("made up")
            return await propose(authority, proposal)

        monkeypatch.setattr(EtcdAuthority, "propose", failing)
        await group.start()
        await group.in_sync(master, 2)


async def test_a_proposal_that_fails_at_once_is_not_repeated_without_a_pause(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the user of etcd may read, and not write any more."""
    async with group_of(tmp_path, etcd, 1) as group:
        await group.master()
        began_s: list[float] = []

        async def refused(authority: EtcdAuthority, proposal: Proposal) -> Outcome:
            began_s.append(asyncio.get_running_loop().time())
            raise AuthorityError("permission denied (made up)")

        monkeypatch.setattr(EtcdAuthority, "propose", refused)
        await group.start()
        await eventually(lambda: len(began_s) > 3, "proposals")
        assert began_s[3] - began_s[0] >= 0.3


# -- false hellos ----------------------------------------------------------------------------------


async def test_a_hello_with_a_high_epoch_does_not_end_a_session(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """Nor does it while etcd cannot say that the epoch does not exist."""
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        driver = failover(master)
        session = driver.role.session
        assert session is not None
        forged = headers.encode(
            HelloRequest(
                cluster=master.settings.config.broker_cluster_name, broker_name=group.name,
                broker_id=2, store_id="forged", end_offset=0, epochs="",
                log_file_bytes=master.settings.config.mapped_file_size_commit_log,
                group=driver.role.facts.group, incarnation=2**62,
                followed_epoch=session.epoch + 5,
            )
        )  # fmt: skip
        async with peer_of(master.address) as peer:
            etcd.members[0].stop()
            try:
                refused = await peer.ask(RequestCode.HA_HELLO, forged)
                assert "the slave knows epoch 6" in (refused.remark or "")
                assert driver.role.session is session
            finally:
                etcd.members[0].resume()
            await peer.ask(RequestCode.HA_HELLO, forged)
            await send_until(peer, ResponseCode.SLAVE_NOT_AVAILABLE)
        assert driver.role.session is session


async def test_a_slave_that_must_cut_its_log_gets_no_token_for_a_connection(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    """Its first report would acknowledge what it has instead of the master's messages."""
    async with group_of(tmp_path, etcd, 1, minInSyncReplicas=1) as group:
        master = await group.master()
        config, driver = master.settings.config, failover(master)
        hello = HelloRequest(
            cluster=config.broker_cluster_name, broker_name=group.name, broker_id=2,
            store_id="2", end_offset=100, epochs="1-0",
            log_file_bytes=config.mapped_file_size_commit_log, group=driver.role.facts.group,
            incarnation=2**62, followed_epoch=1,
        )  # fmt: skip
        async with peer_of(master.address) as peer:
            answer = await peer.ask(RequestCode.HA_HELLO, headers.encode(hello))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        assert headers.decode(HelloResponse, answer.fields).token == ""


async def test_an_earlier_process_of_a_replica_does_not_replace_the_present_one(
    tmp_path: Path, etcd: EtcdCluster
) -> None:
    async with group_of(tmp_path, etcd) as group:
        master = await group.master()
        await group.in_sync(master, 2)
        config, driver = master.settings.config, failover(master)
        other = next(failover(each).role for each in group.brokers if each is not master)
        hello = HelloRequest(
            cluster=config.broker_cluster_name, broker_name=group.name, broker_id=other.id,
            store_id="2", end_offset=0, epochs="",
            log_file_bytes=config.mapped_file_size_commit_log, group=driver.role.facts.group,
            incarnation=other.incarnation - 1, followed_epoch=1,
        )  # fmt: skip
        async with peer_of(master.address) as peer:
            answer = await peer.ask(RequestCode.HA_HELLO, headers.encode(hello))
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "a newer process" in (answer.remark or "")
