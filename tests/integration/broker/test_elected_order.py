"""The order in which an elected broker does what the state machine says.

Each test makes one step slow, and records at its end whether a later step was done already.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.elected_brokers import failover, group_of
from tests.support.etcd import EtcdCluster, etcd_cluster

from tianzhou.broker.elected import ElectedBroker
from tianzhou.ha.authority.etcd import EtcdAuthority
from tianzhou.ha.authority.values import Outcome, Proposal
from tianzhou.ha.epochs import EpochFile, Epochs
from tianzhou.ha.replica_facts import FactsFile, ReplicaFacts
from tianzhou.ha.roles.events import Switch

SLOW_S = 0.3


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with etcd_cluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


async def test_a_slave_reports_only_when_the_followed_epoch_is_on_disk(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5, R9: else it could follow an older master after a restart."""
    async with group_of(tmp_path, etcd, 1) as group:
        master = await group.master()
        reports: list[int] = []
        save = FactsFile.save

        def slow(file: FactsFile, facts: ReplicaFacts) -> None:
            if facts.followed_epoch > file.facts.followed_epoch:
                time.sleep(SLOW_S)
                session = failover(master).role.session
                assert session is not None
                reports.append(len(session.slaves))
            save(file, facts)

        monkeypatch.setattr(FactsFile, "save", slow)
        await group.start()
        await group.in_sync(master, 2)
        assert reports == [0]


async def test_a_candidate_leaves_its_master_before_it_proposes_itself(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6 a: else it acknowledges to the old master what the new epoch does not have."""
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        second = next(each for each in group.brokers if each is not first)
        connected: list[bool] = []
        propose = EtcdAuthority.propose

        async def noted(authority: EtcdAuthority, proposal: Proposal) -> Outcome:
            if proposal.state.master == failover(second).role.id:
                connected.append(failover(second).follower.is_connected)
            return await propose(authority, proposal)

        monkeypatch.setattr(EtcdAuthority, "propose", noted)
        await failover(first).ask(Switch(), "a test")
        await group.master(other_than=first)
        assert connected[0] is False


async def test_a_new_master_serves_only_when_its_epoch_is_on_disk(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5, R6 d: else its records have no epoch after a crash."""
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        second = next(each for each in group.brokers if each is not first)
        served: list[bool] = []
        save = EpochFile.save

        def slow(file: EpochFile, epochs: Epochs) -> None:
            is_own = file is failover(second).epochs
            if is_own and epochs and epochs[-1].number == 2:
                time.sleep(SLOW_S)
                served.append(failover(second).is_master or not second.settings.config.is_slave)
            save(file, epochs)

        monkeypatch.setattr(EpochFile, "save", slow)
        await failover(first).ask(Switch(), "a test")
        await group.master(other_than=first)
        assert served == [False]


async def test_a_new_master_serves_only_when_the_epoch_it_follows_is_on_disk(
    tmp_path: Path, etcd: EtcdCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R5, R6 d: else it could report to the old master after a crash."""
    async with group_of(tmp_path, etcd) as group:
        first = await group.master()
        await group.in_sync(first, 2)
        on_disk: list[tuple[int, int]] = []
        become_master = ElectedBroker.become_master

        async def noted(elected: ElectedBroker, epoch: int) -> None:
            config = next(
                each.settings.config for each in group.brokers
                if failover(each) is elected.failover
            )  # fmt: skip
            facts = FactsFile(
                config.root_directory, config.broker_cluster_name, config.broker_name
            ).facts
            on_disk.append((epoch, facts.followed_epoch))
            await become_master(elected, epoch)

        monkeypatch.setattr(ElectedBroker, "become_master", noted)
        await failover(first).ask(Switch(), "a test")
        await group.master(other_than=first)
        assert on_disk == [(2, 2)]
