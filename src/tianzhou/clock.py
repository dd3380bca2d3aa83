"""The clock seam: whatever needs the time of day is handed a `Clock`.

Cores take `now_ms` as a value; programs pass `wall_ms`, tests pass a function over a number they
own.
"""

import time
from collections.abc import Callable

Clock = Callable[[], int]


def wall_ms() -> int:
    """Milliseconds since the epoch, as RocketMQ stamps messages and heartbeats."""
    return time.time_ns() // 1_000_000
