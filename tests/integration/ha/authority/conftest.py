"""Clusters of etcd, shared by the tests of a module."""

from collections.abc import Iterator

import pytest
from tests.support.etcd import EtcdCluster, etcd_cluster
from tests.support.etcd_programs import RELEASES


@pytest.fixture(
    scope="module",
    params=["", *(pytest.param(release, marks=pytest.mark.full) for release in RELEASES)],
    ids=lambda release: f"etcd {release or 'installed'}",
)
def release(request: pytest.FixtureRequest) -> str:
    """A release of etcd, empty for the installed one."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def etcd(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd"), release=release) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def etcd3(release: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """Three members; a test that kills or stops some starts them again."""
    with etcd_cluster(tmp_path_factory.mktemp("etcd3"), 3, release=release) as cluster:
        yield cluster
