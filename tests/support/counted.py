"""A stand-in for the set of replicas that must acknowledge, as the driver of the role counts it.

counted = Counted(in_force=2)
broker.serving.show_confirmed(0)
broker.serving.begin_session(counted)
confirm(broker.serving, counted, log_offset)
"""

import asyncio
from dataclasses import dataclass

from tianzhou.broker.requests.loop_gap import LoopGap
from tianzhou.broker.server import Broker
from tianzhou.broker.storing.serving import Serving


@dataclass(slots=True)
class Counted:
    """Meets `tianzhou.broker.storing.in_sync.CountedSet`."""

    confirm: int = 0
    in_force: int = 2


def confirm(serving: Serving, counted: Counted, log_offset: int) -> None:
    """All members have acknowledged the log up to there."""
    counted.confirm = max(counted.confirm, log_offset)
    serving.confirm(counted.confirm)


GAP_MAX_MS = 60_000
"""So long that the loop of a test never stands still for it."""


class MovedGap:
    """A gap of the event loop whose clock and check a test moves."""

    def __init__(self) -> None:
        self.now_ms = 1000
        self.checked = asyncio.Event()
        self.gaps: list[int] = []
        self.gap = LoopGap(GAP_MAX_MS, self._check, lambda: self.now_ms)
        self.gap.start()

    async def _check(self, gap_ms: int) -> None:
        self.gaps.append(gap_ms)
        await self.checked.wait()


def obey(broker: Broker) -> MovedGap:
    """Have a broker with fixed roles hold back and refuse requests as with failover."""
    core, gap = broker._core, MovedGap()  # pyright: ignore[reportPrivateUsage]
    assert core is not None
    core.pipeline.obey(broker.serving, gap.gap)
    return gap
