"""A real cluster for tests: nameserver and brokers on free ports, stores in a temporary folder.

    from tianzhou.testing import Cluster

    with Cluster(topics={"orders": 4}) as cluster:
        use(cluster.namesrv_address)
        cluster.advance(seconds=10)         # messages delayed by 10 s are due now

For pytest there are fixtures, see `tianzhou.testing.plugin`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

# pytest imports this package with the plugin, so the servers are imported lazily.
if TYPE_CHECKING:
    from tianzhou.testing.cluster import Cluster
    from tianzhou.testing.moving_clock import MovingClock

__all__ = ["Cluster", "MovingClock"]


def __getattr__(name: str) -> object:
    if name in __all__:
        module = "cluster" if name == "Cluster" else "moving_clock"
        return getattr(import_module(f"tianzhou.testing.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
