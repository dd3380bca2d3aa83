"""A stand-in for the slaves of a broker: how far they are, and whether they are in reach.

slaves = StandInReplicas()
async with running_broker(tmp_path) as broker:
    slaves.attach(broker.durability)
    slaves.acknowledge(broker.store.end_log_offset)
"""

from collections.abc import Callable
from dataclasses import dataclass

from tianzhou.broker.storing.durability import Durability


@dataclass(slots=True)
class StandInReplicas:
    """Does what a test says; meets `tianzhou.broker.storing.durability.Replicas`."""

    replicated_log_offset: int = 0
    in_reach: bool = True
    asked_count: int = 0
    """How often a send or a copy depended on the reach."""
    on_advance: Callable[[], None] = lambda: None

    def attach(self, durability: Durability) -> None:
        """Stand in for the slaves of a running broker."""
        durability.replicas = self
        self.on_advance = durability.replicas_advanced

    def are_in_reach(self, end_log_offset: int) -> bool:
        assert end_log_offset >= self.replicated_log_offset
        self.asked_count += 1
        return self.in_reach

    def acknowledge(self, log_offset: int) -> None:
        self.replicated_log_offset = log_offset
        self.on_advance()
