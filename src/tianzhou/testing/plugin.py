"""Fixtures for pytest: `rocketmq`, a cluster for one test, and `rocketmq_session`, one for all.

    def test_orders(rocketmq):
        rocketmq.create_topic("orders")
        ...

A mark configures the cluster of one test: `@pytest.mark.rocketmq(brokers=2, topics={"orders": 4})`
has the arguments of `Cluster`. The shared cluster has default settings; use names of topics and
groups that no other test uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

# pytest loads this module wherever Tianzhou is installed; the servers are imported by the fixtures.
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tianzhou.testing.cluster import Cluster

MARK = "rocketmq"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers", f"{MARK}(brokers, topics, folder, **settings): the cluster of the fixture"
    )


@pytest.fixture
def rocketmq(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster for one test."""
    from tianzhou.testing.cluster import Cluster

    mark = cast("pytest.Function", request.node).get_closest_marker(MARK)
    options: dict[str, Any] = dict(mark.kwargs) if mark else {}
    with Cluster(**options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def rocketmq_session() -> Iterator[Cluster]:
    """A running cluster for all tests."""
    from tianzhou.testing.cluster import Cluster

    with Cluster() as cluster:
        yield cluster
